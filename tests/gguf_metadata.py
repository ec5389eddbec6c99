"""A few lines that read a GGUF file's metadata, so that tokenizer tests stand on nothing but the format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

# Value types by number: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
_SCALARS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "", "", "<u8", "<i8", "<f8")))
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys and values; strings as bytes, arrays as NumPy arrays or lists of bytes."""
    with path.open("rb") as file:
        magic, version, _tensors, keys = struct.unpack("<4sIQQ", file.read(24))
        assert magic == b"GGUF" and version in (2, 3)
        return {_string(file).decode(): _value(file, _number(file, "<u4")) for _ in range(keys)}


def _number(file: BinaryIO, kind: str) -> Any:
    dtype = np.dtype(kind)
    return np.frombuffer(file.read(dtype.itemsize), dtype)[0].item()


def _string(file: BinaryIO) -> bytes:
    return file.read(_number(file, "<u8"))


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _number(file, _SCALARS[kind])
    kind, count = _number(file, "<u4"), _number(file, "<u8")
    if kind == _STRING:
        return [_string(file) for _ in range(count)]
    dtype = np.dtype(_SCALARS[kind])
    return np.frombuffer(file.read(dtype.itemsize * count), dtype)
