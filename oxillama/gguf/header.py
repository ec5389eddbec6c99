"""Parses the header of a GGUF file: the metadata and the tensor directory.

`_Cursor` reads the file in growing pieces. It checks every count, length and offset against the bytes that
remain before it uses them, so that neither the time nor the memory for a file exceeds a small multiple of its
size. Metadata are copies: they outlive what was read.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn, cast, overload

import numpy as np

from oxillama.base.formats import FORMAT_BY_ID, VARIANT, Format
from oxillama.errors import GGUFError
from oxillama.gguf.extent import Extent

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT, MAX_ALIGNMENT = 8, 1 << 20  # the specification has the lower limit only
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 64
MAX_DIMS = 4
MAX_ARRAY_DEPTH = 4  # arrays of arrays; files in use hold flat ones only
MAX_INT64 = (1 << 63) - 1
MAX_HEADER_BYTES = 1 << 30  # headers of files in use have some 10 MB
FIRST_PIECE_BYTES = 1 << 16  # of the header; every further piece is as large as what has been read

# The fewest bytes an entry takes: bounds for counts.
MIN_KEY_VALUE_BYTES = 8 + 1 + 4 + 1  # key length, key, type, value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, n_dims, one dim, type, offset
STRING_LENGTH_BYTES = 8
ARRAY_HEADER_BYTES = 4 + 8  # element type, count

BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorInfo:
    """An entry of the tensor directory.

    Attributes:
        name: its GGUF name, e.g. "blk.0.attn_q.weight".
        format: its block format.
        shape: 1 to 4 dimensions in GGUF order: the contiguous one (n_in of a matrix) first.
        offset: byte offset of its data from the start of the shard's file.
        shard: index of the file that holds it in `ModelFile.paths`, 0 where there is only one.
    """

    name: str
    format: Format
    shape: tuple[int, ...]
    offset: int
    shard: int = 0

    @property
    def n_elements(self) -> int:
        """Product of the dimensions."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes its data take in the file."""
        return self.format.nbytes(self.n_elements)


@dataclass(frozen=True, repr=False)
class StringArray(Sequence[str]):
    """An array of strings in a file, decoded on access.

    Bytes that are not UTF-8 become lone surrogates (the ``surrogateescape`` handler), so that
    ``s.encode("utf-8", "surrogateescape")`` gives the exact bytes of any string of the file.

    Attributes:
        section: the strings as they lie in the file, each after the 8 bytes of its length.
        ends: where each string ends in ``section``.
    """

    section: bytes
    ends: array[int]

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        end = self.ends[index]
        index %= len(self)
        start = self.ends[index - 1] if index else 0
        return self.section[start + STRING_LENGTH_BYTES : end].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        section, gap = self.section, STRING_LENGTH_BYTES
        places = zip(chain((0,), self.ends), self.ends)  # a list, because a generator takes twice as long
        return iter([section[start + gap : end].decode("utf-8", "surrogateescape") for start, end in places])

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)}>"


