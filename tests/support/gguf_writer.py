"""Writes GGUF files for tests: valid ones from Python values, broken ones by naming the wrong part.

Independent of the reader: it shares no table with `oxillama.gguf.header`, so that an error in one is seen
by the other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "array": 9}
CODES |= {"u64": 10, "i64": 11, "f64": 12}
LAYOUTS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?"}
LAYOUTS |= {"u64": "Q", "i64": "q", "f64": "d"}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return u64(len(raw)) + raw


def payload(kind: str, value: Any) -> bytes:
    """A value without its type. ``kind`` is a key of CODES, or "[kind]" for an array of it."""
    if kind.startswith("["):
        inner = kind[1:-1]
        code = CODES["array" if inner.startswith("[") else inner]
        return u32(code) + u64(len(value)) + b"".join(payload(inner, item) for item in value)
    return string(value) if kind == "str" else struct.pack("<" + LAYOUTS[kind], value)


def pair(key: str | bytes, kind: str, value: Any) -> bytes:
    """A key, its type and its value."""
    return string(key) + u32(CODES["array" if kind.startswith("[") else kind]) + payload(kind, value)


def entry(name: str | bytes, shape: Sequence[int], type_id: int, offset: int) -> bytes:
    """One tensor of the directory."""
    dims = b"".join(u64(dim) for dim in shape)
    return string(name) + u32(len(shape)) + dims + u32(type_id) + u64(offset)


@dataclass(frozen=True)
class Tensor:
    """A tensor to write; ``data`` are its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    data: bytes


def f32_tensor(name: str = "a", rows: int = 4, fill: int = 1) -> Tensor:
    """(8, rows) F32, every byte of it ``fill``."""
    return Tensor(name, (8, rows), 0, bytes([fill]) * (32 * rows))


def assemble(
    pairs: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    n_pairs: int | None = None,
    n_entries: int | None = None,
) -> bytes:
    """A file of ready-made parts; the counts can be made to lie."""
    n_entries = len(entries) if n_entries is None else n_entries
    n_pairs = len(pairs) if n_pairs is None else n_pairs
    header = b"GGUF" + u32(version) + u64(n_entries) + u64(n_pairs) + b"".join(pairs) + b"".join(entries)
    return header + b"\0" * (-len(header) % alignment if data else 0) + data


def write(
    metadata: Sequence[tuple[str, str, Any]] = (),
    tensors: Sequence[Tensor] = (),
    *,
    alignment: int | None = None,
    version: int = 3,
) -> bytes:
    """A valid file: ``metadata`` of (key, kind, value), tensors one after another, padded between."""
    pairs = [pair(*item) for item in metadata]
    if alignment is not None:
        pairs.append(pair("general.alignment", "u32", alignment))
    step, entries, data = alignment or 32, [], b""
    for tensor in tensors:
        data += b"\0" * (-len(data) % step)
        entries.append(entry(tensor.name, tensor.shape, tensor.type_id, len(data)))
        data += tensor.data
    return assemble(pairs, entries, data, version=version, alignment=step)


def write_metadata(path: Path, values: Mapping[str, Any]) -> None:
    """A file of metadata only; integers become u32 and floats f32."""
    path.write_bytes(write([(key, kind_of(value), value) for key, value in values.items()]))


def kind_of(value: Any) -> str:
    """The type that a Python value or a NumPy array is written as."""
    if isinstance(value, np.ndarray):
        kind = value.dtype.kind
        return "[bool]" if kind == "b" else f"[{kind}{8 * value.itemsize}]"
    if isinstance(value, list):
        return "[str]"
    return {bool: "bool", int: "u32", float: "f32", str: "str", bytes: "str"}[type(value)]


def vocabulary(n_tokens: int, n_merges: int) -> bytes:
    """A file of metadata only: tokens "t<i>", scores, types and merges "t<i> x"."""

    def words(count: int, text: str) -> bytes:
        return u32(9) + u32(8) + u64(count) + b"".join(string(text % i) for i in range(count))

    return assemble(
        [
            string("tokenizer.ggml.tokens") + words(n_tokens, "t%d"),
            pair("tokenizer.ggml.scores", "[f32]", range(n_tokens)),
            pair("tokenizer.ggml.token_type", "[i32]", [1] * n_tokens),
            string("tokenizer.ggml.merges") + words(n_merges, "t%d x"),
        ]
    )
