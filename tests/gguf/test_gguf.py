"""Parsing GGUF headers: what every value becomes, what is refused with which words, what it costs."""

from __future__ import annotations

import os
import struct
import tracemalloc
from typing import Any

import pytest

from oxillama.base.formats import FORMATS, W8A8, Format
from oxillama.errors import GGUFError
from oxillama.gguf.header import MAX_ARRAY_DEPTH, MAX_NAME_BYTES, StringArray
from oxillama.gguf.model_file import ModelFile
from tests.support.gguf_writer import (
    Tensor,
    assemble,
    entry,
    f32_tensor,
    pair,
    payload,
    string,
    u32,
    u64,
    vocabulary,
    write,
)

F32, Q4_0 = FORMATS["F32"].id, FORMATS["Q4_0"].id
HUGE = 2**64 - 1
ALIGNMENT = "general.alignment"


def refused(data: bytes, words: str, key: str | None = None) -> GGUFError:
    """Check that ``data`` is refused with these words about this key."""
    with pytest.raises(GGUFError, match=words) as caught:
        ModelFile.open(data)
    assert caught.value.key == key
    return caught.value


# What is read


SCALARS = [
    ("u8", 255), ("i8", -128), ("u16", 65535), ("i16", -32768), ("u32", 2**32 - 1), ("i32", -(2**31)),
    ("u64", 2**64 - 1), ("i64", -(2**63)), ("f32", 0.5), ("f64", 0.1), ("bool", True), ("bool", False),
    ("str", "naïve 日本"), ("str", ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), SCALARS)
def test_scalars_become_python_values(kind: str, value: Any) -> None:
    found = ModelFile.open(write([("k", kind, value)])).metadata["k"]
    assert found == value
    assert type(found) is type(value)


ARRAYS = [
    ("u8", [0, 255]), ("i8", [-1]), ("u16", [1]), ("i16", [-2, 2]), ("u32", [2**32 - 1]), ("i32", [-1, 1]),
    ("u64", [2**64 - 1]), ("i64", [-(2**63)]), ("f32", [0.5, -1.0]), ("f64", [0.1]), ("bool", [True, False]),
    ("f32", []),
]  # fmt: skip
DTYPES = {"u": "uint", "i": "int", "f": "float"}


@pytest.mark.parametrize(("kind", "values"), ARRAYS)
def test_arrays_of_numbers_keep_their_type(kind: str, values: list[Any]) -> None:
    found = ModelFile.open(write([("k", f"[{kind}]", values)])).metadata["k"]
    assert found.dtype.name == ("bool" if kind == "bool" else DTYPES[kind[0]] + kind[1:])
    assert found.tolist() == values
    assert not found.flags.writeable


def test_string_array_is_a_sequence() -> None:
    words = ["", "a", "日本", "", "x" * 300, ""]
    found = ModelFile.open(write([("k", "[str]", words)])).metadata["k"]
    assert isinstance(found, StringArray)
    assert list(found) == words
    assert [found[i] for i in range(-6, 6)] == words * 2
    assert found[1:5:2] == words[1:5:2]
    assert found.index("日本") == 2
    for outside in (6, -7):
        with pytest.raises(IndexError):
            found[outside]
    assert list(ModelFile.open(write([("k", "[str]", [])])).metadata["k"]) == []


def test_strings_that_are_not_utf8_keep_their_bytes() -> None:
    raw = [b"\xff\xfe", b"a\x80b", "\ud800".encode("utf-8", "surrogatepass"), b"\xe6\x97", b"ok"]
    model = ModelFile.open(write([("one", "str", raw[0]), ("many", "[str]", raw)]))
    assert [text.encode("utf-8", "surrogateescape") for text in model.metadata["many"]] == raw
    assert [model.metadata["many"][i].encode("utf-8", "surrogateescape") for i in range(5)] == raw
    assert model.metadata["one"].encode("utf-8", "surrogateescape") == raw[0]