@dataclass(frozen=True, repr=False)
class Header:
    """The header of a file. `ModelFile` describes the fields.

    ``spans`` has the bytes [start, end) of each key with its value.
    """

    version: int
    alignment: int
    metadata: dict[str, Any]
    spans: dict[str, tuple[int, int]]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """A position in the header of one file. Every read is checked against the bytes that remain."""

    def __init__(self, file: Extent, label: str) -> None:
        self.file = file
        self.size = file.nbytes
        known = file.nbytes if isinstance(file.holder, np.ndarray) else 0
        self.buffer = file.read(0, known).data  # the beginning of the file
        self.label = label
        self.pos = 0
        self.alignment = DEFAULT_ALIGNMENT
        self.spans: dict[str, tuple[int, int]] = {}

    def fail(self, message: str, key: str | None = None, offset: int | None = None) -> NoReturn:
        raise GGUFError(f"{message}, in {self.label}", key=key, offset=self.pos if offset is None else offset)

    def expect(self, n_bytes: int, what: str, key: str | None) -> None:
        """Fail unless ``n_bytes`` are left."""
        if n_bytes > self.size - self.pos:
            self.fail(f"{what}: expected {n_bytes} bytes, got {self.size - self.pos}", key)

    def need(self, n_bytes: int, what: str, key: str | None) -> None:
        """Have the next ``n_bytes`` in the buffer. Fail unless they are left."""
        if n_bytes > len(self.buffer) - self.pos:
            self.expect(n_bytes, what, key)
            self.load(self.pos + n_bytes, key)

    def load(self, end: int, key: str | None) -> None:
        """Read on, at least to ``end``, which is inside the file."""
        if end > MAX_HEADER_BYTES:
            self.fail(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got a longer one", key)
        known = len(self.buffer)
        end = min(self.size, max(end, 2 * known, FIRST_PIECE_BYTES))
        buffer = np.empty(end, np.uint8)
        buffer[:known] = self.buffer
        self.file.read(known, end - known, buffer[known:])
        self.buffer = buffer.data

    def take(self, n_bytes: int, what: str, key: str | None) -> bytes:
        self.need(n_bytes, what, key)
        self.pos += n_bytes
        return bytes(self.buffer[self.pos - n_bytes : self.pos])

    def integer(self, layout: struct.Struct, what: str, key: str | None = None) -> int:
        self.need(layout.size, what, key)
        self.pos += layout.size
        return cast(int, layout.unpack_from(self.buffer, self.pos - layout.size)[0])

    def count(self, min_bytes: int, what: str, key: str | None = None) -> int:
        """A 64-bit count of things that take ``min_bytes`` or more each."""
        count = self.integer(U64, f"the number of {what}", key)
        self.expect(count * min_bytes, f"{count} {what}", key)
        return count

    def name(self, what: str, limit: int) -> str:
        """A key or a tensor name: 1 to ``limit`` bytes of UTF-8."""
        start = self.pos
        length = self.integer(U64, f"the length of a {what}")
        if not 1 <= length <= limit:
            self.fail(f"expected a {what} of 1 to {limit} bytes, got {length}", offset=start)
        raw = self.take(length, f"a {what}", None)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"expected a {what} in UTF-8, got {raw!r:.60}", offset=start)

    def numbers(self, kind: int, count: int, what: str, key: str) -> np.ndarray:
        """``count`` numbers of a value type: (count,), read-only, owning its bytes."""
        dtype, start = NUMBERS[kind], self.pos
        values = np.frombuffer(self.take(count * dtype.itemsize, what, key), dtype)
        if kind != BOOL:
            return values
        if values.size and values.max() > 1:
            wrong = int(np.argmax(values > 1))
            self.fail(f"expected a bool of 0 or 1, got {values[wrong]}", key, start + wrong)
        return values.view(np.bool_)

    def strings(self, count: int, key: str) -> StringArray:
        start = pos = self.pos
        unpack, ends = U64.unpack_from, array("q")
        append = ends.append
        while len(ends) < count:
            buffer = self.buffer
            try:
                for _ in range(count - len(ends)):
                    pos += STRING_LENGTH_BYTES + unpack(buffer, pos)[0]
                    append(pos - start)
            except (struct.error, OverflowError):  # a length, or the end after it, is not in the buffer
                if pos + STRING_LENGTH_BYTES > self.size:
                    break
                self.load(pos + STRING_LENGTH_BYTES, key)
        if len(ends) < count or pos > self.size:
            self.fail(f"expected {count} strings, got the end of the file", key, start)
        if pos > len(self.buffer):
            self.load(pos, key)
        self.pos = pos
        return StringArray(bytes(self.buffer[start:pos]), ends)

    def array_value(self, key: str, depth: int) -> Any:
        """An array value; those inside another array come as plain lists."""
        start = self.pos
        kind = self.integer(U32, "an array's element type", key)
        if kind in NUMBERS:
            count = self.count(NUMBERS[kind].itemsize, "array elements", key)
            numbers = self.numbers(kind, count, "an array", key)
            return numbers if depth == 1 else numbers.tolist()
        if kind == STRING:
            strings = self.strings(self.count(STRING_LENGTH_BYTES, "strings", key), key)
            return strings if depth == 1 else list(strings)
        if kind != ARRAY:
            self.fail(f"expected an array element type from 0 to 12, got {kind}", key, start)
        if depth == MAX_ARRAY_DEPTH:
            self.fail(f"expected arrays nested at most {MAX_ARRAY_DEPTH} deep, got deeper ones", key, start)
        count = self.count(ARRAY_HEADER_BYTES, "nested arrays", key)
        return [self.array_value(key, depth + 1) for _ in range(count)]

    def value(self, key: str) -> Any:
        start = self.pos
        kind = self.integer(U32, "a value type", key)
        if kind in NUMBERS:
            return self.numbers(kind, 1, "a number", key).item()
        if kind == STRING:
            length = self.integer(U64, "the length of a string", key)
            return self.take(length, "a string", key).decode("utf-8", "surrogateescape")
        if kind == ARRAY:
            return self.array_value(key, 1)
        self.fail(f"expected a value type from 0 to 12, got {kind}", key, start)

    def version(self) -> int:
        if not self.size:
            self.fail("expected a GGUF file, got an empty one")
        magic = self.take(len(MAGIC), "the magic number", None)
        if magic != MAGIC:
            self.fail(f"expected a GGUF file, which starts with {MAGIC!r}, got {magic!r}", offset=0)
        version = self.integer(U32, "the version")
        if version in VERSIONS:
            return version
        if version and version & 0xFFFF == 0:
            self.fail("expected a little-endian file, got a big-endian one", offset=len(MAGIC))
        self.fail(f"expected GGUF version 2 or 3, got {version}; convert the model again", offset=len(MAGIC))

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            start = self.pos
            key = self.name("key", MAX_KEY_BYTES)
            if key in found:
                self.fail("expected the key once, got it twice", key, start)
            found[key] = value = self.value(key)
            self.spans[key] = (start, self.pos)
            if key == "general.alignment":
                self.alignment = self.checked_alignment(value, start)
        return found

    def checked_alignment(self, value: Any, start: int) -> int:
        good = type(value) is int and MIN_ALIGNMENT <= value <= MAX_ALIGNMENT and value & (value - 1) == 0
        if not good:
            wanted = f"a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
            self.fail(f"expected {wanted}, got {value!r:.40}", "general.alignment", start)
        return cast(int, value)

    def tensor(self, shard: int) -> TensorInfo:
        """An entry of the tensor directory; its offset counts from the start of the data."""
        start = self.pos
        name = self.name("tensor name", MAX_NAME_BYTES)
        n_dims = self.integer(U32, "the number of dimensions", name)
        if not 1 <= n_dims <= MAX_DIMS:
            self.fail(f"expected 1 to {MAX_DIMS} dimensions, got {n_dims}", name, start)
        shape = tuple(self.integer(U64, "a dimension", name) for _ in range(n_dims))
        type_id = self.integer(U32, "the tensor type", name)
        offset = self.integer(U64, "the data offset", name)
        if 0 in shape:
            self.fail(f"expected dimensions >= 1, got shape {shape}", name, start)
        if type_id not in FORMAT_BY_ID or type_id > VARIANT:
            self.fail(f"expected a known tensor type, got {type_id}", name, start)
        info = TensorInfo(name, FORMAT_BY_ID[type_id], shape, offset, shard)
        if shape[0] % info.format.block_len:
            wanted = f"rows of a multiple of {info.format.block_len} for {info.format.name}"
            self.fail(f"expected {wanted}, got shape {shape}", name, start)
        if max(info.n_elements, info.nbytes) > MAX_INT64:
            self.fail(f"expected a size below 2^63, got shape {shape}", name, start)
        if offset % self.alignment:
            self.fail(f"expected an offset of a multiple of {self.alignment}, got {offset}", name, start)
        return info

    def tensors(self, count: int, shard: int) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            start = self.pos
            info = self.tensor(shard)
            if info.name in found:
                self.fail("expected the tensor once, got it twice", info.name, start)
            found[info.name] = info
        base = -(-self.pos // self.alignment) * self.alignment
        placed = {name: replace(info, offset=base + info.offset) for name, info in found.items()}
        if any(VARIANT + info.format.id in FORMAT_BY_ID for info in placed.values()):
            from oxillama.gguf.block_sizes import tell_apart  # on use

            for name, fmt in tell_apart(placed, self.alignment, self.size, self.fail).items():
                placed[name] = replace(placed[name], format=fmt)
        self.check_extents(placed)
        return placed

    def check_extents(self, tensors: dict[str, TensorInfo]) -> None:
        """Fail where tensors share bytes or reach past the end of the file. Gaps are fine."""
        end, before = 0, ""
        for info in sorted(tensors.values(), key=lambda info: info.offset):
            if info.offset < end:
                self.fail(f"expected data after those of {before}, got an overlap", info.name, info.offset)
            end, before = info.offset + info.nbytes, info.name
            if end > self.size:
                found = info.nbytes - (end - self.size)
                self.fail(
                    f"expected {info.nbytes} bytes of data, got {max(found, 0)}", info.name, info.offset
                )


def parse_header(file: Extent, label: str, shard: int = 0) -> Header:
    """Parse the header of the GGUF file ``file``; tensor data are not read.

    ``label`` names the file in errors, ``shard`` becomes `TensorInfo.shard`.

    Raises:
        GGUFError: the header is malformed, or tensors do not lie within the file side by side.
        ModelFileError: the file cannot be read, or has changed since it was opened.
    """
    cursor = _Cursor(file, label)
    version = cursor.version()
    n_tensors = cursor.count(MIN_TENSOR_BYTES, "tensors")
    n_keys = cursor.count(MIN_KEY_VALUE_BYTES, "keys")
    metadata = cursor.metadata(n_keys)
    tensors = cursor.tensors(n_tensors, shard)
    return Header(version, cursor.alignment, metadata, cursor.spans, tensors)
