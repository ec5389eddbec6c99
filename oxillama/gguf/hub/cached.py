"""The models that are in the cache of `huggingface_hub`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from oxillama.base.formats import PACKED_SUFFIX
from oxillama.errors import ConfigError
from oxillama.gguf.hub.library import library, typed_errors
from oxillama.gguf.hub.names import HubName, fits, models_of, n_missing

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache.

    Attributes:
        name: by which it can be loaded.
        size: in bytes, of all its files.
        last_used: seconds since 1970.
        paths: its files, in order.
        missing: how many files of a split model are missing.
    """

    name: HubName
    size: int
    last_used: float
    paths: tuple[Path, ...]
    missing: int = 0


def revisions(cache_dir: str | os.PathLike[str] | None) -> Iterator[tuple[Any, Any]]:
    """(repository, revision) of all models in the cache, as `huggingface_hub` describes them."""
    hub = library()
    try:
        found = hub.scan_cache_dir(cache_dir or hub.constants.HF_HUB_CACHE)
    except hub.errors.CacheNotFound:
        return
    for repo in sorted(found.repos, key=lambda repo: repo.repo_id):
        if repo.repo_type == "model":
            for revision in sorted(repo.revisions, key=lambda revision: -revision.last_modified):
                yield repo, revision


def paths_in(revision: Any) -> dict[str, Any]:
    """The files of a revision in the cache, by their paths in the repository."""
    root = revision.snapshot_path
    return {file.file_path.relative_to(root).as_posix(): file for file in revision.files}


def repo_folder(hub: Any, name: HubName, cache_dir: str | os.PathLike[str] | None) -> Path:
    """The folder of a repository in the cache, which may not exist."""
    root = hub.constants.HF_HUB_CACHE if cache_dir is None else cache_dir
    return Path(os.path.expanduser(root), f"models--{name.repo.replace('/', '--')}")


def snapshot_files(hub: Any, name: HubName, cache_dir: str | os.PathLike[str] | None) -> dict[str, Path]:
    """The files that the cache has of a repository at the revision of a name, by path; {} for none."""
    root, commit = repo_folder(hub, name, cache_dir), name.revision or "main"
    if not COMMIT.fullmatch(commit):
        try:
            commit = (root / "refs" / commit).read_text().strip()
        except (OSError, ValueError):
            return {}
    snapshot = root / "snapshots" / commit
    if not COMMIT.fullmatch(commit) or not snapshot.is_dir():
        return {}
    return {path.relative_to(snapshot).as_posix(): path for path in snapshot.rglob("*") if path.is_file()}


@typed_errors()
def cached_models(cache_dir: str | os.PathLike[str] | None = None) -> list[CachedModel]:
    """The models in the cache, by name. Raises ModelFileError if it cannot be read."""
    found: dict[str, CachedModel] = {}
    for repo, revision in revisions(cache_dir):
        at = None if "main" in revision.refs else revision.commit_hash
        files = paths_in(revision)
        for paths in models_of(files):
            name = HubName(repo.repo_id, file=paths[0], revision=at)
            entries = [files[path] for path in paths]
            found[str(name)] = CachedModel(
                name,
                sum(entry.size_on_disk for entry in entries),
                max(entry.blob_last_accessed for entry in entries),
                tuple(entry.file_path for entry in entries),
                n_missing(paths),
            )
    return [found[name] for name in sorted(found)]


@typed_errors()
def remove(name: HubName, cache_dir: str | os.PathLike[str] | None = None) -> int:
    """Deletes a model's files from the cache, of every revision if the name has none; returns freed bytes.

    Packed files that were made from them are deleted, too.

    Raises ConfigError if none in the cache fits the name, or several do, and ModelFileError if a file cannot
    be deleted.
    """
    every = [revision for repo, revision in revisions(cache_dir) if repo.repo_id == name.repo]
    gone: set[Path] = set()
    meant: set[str] = set()
    for revision in every:
        if name.revision is None or name.revision in {*revision.refs, revision.commit_hash}:
            files = paths_in(revision)
            for paths in models_of(files):
                if fits(name, paths):
                    meant.add(paths[0])
                    gone |= {files[path].file_path for path in paths}
    if len(meant) != 1:
        found = f"{len(meant)}: {', '.join(sorted(meant))}" if meant else "none (see oxillama list)"
        raise ConfigError(f"{name}: expected a name of one model in the cache, got {found}")
    files_of = [file for revision in every for file in revision.files]
    kept = {file.blob_path for file in files_of if file.file_path not in gone}
    blobs = {file.blob_path for file in files_of if file.file_path in gone} - kept
    packed = {other for path in gone for other in path.parent.glob(f"{escape(path.name)}*{PACKED_SUFFIX}")}
    for path in gone - blobs:
        path.unlink()
    freed: int = sum(file.stat().st_size for file in blobs | packed)
    for file in blobs | packed:
        file.unlink()
    return freed