def test_nested_arrays_become_lists() -> None:
    nested = [[[1, 2], []], [], [[3]]]
    assert ModelFile.open(write([("k", "[[[i32]]]", nested)])).metadata["k"] == nested
    assert ModelFile.open(write([("k", "[[str]]", [["a"], []])])).metadata["k"] == [["a"], []]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 8, 32, 4096])
def test_tensors_are_listed_and_handed_out(version: int, alignment: int | None) -> None:
    tensors = [f32_tensor("a", 1, 7), Tensor("b", (32, 2, 3), Q4_0, bytes(range(108))), f32_tensor("c", 2, 9)]
    model = ModelFile.open(write([("k", "u8", 1)], tensors, alignment=alignment, version=version))
    assert (model.version, model.alignment) == (version, alignment or 32)
    assert list(model.tensors) == ["a", "b", "c"]
    b = model.tensors["b"]
    assert (b.name, b.format, b.shape, b.shard) == ("b", FORMATS["Q4_0"], (32, 2, 3), 0)
    assert (b.n_elements, b.nbytes) == (192, 108)
    assert all(info.offset % model.alignment == 0 for info in model.tensors.values())
    for one in tensors:
        data = model.data(one.name)
        assert (data.dtype.name, data.ndim, data.tobytes()) == ("uint8", 1, one.data)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_every_format_is_sized(fmt: Format) -> None:
    data = os.urandom(40 * 2 * fmt.block_bytes)
    model = ModelFile.open(write([], [Tensor("w", (2 * fmt.block_len, 40), fmt.file_id, data)]))
    assert model.tensors["w"].format is fmt
    assert model.data("w").tobytes() == data


# Q2_0 has blocks of 64 or of 128: 18 bytes for 64 weights, or 34 for 128


def q2_0(name: str, cols: int, rows: int, block_len: int) -> Tensor:
    return Tensor(name, (cols, rows), 42, os.urandom(cols * rows // block_len * (2 + block_len // 4)))


@pytest.mark.parametrize("alignment", [None, 8, 4096])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)])
def test_the_size_of_a_tensor_tells_the_size_of_its_blocks(
    alignment: int | None, order: tuple[int, ...]
) -> None:
    """Whatever follows it, in a file that has both."""
    tensors = [q2_0("a", 1024, 600, 64), q2_0("b", 1024, 600, 128), f32_tensor("c", 1), q2_0("d", 192, 5, 64)]
    model = ModelFile.open(write([], [tensors[i] for i in order], alignment=alignment))
    formats = {name: model.tensors[name].format.name for name in "abd"}
    assert formats == {"a": "Q2_0", "b": "Q2_0_G128", "d": "Q2_0"}  # rows of 192 are no blocks of 128
    for one in tensors:
        assert model.data(one.name).tobytes() == one.data


@pytest.mark.parametrize("block_len", [64, 128])
def test_a_small_tensor_has_the_blocks_of_the_others(block_len: int) -> None:
    """288 and 272 bytes are the same with padding."""
    tensors = [q2_0("small", 128, 8, block_len), q2_0("large", 1024, 40, block_len), f32_tensor("c", 1)]
    model = ModelFile.open(write([], tensors))
    assert {model.tensors[name].format.block_len for name in ("small", "large")} == {block_len}


def test_a_size_that_fits_no_block_or_both_is_refused() -> None:
    both = [q2_0("first", 1024, 40, 64), q2_0("second", 1024, 40, 128), q2_0("small", 128, 8, 64)]
    for tensors in (both, both[2:]):
        data = write([], [*tensors, f32_tensor("c", 1)])
        refused(data, "expected a size that tells Q2_0 or Q2_0_G128, got one that fits both", "small")
    file = assemble([], [entry("w", (1024, 40), 42, 0), entry("v", (8,), F32, 16384)], bytes(16384 + 32))
    wanted = r"expected 11520 bytes of data \(Q2_0\) or 10880 bytes of data \(Q2_0_G128\), got 16384"
    refused(file, wanted, "w")
    for size in (0, 10879, 11521):
        file = assemble([], [entry("w", (1024, 40), 42, 0)], bytes(size))
        refused(file, f"10880 bytes of data .*, got {size}", "w")
    file = assemble([], [entry("w", (1024, 40), 42, 0)], bytes(10880))
    assert ModelFile.open(file).tensors["w"].nbytes == 10880


