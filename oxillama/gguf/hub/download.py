"""Finds a model in the cache of `huggingface_hub`, into which missing files are downloaded.

The environment variables HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE have the effect that they have for
`huggingface_hub`.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ConfigError, ModelFileError
from oxillama.gguf.hub.cached import repo_folder, snapshot_files
from oxillama.gguf.hub.library import library, typed_errors
from oxillama.gguf.hub.listing import HubFile, check_name, commit_of, remote_files
from oxillama.gguf.hub.names import HubName, model_files, projector_of
from oxillama.gguf.hub.requests import Hub, NoAnswer, Refused, within
from oxillama.gguf.hub.transfer import Tell, bring, check, place, uncounted

LOOKUP_SECONDS = 60.0
CACHED_SECONDS = 5.0
"""Seconds in which the hub must say which files a name means; fewer, if the cache has the model."""


@typed_errors()
def fetch(
    name: HubName,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    progress: bool = True,
    announce: Callable[[HubFile], object] = lambda file: None,
    arrived: Callable[[int], object] = uncounted,
    tell: Tell | None = None,
    check_all: bool = False,
    projector: bool = False,
) -> Path:
    """The path of a model's (first) file in the cache; missing files are downloaded.

    A file that is new in the cache, or was changed since it was compared with its hash, is compared.

    Args:
        cache_dir: None for the default of `huggingface_hub`.
        token: of a user of the hub; None for the one that is logged in.
        progress: whether progress is shown on stderr.
        announce: called before a file is downloaded.
        arrived: called with the number of bytes of that file that have arrived since the last call; below 0
            if its bytes come anew.
        tell: gets texts about steps that take long; None: they go to stderr if ``progress``.
        check_all: whether all files are compared with their hashes.
        projector: whether the repository's projector file (mmproj) comes with the model, if there is one.

    Raises:
        ConfigError: no model fits the name, or several do; `huggingface_hub` is not installed.
        ModelFileError: it cannot be downloaded, or differs from the hub's file; the message says why.
    """
    package = library()
    hub = Hub(package, token, float(package.constants.HF_HUB_DOWNLOAD_TIMEOUT))
    tell = tell or (lambda text: print(f"oxillama: {text}", file=sys.stderr) if progress else None)
    check_name(hub, name)
    known = snapshot_files(package, name, cache_dir)
    seconds = CACHED_SECONDS if is_among(name, known) else LOOKUP_SECONDS
    try:
        files, commit = within(
            seconds,
            lambda: looked_up(hub, name, projector, time.monotonic() + seconds),
            lambda: tell(f"waiting for {hub.address} to list {name}"),
        )
    except Refused as error:
        raise ModelFileError(f"{name}: {error}") from error
    except NoAnswer as error:
        return cached_model(hub, name, known, error)
    folder = repo_folder(package, name, cache_dir)
    found = []
    for file in files:
        try:
            path = place(folder, file, commit)
            if not path.is_file():
                if (folder / "blobs" / file.digest).is_file():
                    commit_of(
                        hub, replace(name, revision=commit), file
                    )  # does this commit have the same bytes?
                else:
                    announce(file)
                path = bring(hub, name, file, commit, folder, progress, tell, arrived)
            check(hub, path, file, progress, tell, check_all)
        except (Refused, NoAnswer) as error:
            raise ModelFileError(f"{name}: {file.path}: {error}") from error
        found.append(path)
    note_commit(folder, name, commit)
    return found[0]


def looked_up(hub: Hub, name: HubName, projector: bool, until: float) -> tuple[list[HubFile], str]:
    """The files of the model that a name means, in order, and the commit that they are of."""
    listed = remote_files(hub, name, until)
    files = [listed[path] for path in model_files(name, listed)]
    if projector and (beside := projector_of(listed)) is not None:
        files.append(listed[beside])
    return files, commit_of(hub, name, files[0])


def is_among(name: HubName, paths: Iterable[str]) -> bool:
    """Whether a model that a name means is among files."""
    try:
        return bool(model_files(name, paths))
    except ConfigError:
        return False


def note_commit(folder: Path, name: HubName, commit: str) -> None:
    """Notes in the cache which commit a branch or tag is, unless the cache is read-only."""
    ref = folder / "refs" / Path(*(name.revision or "main").split("/"))
    if name.revision == commit or (ref.is_file() and ref.read_bytes() == commit.encode()):
        return
    try:
        ref.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(ref) as file:
            file.write(commit.encode())
    except (OSError, ModelFileError):
        if not os.access(folder, os.W_OK):
            return
        raise


def cached_model(hub: Hub, name: HubName, known: dict[str, Path], cause: NoAnswer) -> Path:
    """The path of a model in the cache, if the hub cannot be reached because of ``cause``.

    Raises ConfigError as `model_files`, ModelFileError if nothing of the repository is in the cache.
    """
    is_offline = hub.package.constants.HF_HUB_OFFLINE
    if not known or not (is_offline or is_among(name, known)):
        raise ModelFileError(f"{name}: {cause}, and it is not in the cache") from cause
    path = known[model_files(name, known)[0]]
    if not is_offline:
        warnings.warn(f"{name}: {cause}; what is in the cache is used", stacklevel=4)
    return path
