"""Fingerprints of models: a hash of everything in a model file that a reader can see.

The hash covers all metadata and all bytes of all tensors. It does not cover how they lie in files: the order
of keys and tensors, padding, and the keys of a split file. A model thus has one fingerprint whether it is
read from one file, from shards, or from bytes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from blake3 import blake3

from oxillama.atomic_file import replaced_file
from oxillama.errors import ModelFileError
from oxillama.gguf.extent import FileIdentity
from oxillama.gguf.model_file import ModelFile

VERSION = b"oxillama model fingerprint 1"
"""Part of every hash: a new way to hash gives new fingerprints."""

LAYOUT_KEYS = ("general.alignment", "split.no", "split.count", "split.tensors.count")
"""Metadata that say how the model lies in files, and nothing about the model."""

PIECE_BYTES = 8 << 20
"""Bytes read and hashed between two calls of the progress callback."""

THREADED_BYTES = 1 << 20
"""Smallest tensor that is hashed with several threads."""

SETTLE_SECONDS = 2.0
"""A file that was changed this recently is not cached: the next change may leave its times as they are."""

DIGEST_BYTES = 32

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | ModelFile
Setting = str | int | float | bool | None
Progress = Callable[[int, int], None]
"""Called with the bytes hashed so far and the bytes in all."""

_known: dict[tuple[FileIdentity, ...], bytes] = {}


@dataclass(frozen=True)
class ModelFingerprint:
    """The identity of a model: equal fingerprints mean equal models, run with equal settings.

    Attributes
    ----------
    content : BLAKE3 hash of the model file, 32 bytes.
    settings : (name, repr of the value), sorted; the other options that decide the bits of the results.
    """

    content: Annotated[bytes, DIGEST_BYTES]
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def compute(
        cls, source: Source, settings: Mapping[str, Setting] | None = None, progress: Progress | None = None
    ) -> ModelFingerprint:
        """The fingerprint of a model: of a path (the first shard's, if split), of bytes, or of an open file.

        The hash of a file on the disk is cached, in the process and in `cache_folder`, for as long as the
        device, inode, size and times of the file stay the same. ``progress`` is called while a file is read.

        Raises
        ------
        ModelFileError, GGUFError : as `ModelFile.open`; or an open file is closed, cannot be read, or has
            changed since it was opened.
        """
        chosen = tuple(sorted((name, repr(value)) for name, value in (settings or {}).items()))
        if isinstance(source, ModelFile):
            return cls(_content(source, progress), chosen)
        with ModelFile.open(source) as file:
            return cls(_content(file, progress), chosen)

    def verify(self, source: Source, progress: Progress | None = None) -> bool:
        """Whether a model has this content. Reads the whole model and no cache; raises as `compute`."""
        if isinstance(source, ModelFile):
            return _hashed(source, progress) == self.content
        with ModelFile.open(source) as file:
            return _hashed(file, progress) == self.content

    @property
    def digest(self) -> bytes:
        """32 bytes that differ where the content or a setting does."""
        hashed = blake3(VERSION)
        for part in (self.content, *(part.encode() for setting in self.settings for part in setting)):
            _add(hashed, part)
        return hashed.digest()

    def display(self) -> str:
        """The first 16 hexadecimal digits of the digest."""
        return self.digest.hex()[:16]


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
    return Path(base, "oxillama", "fingerprints") if os.path.isabs(base) else None


def _content(file: ModelFile, progress: Progress | None) -> bytes:
    """The hash of a file: from the process, from the cache folder, or computed."""
    identity = file.identity
    if not identity:
        return _hashed(file, progress)
    found = _known.get(identity) or _read_cache(identity)
    if found is None:
        start = time.time()
        found = _hashed(file, progress)
        settled = all(max(one.mtime_ns, one.ctime_ns) / 1e9 < start - SETTLE_SECONDS for one in identity)
        if not settled or file.current_identity() != identity:
            return found
        _write_cache(identity, found)
    _known[identity] = found
    return found


def _hashed(file: ModelFile, progress: Progress | None) -> bytes:
    """The hash of all metadata and tensors; tensors are read in file order and combined in order of names."""
    tensors = {}
    done, total = 0, sum(info.nbytes for info in file.tensors.values())
    buffer = np.empty(min(PIECE_BYTES, total), np.uint8)
    for name, info in file.tensors.items():
        extent = file.extent(name)
        hashed = blake3(max_threads=blake3.AUTO if info.nbytes >= THREADED_BYTES else 1)
        for start in range(0, info.nbytes, PIECE_BYTES):
            piece = extent.read(start, min(PIECE_BYTES, info.nbytes - start), buffer)
            hashed.update(piece.data)
            done += len(piece)
            if progress is not None:
                progress(done, total)
        tensors[name] = hashed.digest()
    combined = blake3(VERSION)
    pairs = file.raw_metadata()
    for key in sorted(pairs.keys() - set(LAYOUT_KEYS)):
        _add(combined, pairs[key].tobytes())
    for name in sorted(tensors):
        info = file.tensors[name]
        _add(combined, name.encode())
        _add(combined, f"{info.format.name} {info.shape}".encode())
        _add(combined, tensors[name])
    return combined.digest()


def _add(hashed: blake3, part: bytes) -> None:
    """Hashes a part after its length, so that parts cannot run into one another."""
    hashed.update(len(part).to_bytes(8, "little"))
    hashed.update(part)


def _cache_entry(identity: tuple[FileIdentity, ...]) -> tuple[Path | None, bytes]:
    """The file that holds the hash of a model with this identity, and the key the entry is checked with."""
    folder = cache_folder()
    key = blake3(VERSION + repr([tuple(one) for one in identity]).encode()).digest()
    return (None if folder is None else folder / key.hex()), key


def _read_cache(identity: tuple[FileIdentity, ...]) -> bytes | None:
    """The cached hash; None if there is no entry, or the entry is damaged."""
    path, key = _cache_entry(identity)
    try:
        entry = path.read_bytes() if path is not None else b""
    except OSError:
        return None
    content, check = entry[:DIGEST_BYTES], entry[DIGEST_BYTES:]
    return content if check == blake3(key + content).digest() else None


def _write_cache(identity: tuple[FileIdentity, ...], content: bytes) -> None:
    """Caches a hash. A folder that cannot be written to is no error: the hash is computed again."""
    path, key = _cache_entry(identity)
    if path is None:
        return
    with suppress(OSError, ModelFileError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as file:
            file.write(content + blake3(key + content).digest())