def test_numbers_of_formats_that_no_file_has_are_refused() -> None:
    for fmt in (W8A8, FORMATS["Q2_0_G128"]):
        with pytest.raises(GGUFError, match=f"expected a known tensor type, got {fmt.id}"):
            ModelFile.open(assemble([], [entry("w", (1024, 40), fmt.id, 0)], bytes(1 << 18)))


def test_gaps_and_unpadded_ends_are_fine() -> None:
    entries = [entry("a", (8,), F32, 64), entry("b", (1,), F32, 0)]
    model = ModelFile.open(assemble([], entries, bytes(64) + b"\1" * 32))
    assert model.data("a").tobytes() == b"\1" * 32


def test_a_file_may_hold_metadata_only() -> None:
    model = ModelFile.open(write([("k", "u8", 1)]))
    assert (model.metadata, model.tensors) == ({"k": 1}, {})


# What is refused: one seed for each class of flaw known from other readers


def with_entry(raw: bytes) -> bytes:
    return assemble([], [raw], bytes(4096))


def both(first: bytes, second: bytes) -> bytes:
    return assemble([], [first, second], bytes(64))


def array_of(element: int, count: int, rest: bytes = b"") -> bytes:
    return assemble([string("k") + u32(9) + u32(element) + u64(count) + rest])


