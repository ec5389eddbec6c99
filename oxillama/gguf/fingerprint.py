"""Fingerprints of models: a hash of everything in a model file that a reader can see.

The hash covers all metadata and all bytes of all tensors. It does not cover how they lie in files: the order
of keys and tensors, padding, and the keys of a split file. A model thus has one fingerprint whether it is
read from one file, from shards, or from bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from blake3 import blake3

from oxillama.base.contract import bits_since
from oxillama.gguf.known_hashes import DIGEST_BYTES, KnownHashes
from oxillama.gguf.model_file import ModelFile

if TYPE_CHECKING:
    from oxillama.base.config import EngineConfig

VERSION = b"oxillama model fingerprint 1"
"""Part of every hash: a new way to hash gives new fingerprints."""

LAYOUT_KEYS = ("general.alignment", "split.no", "split.count", "split.tensors.count")
"""Metadata that say how the model lies in files, and nothing about the model."""

PIECE_BYTES = 8 << 20
"""Bytes read and hashed between two calls of the progress callback."""

THREADED_BYTES = 1 << 20
"""Smallest tensor that is hashed with several threads."""

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | ModelFile
Setting = str | int | float | bool | None
Progress = Callable[[int, int], None]
"""Called with the bytes hashed so far and the bytes in all."""

KNOWN = KnownHashes("fingerprints", VERSION)


@dataclass(frozen=True)
class ModelFingerprint:
    """The identity of a model: equal fingerprints mean equal models, run with equal settings.

    Attributes:
        content: BLAKE3 hash of the model file, 32 bytes.
        settings: (name, repr of the value), sorted; the other options that decide the bits of the results.
    """

    content: Annotated[bytes, DIGEST_BYTES]
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def compute(
        cls, source: Source, settings: Mapping[str, Setting] | None = None, progress: Progress | None = None
    ) -> ModelFingerprint:
        """The fingerprint of a model: of a path (the first shard's, if split), of bytes, or of an open file.

        The hash of a file on the disk is kept (`known_hashes`). ``progress`` is called while a file is read.

        Raises:
            ModelFileError, GGUFError: as `ModelFile.open`; or an open file is closed, cannot be read, or has
                changed since it was opened.
        """
        chosen = tuple(sorted((name, repr(value)) for name, value in (settings or {}).items()))
        if isinstance(source, ModelFile):
            return cls(_content(source, progress), chosen)
        with ModelFile.open(source) as file:
            return cls(_content(file, progress), chosen)

    @classmethod
    def of_loaded(cls, file: ModelFile, config: EngineConfig, context_size: str | None) -> ModelFingerprint:
        """The fingerprint of a loaded model: its file and the options that decide bits, without the KV type.

        The version of the contract is among the settings where these bits differ from version 1, the
        context size if it is given. Raises as `compute`.
        """
        settings: dict[str, Setting] = {"compute": config.compute, "quantize": config.quantize}
        matrices = (info.format.name for info in file.tensors.values() if len(info.shape) > 1)
        since = bits_since(matrices, config.compute, config.kv_type)
        if since > 1:
            settings["contract"] = since
        if context_size is not None:
            settings["context_size"] = context_size
        return cls.compute(file, settings)

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


def _content(file: ModelFile, progress: Progress | None) -> bytes:
    """The hash of a file, known or computed."""
    identity = file.identity
    found = KNOWN.find(identity) if identity else None
    if found is None:
        start = time.time()
        found = _hashed(file, progress)
        if identity and file.current_identity() == identity:
            KNOWN.keep(identity, found, start)
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
