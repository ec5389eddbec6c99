"""Brings a file into the cache of `huggingface_hub`, where it appears when its bytes are the listed ones.

A file lies in ``blobs`` under its hash, and a snapshot of a commit has a link to it under its path. No name
on the disk is a text of the hub that was not checked.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ModelFileError
from oxillama.gguf.extent import FileIdentity
from oxillama.gguf.hub.listing import HubFile, address_of
from oxillama.gguf.hub.names import HubName
from oxillama.gguf.hub.requests import Hub, NoAnswer, shown
from oxillama.gguf.known_hashes import KnownHashes

CHUNK = 1 << 22
"""Bytes that are hashed at a time."""

ATTEMPTS = 5
"""Attempts in a row that bring nothing, after which a download ends."""

SLOW_SECONDS = 60.0
SLOW_BYTES = 60 << 10
"""A download ends that brings fewer bytes than this in these seconds."""

WAITING_SECONDS = 60.0
"""A process that downloads the same file is not waited for when its part has not grown for this long."""

CHECKED = KnownHashes("downloads", b"oxillama checked download 1")
"""Which files have been found equal to the hash of which `HubFile`."""

Tell = Callable[[str], object]
Count = Callable[[int], object]


def uncounted(n_bytes: int) -> None:
    """Counts nothing."""


def digest_for(file: HubFile) -> Any:
    """The hash object whose result, over the bytes of a file, is its digest."""
    if len(file.digest) == 64:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def place(folder: Path, file: HubFile, commit: str) -> Path:
    """The path of a file of a commit in the folder of its repository."""
    return folder / "snapshots" / commit / Path(*file.path.split("/"))


def bring(
    hub: Hub,
    name: HubName,
    file: HubFile,
    commit: str,
    folder: Path,
    progress: bool,
    tell: Tell,
    arrived: Count,
) -> Path:
    """The path of a file in the cache, downloaded unless a file of its hash is there.

    Args:
        folder: of the repository in the cache.
        progress: whether a bar is shown on stderr.
        tell: gets texts for the user.
        arrived: gets the numbers of bytes that have arrived since it was last called; below 0 for a new
            start.

    Raises:
        Refused, NoAnswer: the hub does not give the file.
        ModelFileError: what it gives are not the listed bytes.
        OSError: the cache cannot be written.
    """
    path, blob = place(folder, file, commit), folder / "blobs" / file.digest
    for parent in (path.parent, blob.parent):
        parent.mkdir(parents=True, exist_ok=True)
    with alone(folder, blob, file, tell) as is_alone:
        is_new = not blob.is_file() and not path.is_file()
        if is_new:
            mark = "part" if is_alone else uuid4().hex[:8]
            part = blob.with_name(f"{blob.name}.{mark}.incomplete")
            try:
                download(hub, name, file, commit, part, progress, tell, arrived)
                os.replace(part, blob)
            finally:
                if not is_alone:
                    part.unlink(missing_ok=True)
        if not path.is_file():
            link(blob, path, is_new)
        if is_new:
            CHECKED.keep(identity_of(path), mark_of(file), math.inf)
    return path


def download(
    hub: Hub,
    name: HubName,
    file: HubFile,
    commit: str,
    part: Path,
    progress: bool,
    tell: Tell,
    arrived: Count,
) -> None:
    """Writes the bytes of a file to ``part``, behind those that an interrupted download has left there.

    Raises as `bring`. The part stays for the next download, unless its bytes are not the listed ones. If some
    of them came from an interrupted download, all are downloaded again first.
    """
    url = address_of(hub, name, commit, file)
    with part.open("a+b") as out, bar(hub, "downloading", file, progress, arrived) as show:
        hashed, done, n_failed = digest_for(file), 0, 0
        out.seek(0)
        while done < file.size and (kept := out.read(min(CHUNK, file.size - done))):
            hashed.update(kept)
            done += len(kept)
            show(len(kept))
        out.truncate(done)
        n_earlier = done
        while done < file.size:
            before = done
            try:
                for data in pieces(hub, url, done, file):
                    if data is None:
                        out.truncate(0)
                        show(-done)
                        hashed, done = digest_for(file), 0
                        continue
                    if done + len(data) > file.size:
                        raise ModelFileError(f"{file.path}: expected {file.size} bytes, got more")
                    out.write(data)
                    hashed.update(data)
                    done += len(data)
                    show(len(data))
                if done < file.size:
                    raise NoAnswer(f"{hub.address} did not give it: {done} of {file.size} bytes arrived")
            except NoAnswer as error:
                n_failed = 1 if done - before >= SLOW_BYTES else n_failed + 1
                if n_failed > ATTEMPTS:
                    raise
                tell(f"{file.path}: {error}; trying again")
                time.sleep(1)
        out.flush()
        os.fsync(out.fileno())
    if hashed.hexdigest() != file.digest:
        part.unlink()
        if n_earlier:
            arrived(-done)
            return download(hub, name, file, commit, part, progress, tell, arrived)
        raise differs(file, hashed.hexdigest(), "was deleted")


def pieces(hub: Hub, url: str, start: int, file: HubFile) -> Iterator[bytes | None]:
    """The bytes of a file from ``start`` on. None comes first if they are those from the first byte on.

    Raises as `bring`.
    """
    with hub.answer("GET", url, {"range": f"bytes={start}-"} if start else None) as response:
        headers, left = response.headers, file.size
        encoding, length = headers.get("content-encoding", "identity"), headers.get("content-length")
        if encoding != "identity":
            raise ModelFileError(f"{file.path}: Content-Encoding: expected identity, got {shown(encoding)}")
        if response.status_code == 206:
            told = headers.get("content-range", "")
            found = re.fullmatch(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20}|\*)", told)
            if found is None or int(found[1]) != start or found[3] not in ("*", str(file.size)):
                wanted = f"bytes from {start} on of {file.size}"
                raise ModelFileError(f"{file.path}: Content-Range: expected {wanted}, got {shown(told)}")
            left -= start
        elif start:
            yield None
        if length is not None and length != str(left):
            raise ModelFileError(
                f"{file.path}: Content-Length: expected {left}, as listed, got {shown(length)}"
            )
        since, n_bytes = time.monotonic(), 0
        for data in response.iter_raw():
            yield data
            n_bytes += len(data)
            now = time.monotonic()
            if now - since > SLOW_SECONDS:
                if n_bytes < SLOW_BYTES:
                    raise NoAnswer(f"{hub.address}: {n_bytes} bytes arrived in {now - since:.0f} s")
                since, n_bytes = now, 0


def differs(file: HubFile, digest: str, end: str) -> ModelFileError:
    """The error of a file whose bytes are not the listed ones."""
    return ModelFileError(f"{file.path}: expected bytes of hash {file.digest}, got {digest}; it {end}")


def link(blob: Path, path: Path, is_new: bool) -> None:
    """Gives a blob its path in a snapshot: as a link, or as the file itself where links are impossible."""
    with suppress(FileNotFoundError):
        path.unlink()  # a link to a blob that is gone
    try:
        os.symlink(os.path.relpath(blob, path.parent), path)
    except (OSError, NotImplementedError):
        if is_new:
            os.replace(blob, path)
        else:
            with replaced_file(path) as copy, blob.open("rb") as opened:
                shutil.copyfileobj(opened, copy, CHUNK)


def check(hub: Hub, path: Path, file: HubFile, progress: bool, tell: Tell, again: bool) -> None:
    """Compares a file in the cache with its hash, unless that was done since its last change.

    Args:
        again: whether it is done in any case.

    Raises:
        ModelFileError: the bytes are others than the listed ones. The file is deleted.
    """
    before = identity_of(path)
    if not again and CHECKED.find(before) == mark_of(file):
        return
    start, hashed = time.time(), digest_for(file)
    if not progress and file.size > CHUNK:
        tell(f"checking {file.path} ({file.size >> 20} MiB) in the cache")
    with path.open("rb") as opened, bar(hub, "checking", file, progress) as show:
        while chunk := opened.read(CHUNK):
            hashed.update(chunk)
            show(len(chunk))
    if before[0].size != file.size or hashed.hexdigest() != file.digest:
        target = Path(os.path.normpath(path.parent / os.readlink(path))) if path.is_symlink() else None
        path.unlink(missing_ok=True)
        if target is not None and target.name == file.digest:
            target.unlink(missing_ok=True)
        raise differs(file, hashed.hexdigest(), "was deleted")
    if identity_of(path) == before:
        CHECKED.keep(before, mark_of(file), start)


def identity_of(path: Path) -> tuple[FileIdentity]:
    """The size, time and number of the file that a path, or the link there, leads to."""
    return (FileIdentity.of(path.stat()),)


def mark_of(file: HubFile) -> bytes:
    """32 bytes that stand for the hash of a file."""
    return hashlib.sha256(file.digest.encode()).digest()


@contextmanager
def bar(hub: Hub, doing: str, file: HubFile, progress: bool, counted: Count = uncounted) -> Iterator[Count]:
    """A progress bar over the bytes of a file; yields what takes the number of further bytes.

    Args:
        counted: gets the numbers, too.
    """
    if not progress or hub.package.utils.are_progress_bars_disabled():
        yield counted
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    shown_name = f"{doing} {file.path[-40:]}"
    with tqdm(total=file.size, desc=shown_name, unit="B", unit_scale=True) as made:
        yield lambda n_bytes: (made.update(n_bytes), counted(n_bytes))


@contextmanager
def alone(folder: Path, blob: Path, file: HubFile, tell: Tell) -> Iterator[bool]:
    """Holds the lock of a file, which `huggingface_hub` takes, too, so that one process downloads it.

    Yields whether the lock is held. The lock spares a second download; nothing depends on it. The wait ends
    when the part that the other process has does not grow, or where the system has no locks.
    """
    from filelock import FileLock, Timeout

    locks = folder.parent / ".locks" / folder.name
    held = None
    try:
        locks.mkdir(parents=True, exist_ok=True)
        held = FileLock(locks / f"{file.digest}.lock")
        size, since, is_told = -1, time.monotonic(), False
        while time.monotonic() - since < WAITING_SECONDS and not blob.is_file():
            try:
                held.acquire(timeout=1)
                break
            except Timeout:
                if not is_told:
                    tell(f"waiting for another process that downloads {file.path}")
                is_told = True
            parts = blob.parent.glob(f"{blob.name}.*incomplete")
            now = sum(part.stat().st_size for part in parts if part.is_file())
            if now != size:
                size, since = now, time.monotonic()
    except (OSError, NotImplementedError):
        held = None
    try:
        yield held is not None and held.is_locked
    finally:
        if held is not None and held.is_locked:
            held.release()