MALFORMED: dict[str, tuple[bytes, str, str | None]] = {
    "other magic": (b"GGML" + write()[4:], "expected a GGUF file, .* got b'GGML'", None),
    "version 0": (write(version=0), "expected GGUF version 2 or 3, got 0", None),
    "version 1": (write(version=1), "expected GGUF version 2 or 3, got 1", None),
    "version 4": (write(version=4), "expected GGUF version 2 or 3, got 4", None),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "expected a little-endian file", None),
    "n_kv past the end": (assemble(n_pairs=1), "1 keys: expected 14 bytes, got 0", None),
    "n_kv huge": (assemble(n_pairs=HUGE), f"{HUGE} keys", None),
    "n_tensors past the end": (assemble(n_entries=1), "1 tensors: expected 33 bytes", None),
    "n_tensors huge": (assemble(n_entries=HUGE), f"{HUGE} tensors", None),
    "43 bytes": (assemble([string("k" * 3) + u32(9) + u32(8)], n_pairs=1), "number of strings", "kkk"),
    "key empty": (assemble([pair("", "u32", 1)]), "expected a key of 1 to 65535 bytes, got 0", None),
    "key too long": (assemble([pair("k" * 65536, "u32", 1)]), "1 to 65535 bytes, got 65536", None),
    "key length huge": (assemble([u64(HUGE) + bytes(20)]), f"expected a key of .* got {HUGE}", None),
    "key past the end": (assemble([u64(60000) + bytes(20)]), "a key: expected 60000 bytes", None),
    "key not UTF-8": (assemble([pair(b"\xff", "u32", 1)]), "expected a key in UTF-8", None),
    "key twice": (assemble([pair("k", "u32", 1), pair("k", "str", "x")]), "expected the key once", "k"),
    "value type unknown": (assemble([string("k") + u32(13) + bytes(8)]), "a value type .*, got 13", "k"),
    "value past the end": (assemble([string("k") + u32(10) + bytes(7)]), "expected 8 bytes, got 7", "k"),
    "bool 2": (assemble([string("k") + u32(7) + b"\2"]), "expected a bool of 0 or 1, got 2", "k"),
    "bool 255 in an array": (array_of(7, 3, b"\0\1\xff"), "expected a bool of 0 or 1, got 255", "k"),
    "string past the end": (assemble([string("k") + u32(8) + u64(9) + b"x"]), "expected 9 bytes, got 1", "k"),
    "string huge": (assemble([string("k") + u32(8) + u64(HUGE) + b"x"]), f"expected {HUGE} bytes", "k"),
    "array type unknown": (array_of(13, 0), "expected an array element type .*, got 13", "k"),
    "array past the end": (array_of(5, 2, bytes(7)), "2 array elements: expected 8 bytes, got 7", "k"),
    "array huge": (array_of(12, HUGE), f"{HUGE} array elements", "k"),
    "array wraps to 0 bytes": (array_of(12, 2**61), "array elements", "k"),
    "strings past the end": (array_of(8, 2, string("abc") + u64(1)), "expected 2 strings", "k"),
    "string length cut": (array_of(8, 2, string("abcdefgh") + bytes(4)), "expected 2 strings", "k"),
    "last string past the end": (array_of(8, 1, u64(4) + b"abc"), "expected 1 strings", "k"),
    "strings count huge": (array_of(8, HUGE), f"{HUGE} strings", "k"),
    "string length wraps": (array_of(8, 2, u64(HUGE - 7) + bytes(8)), "expected 2 strings", "k"),
    "string length negative": (array_of(8, 2, u64(2**63) + bytes(8)), "expected 2 strings", "k"),
    "nested count huge": (array_of(9, HUGE), f"{HUGE} nested arrays", "k"),
    "nested too deep": (write([("k", "[[[[[u8]]]]]", [[[[[1]]]]])]), "nested at most 4 deep", "k"),
    "nested without end": (array_of(9, 1, (u32(9) + u64(1)) * 5000), "nested at most 4 deep", "k"),
    "alignment 0": (write([(ALIGNMENT, "u32", 0)]), "got 0", ALIGNMENT),
    "alignment 4": (write([(ALIGNMENT, "u32", 4)]), "power of two from 8", ALIGNMENT),
    "alignment 48": (write([(ALIGNMENT, "u32", 48)]), "got 48", ALIGNMENT),
    "alignment huge": (write([(ALIGNMENT, "u32", 2**31)]), "got 2147483648", ALIGNMENT),
    "alignment a float": (write([(ALIGNMENT, "f32", 32.0)]), "got 32.0", ALIGNMENT),
    "alignment true": (write([(ALIGNMENT, "bool", True)]), "got True", ALIGNMENT),
    "alignment a string": (write([(ALIGNMENT, "str", "x" * 99)]), "got 'xxx", ALIGNMENT),
    "tensor name empty": (with_entry(entry("", (8,), F32, 0)), "a tensor name of .*, got 0", None),
    "tensor name long": (with_entry(entry("n" * 65, (8,), F32, 0)), "1 to 64 bytes, got 65", None),
    "tensor name not UTF-8": (with_entry(entry(b"\xc0", (8,), F32, 0)), "a tensor name in UTF-8", None),
    "tensor name twice": (both(entry("w", (8,), F32, 0), entry("w", (8,), F32, 32)), "got it twice", "w"),
    "no dimensions": (with_entry(entry("w", (), F32, 0)), "1 to 4 dimensions, got 0", "w"),
    "five dimensions": (with_entry(entry("w", (1,) * 5, F32, 0)), "1 to 4 dimensions, got 5", "w"),
    "dimensions huge": (with_entry(string("w") + u32(2**32 - 1) + bytes(20)), "got 4294967295", "w"),
    "dimension zero": (with_entry(entry("w", (8, 0), F32, 0)), r">= 1, got shape \(8, 0\)", "w"),
    "elements wrap": (with_entry(entry("w", (2**32, 2**32), F32, 0)), "a size below", "w"),
    "bytes wrap": (with_entry(entry("w", (2**62,), F32, 0)), "a size below", "w"),
    "elements wrap to fit": (with_entry(entry("w", (2**33, 2**31 + 1), F32, 0)), "a size below", "w"),
    "row of half a block": (with_entry(entry("w", (48, 2), Q4_0, 0)), "a multiple of 32 for Q4_0", "w"),
    "tensor type unknown": (with_entry(entry("w", (8,), 4, 0)), "expected a known tensor type, got 4", "w"),
    "tensor type huge": (with_entry(entry("w", (8,), 2**32 - 1, 0)), "tensor type, got 4294967295", "w"),
    "offset not aligned": (with_entry(entry("w", (8,), F32, 16)), "a multiple of 32, got 16", "w"),
    "offset past the end": (with_entry(entry("w", (8,), F32, 4096)), "expected 32 bytes of data, got 0", "w"),
    "offset huge": (with_entry(entry("w", (8,), F32, 2**64 - 32)), "expected 32 bytes of data, got 0", "w"),
    "data past the end": (with_entry(entry("w", (1025,), F32, 0)), "4100 bytes of data, got 4096", "w"),
    "no data": (assemble([], [entry("w", (8,), F32, 0)]), "expected 32 bytes of data, got 0", "w"),
    "overlap": (both(entry("v", (9,), F32, 0), entry("w", (8,), F32, 32)), "data after those of v", "w"),
    "same place": (both(entry("v", (8,), F32, 0), entry("w", (8,), F32, 0)), "data after those of v", "w"),
}  # fmt: skip


