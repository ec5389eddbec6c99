"""Writes GGUF files: pairs and tensors as bytes, each where the format wants it.

Pairs come encoded (`pair` makes one, `ModelFile.raw_metadata` has those of a file), so that what is carried
over keeps its types and bits. Tensor data follow chunk by chunk: nothing is held in memory. The file appears
under its name when it is whole, or not at all.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3, little endian.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from oxillama.errors import ModelFileError
from oxillama.formats import Format
from oxillama.gguf.header import ARRAY, DEFAULT_ALIGNMENT, MAGIC, STRING, U32, U64

VERSION = 3
UINT32 = 4

Data = bytes | np.ndarray


@dataclass(frozen=True)
class Tensor:
    """A tensor to write; ``shape`` in GGUF order, the contiguous dimension first."""

    name: str
    format: Format
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes its data take."""
        elements = 1
        for n in self.shape:
            elements *= n
        return self.format.nbytes(elements)


def string(text: str) -> bytes:
    """A string as the format has it."""
    data = text.encode("utf-8", "surrogateescape")
    return U64.pack(len(data)) + data


def pair(key: str, value: int | str | Sequence[str]) -> bytes:
    """A key with a uint32, a string, or an array of strings."""
    if isinstance(value, int):
        return string(key) + U32.pack(UINT32) + U32.pack(value)
    if isinstance(value, str):
        return string(key) + U32.pack(STRING) + string(value)
    head = string(key) + U32.pack(ARRAY) + U32.pack(STRING) + U64.pack(len(value))
    return head + b"".join(string(text) for text in value)


def padding(n_bytes: int, alignment: int) -> bytes:
    """What brings ``n_bytes`` to a multiple of the alignment."""
    return bytes(-n_bytes % alignment)


def header(pairs: Iterable[Data], tensors: Sequence[Tensor], alignment: int = DEFAULT_ALIGNMENT) -> bytes:
    """All that stands before the tensors' data, which follow in this order, each padded to the alignment."""
    encoded = [p if isinstance(p, bytes) else p.tobytes() for p in pairs]
    parts = [MAGIC, U32.pack(VERSION), U64.pack(len(tensors)), U64.pack(len(encoded)), *encoded]
    offset = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [string(tensor.name), shape, U32.pack(tensor.format.id), U64.pack(offset)]
        offset += -(-tensor.nbytes // alignment) * alignment
    found = b"".join(parts)
    return found + padding(len(found), alignment)


def write_tensor(file: BinaryIO, tensor: Tensor, chunks: Iterable[Data], alignment: int) -> None:
    """Appends a tensor's data and their padding."""
    written = 0
    for chunk in chunks:
        written += file.write(chunk if isinstance(chunk, bytes) else chunk.data)
    assert written == tensor.nbytes, (tensor, written)
    file.write(padding(written, alignment))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` once it is written and on the disk; on a failure, nothing does.

    Raises ModelFileError if it cannot be written.
    """
    temporary = None
    try:
        try:
            target = Path(os.path.realpath(path))  # a link stays one
            if target.exists() and not target.is_file():
                raise ModelFileError(f"{path}: expected a file to write to, found a directory or device")
            fd, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
        except ValueError as error:  # NUL or a lone surrogate in the path
            raise ModelFileError(f"{str(path)!r}: not a path: {error}") from error
        with open(fd, "wb") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(fd, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            yield file
            file.flush()
            os.fsync(fd)
        os.replace(temporary, target)
        temporary = None
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def _umask() -> int:
    """What `mkstemp` disregards; it can only be asked for by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
