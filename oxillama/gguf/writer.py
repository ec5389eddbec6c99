"""Writes GGUF files: a header of metadata pairs and tensors, then the data of each tensor.

Pairs are bytes: `pair` makes one, and `ModelFile.raw_metadata` returns a file's pairs, with their types.
Tensor data are written chunk by chunk, so that memory holds one chunk.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3, little endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from oxillama.base.formats import Format
from oxillama.gguf.header import ARRAY, BOOL, DEFAULT_ALIGNMENT, MAGIC, STRING, U32, U64

VERSION = 3
UINT32, INT32, FLOAT32 = 4, 5, 6

Value = (
    bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str] | np.ndarray
)
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
        return self.format.nbytes(math.prod(self.shape))


def string(text: str) -> bytes:
    """An encoded string: its length (uint64) and its bytes."""
    data = text.encode("utf-8", "surrogateescape")
    return U64.pack(len(data)) + data


def pair(key: str, value: Value) -> bytes:
    """An encoded key and value: bool, uint32, float32, string, or an array of bool, int32, float32, string.

    A NumPy array of uint32 stays one. Raises struct.error for an integer that does not fit.
    """
    if isinstance(value, np.ndarray):
        assert value.dtype == np.uint32, value.dtype
        head = string(key) + U32.pack(ARRAY) + U32.pack(UINT32) + U64.pack(len(value))
        return head + value.astype("<u4").tobytes()
    if isinstance(value, (bool, int, float, str)):
        kind, data = _scalar(value, UINT32)
        return string(key) + U32.pack(kind) + data
    items = [_scalar(item, INT32) for item in value]
    kind = items[0][0] if items else STRING
    head = string(key) + U32.pack(ARRAY) + U32.pack(kind) + U64.pack(len(items))
    return head + b"".join(data for _, data in items)


def _scalar(value: bool | int | float | str, integer: int) -> tuple[int, bytes]:
    """The type and the bytes of a value; integers are of the type ``integer``."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return integer, struct.pack("<I" if integer == UINT32 else "<i", value)
    return (FLOAT32, struct.pack("<f", value)) if isinstance(value, float) else (STRING, string(value))


def padding(n_bytes: int, alignment: int) -> bytes:
    """The zeros after ``n_bytes`` up to a multiple of the alignment."""
    return bytes(-n_bytes % alignment)


def header(pairs: Iterable[Data], tensors: Sequence[Tensor], alignment: int = DEFAULT_ALIGNMENT) -> bytes:
    """The bytes before the data of the tensors, which follow in this order, each padded to the alignment."""
    encoded = [p if isinstance(p, bytes) else p.tobytes() for p in pairs]
    parts = [MAGIC, U32.pack(VERSION), U64.pack(len(tensors)), U64.pack(len(encoded)), *encoded]
    offset = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [string(tensor.name), shape, U32.pack(tensor.format.file_id), U64.pack(offset)]
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