@pytest.mark.parametrize("flaw", MALFORMED)
def test_malformed_files_are_refused(flaw: str) -> None:
    data, words, key = MALFORMED[flaw]
    error = refused(data, words, key)
    assert error.offset is not None
    assert "<bytes>" in str(error)


def test_limits_are_inclusive() -> None:
    deep: Any = 1
    for _ in range(MAX_ARRAY_DEPTH):
        deep = [deep]
    kind = "[" * MAX_ARRAY_DEPTH + "u8" + "]" * MAX_ARRAY_DEPTH
    name = "n" * MAX_NAME_BYTES
    model = ModelFile.open(write([("k" * 65535, kind, deep)], [f32_tensor(name)]))
    assert model.metadata["k" * 65535] == deep
    assert list(model.tensors) == [name]


def test_errors_say_where() -> None:
    head = assemble([pair("first", "u32", 1)])
    flawed = assemble([pair("first", "u32", 1), string("k") + u32(13) + bytes(8)])
    error = refused(flawed, "expected a value type", "k")
    assert error.offset == len(head) + len(string("k"))
    assert refused(array_of(7, 3, b"\0\1\xff"), "a bool", "k").offset == len(array_of(7, 3)) + 2


# What it costs


DENSE: dict[str, bytes] = {
    "keys": assemble([string(f"{i:x}") + u32(0) + b"\1" for i in range(20_000)]),
    "empty strings": array_of(8, 100_000, bytes(800_000)),
    "empty nested arrays": array_of(9, 50_000, payload("[u8]", []) * 50_000),
    "nested bytes": array_of(9, 1, payload("[u8]", bytes(500_000))),
    "nested floats": array_of(9, 1, payload("[f32]", [0.1] * 100_000)),
    "nested strings": array_of(9, 1, payload("[str]", ["é"] * 50_000)),
    "tensors": assemble([], [entry(f"{i:x}", (1,), F32, 32 * i) for i in range(10_000)], bytes(320_000)),
    "tensors outside": assemble([], [entry(f"{i:x}", (1,), F32, 32 * i) for i in range(10_000)]),
    "vocabulary": vocabulary(20_000, 20_000),
}


@pytest.mark.parametrize("name", DENSE)
def test_memory_is_bounded_by_the_size_of_the_file(name: str) -> None:
    data = DENSE[name]
    tracemalloc.start()
    try:
        try:
            model = ModelFile.open(data)
            assert model.file_size == len(data)
        except GGUFError:
            assert name == "tensors outside"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(data) + 65536, f"{peak / len(data):.1f} times the file"
