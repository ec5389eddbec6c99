"""Writes GGUF files: pairs and tensors as bytes, each where the format wants it.

Pairs come encoded (`pair` makes one, `ModelFile.raw_metadata` has those of a file), so that what is carried
over keeps its types and bits. Tensor data follow chunk by chunk: nothing is held in memory.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3, little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

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
