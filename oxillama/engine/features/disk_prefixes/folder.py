"""A folder of blocks: keys, values and states of prompts' beginnings, for later processes and for others.

A block is what a model computed for `BLOCK` tokens, whatever the page size. Its name is a hash of everything
that decides its bits: the model, and every token up to its end. The format of a file:

    8 bytes    "OXIBLCK1"
    32 bytes   BLAKE3 of the file's name and of the data
    data       keys and values by position (`cache/positions.py`), or a recurrent state, float32

Any number of processes may use a folder. Files appear complete and are never changed, so nothing is locked:
a file that another process deletes counts as not found, and an open file can be read to its end. Files are
not synced: one that a crash of the system has truncated fails its checksum, and is deleted.

A file's modification time says when it was last used. The least recently used files are deleted first.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from blake3 import blake3

from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ConfigError, ModelFileError

log: logging.Logger = logging.getLogger(__name__)

BLOCK = 64
"""Tokens in a block."""

KV, STATE = ".kv", ".state"
"""Endings of files with a block's keys and values, and with the recurrent state after the block."""

MAGIC = b"OXIBLCK1"
DIGEST = 32
SCANS = 32
"""The folder is listed again after 1 / SCANS of its limit was written, since other processes write, too."""
STALE_SECONDS = 3600
"""Age from which an unfinished file is taken to have no writer any more."""
TOKEN_BYTES = 36
"""Bytes of a token and of the hash of the adapters that it was run with."""


def chain(root: bytes, tokens: Sequence[int]) -> list[str]:
    """The names of the whole blocks of a prompt: h[i] = BLAKE3(h[i-1] + the tokens of block i).

    Args:
        root: hash of all that decides bits but the tokens, 32 bytes.
        tokens: ids, from the first on, as the prefix cache knows them (`Sequence.path`).
    """
    found, last = [], root
    for at in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
        block = tokens[at : at + BLOCK]
        if max(block) < 2**31:
            data = np.array(block, "<i4").tobytes()
        else:
            data = b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in block)
        last = blake3(last + data).digest()
        found.append(last.hex())
    return found


class BlockFolder:
    """The files of a folder. One thread writes, any may look and read.

    Args:
        path: of the folder, which is created for its owner only if it does not exist.
        max_bytes: limit of all files in it. If several processes write, each may add a 32nd of it before it
            notices the files of the others.

    Attributes:
        present: names of files that were seen in it and are not known to be deleted.
        is_writable: False after a file could not be written; then no file is written any more.

    Raises:
        ConfigError: there is no such folder, and it cannot be made; or it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        self.path: Path = Path(path)
        self.max_bytes = max_bytes
        self.present: set[str] = set()
        self.is_writable: bool = True
        self._held = self._unscanned = 0  # bytes
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._scan()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"prefix_cache_dir: expected a folder, got {os.fspath(path)!r}: {reason}"
            ) from error

    # --- reading --------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        found = name in self.present or os.path.exists(self.path / name)
        if found:
            self.present.add(name)
        return found

    def read(self, name: str, size: int) -> np.ndarray | None:
        """uint8 (size,): the data of a file; None if it is missing or damaged. A damaged file is deleted."""
        path, whole = self.path / name, len(MAGIC) + DIGEST + size
        try:
            found = path.read_bytes() if path.stat().st_size == whole else b""
        except OSError:
            self.present.discard(name)
            return None
        data = memoryview(found)[len(MAGIC) + DIGEST :]
        if len(found) == whole and found[: len(MAGIC) + DIGEST] == _head(name, data):
            self.present.add(name)
            return np.frombuffer(data, np.uint8)
        log.warning("prefix cache: %s is damaged and is deleted", self.path / name)
        self._delete(name)
        return None

    # --- writing --------------------------------------------------------------------------------------

    def write(self, name: str, data: np.ndarray) -> None:
        """Adds a file with ``data``, uint8 (n,), unless it exists or is larger than the limit.

        If it cannot be written, `is_writable` becomes False, and the log says why.
        """
        size = len(MAGIC) + DIGEST + len(data)
        if not self.is_writable or size > self.max_bytes:
            return
        try:
            if (self.path / name).exists():
                return
            self._make_room(size)
            self._write(name, data)
        except OSError as error:
            self.is_writable = False
            log.warning("prefix cache: nothing more is written to %s: %s", self.path, error.strerror or error)
            return
        self.present.add(name)
        self._held += size
        self._unscanned += size

    def _write(self, name: str, data: np.ndarray) -> None:
        path = self.path / name
        try:
            with replaced_file(path, mode=0o600, synced=False) as file:
                file.write(_head(name, data.data))
                file.write(data.data)
        except ModelFileError as error:
            # Windows replaces no file that somebody reads; names say what is in a file, so that is the same
            if not (isinstance(error.__cause__, PermissionError) and path.exists()):
                raise

    def touch(self, names: Sequence[str]) -> None:
        """Records that a chain of files was used now; the last file of a chain is deleted first."""
        now = time.time_ns()
        for i, name in enumerate(names):
            try:
                os.utime(self.path / name, ns=(now, now - i * 1_000_000))
            except FileNotFoundError:
                self.present.discard(name)
            except OSError:  # the folder is another's, or cannot be written
                return

    def _make_room(self, size: int) -> None:
        """Deletes files, the least recently used first, until there is room for ``size`` bytes."""
        if self._held + size <= self.max_bytes and self._unscanned <= self.max_bytes // SCANS:
            return
        files = self._scan()
        if self._held + size <= self.max_bytes:
            return
        most = self.max_bytes - max(size, self.max_bytes // SCANS)
        for _, held, name in sorted(files):
            if self._held <= most:
                break
            if self._delete(name):
                self._held -= held

    def _scan(self) -> list[tuple[int, int, str]]:
        """(time, bytes, name) of all files; deletes unfinished files that have no writer any more."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(OSError):  # the file has gone since
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.startswith(".") and time.time() - status.st_mtime > STALE_SECONDS:
                        os.unlink(entry.path)
                    elif entry.name.endswith((KV, STATE)):
                        found.append((status.st_mtime_ns, status.st_size, entry.name))
        self._held, self._unscanned = sum(size for _, size, _ in found), 0
        self.present = {name for _, _, name in found}
        return found

    def _delete(self, name: str) -> bool:
        """Deletes a file; returns whether it is deleted. Windows keeps a file that is being read."""
        self.present.discard(name)
        try:
            os.unlink(self.path / name)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def _head(name: str, data: memoryview) -> bytes:
    """The bytes before the data of a file."""
    return MAGIC + blake3(name.encode()).update(data).digest()
