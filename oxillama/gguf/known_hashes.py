"""Hashes of files that were read before, in the process and in a folder of the user's.

A hash is known for as long as the device, inode, size and times of its files stay the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ModelFileError
from oxillama.gguf.extent import FileIdentity

SETTLE_SECONDS = 2.0
"""A file that was changed this recently is not settled: the next change may leave its times as they are."""

DIGEST_BYTES = 32

Identity = tuple[FileIdentity, ...]


def is_settled(identity: Sequence[FileIdentity], at: float) -> bool:
    """Whether a change of the files after ``at``, in seconds since 1970, changes one of their times."""
    return all(max(one.mtime_ns, one.ctime_ns) / 1e9 < at - SETTLE_SECONDS for one in identity)


def cache_folder() -> Path | None:
    """The user's folder of cached hashes, which may not exist; None where the system names no folder."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(base):  # the XDG specification: ignore relative paths
            base = os.path.expanduser("~/.cache")
    return Path(base, "oxillama") if os.path.isabs(base) else None


class KnownHashes:
    """The known hashes of one kind, 32 bytes each.

    Args:
        name: of their folder in `cache_folder`.
        version: of what is hashed; hashes of other versions are not found.
    """

    def __init__(self, name: str, version: bytes) -> None:
        self._name, self._version = name, version
        self._known: dict[Identity, bytes] = {}

    def find(self, identity: Identity) -> bytes | None:
        """The hash of files, if it is known."""
        if identity in self._known:
            return self._known[identity]
        path, key = self._entry(identity)
        try:
            entry = path.read_bytes() if path is not None else b""
        except OSError:
            return None
        content, check = entry[:DIGEST_BYTES], entry[DIGEST_BYTES:]
        if check != blake3(key + content).digest():
            return None
        self._known[identity] = content
        return content

    def keep(self, identity: Identity, content: bytes, start: float) -> None:
        """Keeps the hash of files, if they had settled when reading began, ``start`` seconds after 1970.

        A folder that cannot be written to is no error: the files are hashed again.
        """
        if not is_settled(identity, start):
            return
        self._known[identity] = content
        path, key = self._entry(identity)
        if path is not None:
            with suppress(OSError, ModelFileError):
                path.parent.mkdir(parents=True, exist_ok=True)
                with replaced_file(path) as file:
                    file.write(content + blake3(key + content).digest())

    def forget(self) -> None:
        """Forgets the hashes of this process."""
        self._known.clear()

    def _entry(self, identity: Identity) -> tuple[Path | None, bytes]:
        """The file of a hash, and the key that it is checked with."""
        folder = cache_folder()
        key = blake3(self._version + repr([tuple(one) for one in identity]).encode()).digest()
        return (None if folder is None else folder / self._name / key.hex()), key
