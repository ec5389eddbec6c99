"""A few lines that read and write GGUF metadata, so that tokenizer tests stand on nothing but the format."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

# Value types by number: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
_SCALARS = dict(
    enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "", "", "<u8", "<i8", "<f8"))
)
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


def write_metadata(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file of version 3 with these keys and no tensors."""
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, 0, len(values))]
    for key, value in values.items():
        kind, data = _packed(value)
        parts += [_packed(key)[1], struct.pack("<I", kind), data]
    path.write_bytes(b"".join(parts))


def _packed(value: Any) -> tuple[int, bytes]:
    """Value type and bytes; integers as uint32 and floats as float32, which these keys are."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return _STRING, struct.pack("<Q", len(value)) + value
    if isinstance(value, list):
        strings = b"".join(_packed(item)[1] for item in value)
        return _ARRAY, struct.pack("<IQ", _STRING, len(value)) + strings
    if isinstance(value, np.ndarray):
        kind = list(_SCALARS.values()).index(value.dtype.str.replace("|", "<"))
        return _ARRAY, struct.pack("<IQ", kind, len(value)) + value.tobytes()
    if isinstance(value, bool):
        return 7, struct.pack("?", value)
    return (4, struct.pack("<I", value)) if isinstance(value, int) else (6, struct.pack("<f", value))
