"""Downloads a model from the hub into the cache of `huggingface_hub`, and finds it there.

`huggingface_hub` reads HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE, resumes interrupted downloads,
and shows progress. It compares the size of what it has written; the hash is compared here.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxillama.errors import ModelFileError
from oxillama.hub.cached import snapshot_files
from oxillama.hub.library import bars, check_reachable, is_answer, library, reason_of, typed_errors
from oxillama.hub.names import HubName, model_files, projector_of

CHUNK = 1 << 22
"""Bytes that are hashed at a time."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    Attributes
    ----------
    path : in the repository.
    size : in bytes.
    digest : hexadecimal SHA-256 of a large file, Git's SHA-1 of another one.
    """

    path: str
    size: int
    digest: str


@typed_errors()
def fetch(
    name: HubName,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    progress: bool = True,
    announce: Callable[[HubFile], object] = lambda file: None,
    check: bool = False,
    projector: bool = False,
) -> Path:
    """The path of a model's (first) file in the cache; missing files are downloaded.

    Parameters
    ----------
    cache_dir : None for that of `huggingface_hub`.
    token : of a user of the hub; None for the one that is logged in.
    progress : whether progress is shown on stderr.
    announce : called before a file is downloaded.
    check : whether files that are in the cache already are compared with their hashes, too.
    projector : whether the repository's projector file (mmproj) comes with the model, if there is one.

    Raises
    ------
    ConfigError : no model fits the name, or several do; `huggingface_hub` is not installed.
    ModelFileError : it cannot be downloaded, or differs from the hub's file; the message says why.
    """
    hub = library()
    place = {"cache_dir": cache_dir, "revision": name.revision}
    try:
        check_reachable(hub)
        files = remote_files(hub, name, token)
    except Exception as error:
        if is_answer(hub, error):
            raise ModelFileError(f"{name}: {reason_of(hub, error)}") from error
        return cached_model(hub, name, cache_dir, error)
    chosen = [files[path] for path in model_files(name, files)]
    beside = projector_of(files) if projector else None
    found = []
    for file in [*chosen, *([files[beside]] if beside is not None else [])]:
        known = hub.try_to_load_from_cache(name.repo, file.path, **place)
        is_new = not isinstance(known, str)
        if is_new:
            announce(file)
        try:
            with bars(progress):
                path = Path(hub.hf_hub_download(name.repo, file.path, token=token, **place))
        except Exception as error:
            raise ModelFileError(f"{name}: {file.path}: {reason_of(hub, error)}") from error
        if is_new or check:
            check_digest(path, file)
        found.append(path)
    return found[0]


def remote_files(hub: Any, name: HubName, token: str | bool | None) -> dict[str, HubFile]:
    """The files of a repository as the hub lists them, by path."""
    listed = hub.HfApi(token=token).list_repo_tree(name.repo, recursive=True, revision=name.revision)
    return {
        entry.path: HubFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)
        for entry in listed
        if hasattr(entry, "blob_id")  # a file, and no folder
    }


def cached_model(hub: Any, name: HubName, cache_dir: str | os.PathLike[str] | None, cause: Exception) -> Path:
    """The path of a model in the cache, if the hub cannot be reached because of ``cause``.

    Raises ConfigError as `model_files`, ModelFileError if nothing of the repository is in the cache.
    """
    reason = reason_of(hub, cause)
    files = snapshot_files(name, cache_dir)
    if not files:
        raise ModelFileError(f"{name}: {reason}, and it is not in the cache") from cause
    paths = [files[path] for path in model_files(name, files)]
    if not isinstance(cause, hub.errors.OfflineModeIsEnabled):
        warnings.warn(f"{name}: {reason}; what is in the cache is used", stacklevel=4)
    return paths[0]


def check_digest(path: Path, file: HubFile) -> None:
    """Raises ModelFileError, and deletes the file, if its bytes are not those that the hub lists."""
    if len(file.digest) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != file.digest:
        blob = path.resolve()
        path.unlink()
        blob.unlink(missing_ok=True)
        raise ModelFileError(
            f"{file.path}: expected bytes of hash {file.digest}, got {digest.hexdigest()}; it was deleted"
        )
