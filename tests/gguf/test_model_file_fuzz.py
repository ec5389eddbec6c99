"""Hostile and random model files: only the library's errors, bounded time, bounded memory.

Whatever opens is then used in full, so that a check left out at opening shows as another exception.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oxillama.errors import GGUFError, ModelFileError
from oxillama.formats import FORMATS, Format
from oxillama.gguf.model_file import ModelFile, StringArray
from tests.support.gguf_writer import Tensor, f32_tensor, write

SECONDS = 5.0  # a fraction of a millisecond when nothing else runs
BYTES_PER_BYTE, BYTES_ANYWAY = 20, 1 << 16

SMALL = write(
    [
        ("general.architecture", "str", "llama"),
        ("n", "u32", 7),
        ("x", "f32", 0.5),
        ("on", "bool", True),
        ("tokens", "[str]", ["a", "bc", "", b"\xff"]),
        ("scores", "[f32]", [0.5, 1.5]),
        ("flags", "[bool]", [True, False]),
        ("nest", "[[i16]]", [[1], [2, 3]]),
    ],
    [f32_tensor("w", 1), Tensor("q", (32, 2), FORMATS["Q4_0"].id, bytes(36)), f32_tensor("v", 1)],
    alignment=32,
)


def use(model: ModelFile) -> None:
    """Touch all that an open file offers."""
    for value in model.metadata.values():
        for text in value if isinstance(value, StringArray) else [value]:
            if isinstance(text, str):
                text.encode("utf-8", "surrogateescape")
    for key in model.metadata:
        for kind in (int, float, bool, str, list[int], list[float], list[bool], list[str], np.ndarray):
            with suppress(GGUFError):
                model.get(key, kind)
    for name, info in model.tensors.items():
        data = model.data(name)
        assert data.size == info.nbytes > 0
        assert info.offset % model.alignment == 0
        data.sum()


def survive(source: bytes | Path, size: int) -> ModelFile | None:
    """Open and use ``source``; None where it is refused."""
    opened, start = 0, time.perf_counter()
    tracemalloc.start()
    try:
        with ModelFile.open(source) as model:
            opened = tracemalloc.get_traced_memory()[1]
            use(model)
            return model
    except (GGUFError, ModelFileError):
        opened = tracemalloc.get_traced_memory()[1]
        return None
    finally:
        tracemalloc.stop()
        assert time.perf_counter() - start < SECONDS
        assert opened <= BYTES_PER_BYTE * size + BYTES_ANYWAY


def test_the_small_file_is_sound() -> None:
    model = survive(SMALL, len(SMALL))
    assert model is not None
    assert list(model.tensors) == ["w", "q", "v"]
    assert len(model.metadata) == 9


def test_truncation_anywhere_is_refused() -> None:
    for length in range(len(SMALL)):
        assert survive(SMALL[:length], length) is None, length


def test_any_byte_may_be_wrong() -> None:
    for position in range(len(SMALL)):
        for wrong in (0, 1, 0x7F, 0x80, 0xFF, SMALL[position] ^ 1, SMALL[position] ^ 0x20):
            survive(SMALL[:position] + bytes([wrong]) + SMALL[position + 1 :], len(SMALL))


EDGES = [0, 1, 2, 7, 8, 9, 31, 32, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63]
EDGES += [2**64 - 32, 2**64 - 8, 2**64 - 1]
PIECES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(EDGES).map(lambda value: value.to_bytes(8, "little")),
    st.sampled_from(EDGES).map(lambda value: (value & 0xFFFFFFFF).to_bytes(4, "little")),
)


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with some pieces overwritten, inserted, removed or repeated."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        piece = draw(PIECES)
        how = draw(st.sampled_from(["overwrite", "overwrite", "insert", "remove", "repeat"]))
        end = at + len(piece)
        if how == "overwrite":
            data = data[:at] + piece + data[end:]
        elif how == "insert":
            data = data[:at] + piece + data[at:]
        elif how == "remove":
            data = data[:at] + data[end:]
        else:
            data = data[:end] + data[at:]
    return data


@given(mutated(SMALL))
@settings(max_examples=600, deadline=None)
def test_mutations_are_survived(data: bytes) -> None:
    survive(data, len(data))


@given(st.binary(max_size=300), st.sampled_from([b"", b"GGUF\2\0\0\0", b"GGUF\3\0\0\0"]), st.integers(0, 9))
@settings(max_examples=300, deadline=None)
@example(b"", b"", 0)
def test_random_bytes_are_survived(noise: bytes, start: bytes, n_keys: int) -> None:
    counts = bytes(8) + n_keys.to_bytes(8, "little") if start else b""
    survive(start + counts + noise, len(start + counts + noise))


def write_shards(folder: Path) -> list[Path]:
    paths = [folder / f"m-{index + 1:05d}-of-00003.gguf" for index in range(3)]
    for index, path in enumerate(paths):
        split = [("split.no", "u16", index), ("split.count", "u16", 3), ("split.tensors.count", "i32", 3)]
        path.write_bytes(write(split, [f32_tensor("abc"[index], 1)]))
    return paths


@given(st.data(), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_mutated_shards_are_survived(data: st.DataObject, index: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(Path(folder))
        paths[index].write_bytes(data.draw(mutated(paths[index].read_bytes())))
        model = survive(paths[0], sum(path.stat().st_size for path in paths))
        if model is not None and len(model.paths) == 3:
            assert len(model.tensors) == model.get("split.tensors.count", int)


# Valid files of any shape read back as they were written


INTEGERS = {"u8": (0, 2**8), "u16": (0, 2**16), "u32": (0, 2**32), "u64": (0, 2**64)}
INTEGERS |= {f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1)) for bits in (8, 16, 32, 64)}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high - 1) for kind, (low, high) in INTEGERS.items()},
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(max_size=20)
    | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
}


@st.composite
def typed_value(draw: st.DrawFn) -> tuple[str, Any]:
    """A kind for the writer and a value of it: a scalar, an array, or an array of arrays."""
    kind = draw(st.sampled_from(sorted(VALUES)))
    depth = draw(st.integers(0, 2))
    values = VALUES[kind]
    for _ in range(depth):
        values = st.lists(values, max_size=6)
    return "[" * depth + kind + "]" * depth, draw(values)


@st.composite
def tensor_of(draw: st.DrawFn, name: str) -> Tensor:
    fmt: Format = draw(st.sampled_from(list(FORMATS.values())))
    blocks, *rest = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    n_bytes = blocks * int(np.prod(rest, dtype=int)) * fmt.block_bytes
    fill = draw(st.binary(min_size=1, max_size=8))
    return Tensor(name, (blocks * fmt.block_len, *rest), fmt.id, (fill * n_bytes)[:n_bytes])


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16)
KEYS = NAMES.filter(lambda key: not key.startswith(("general.", "split.")))
TENSORS = st.lists(NAMES, max_size=5, unique=True).flatmap(lambda names: st.tuples(*map(tensor_of, names)))


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, StringArray) else value


@given(
    st.dictionaries(KEYS, typed_value(), max_size=6),
    TENSORS,
    st.sampled_from([None, 8, 16, 64, 4096]),
    st.sampled_from([2, 3]),
)
@settings(max_examples=300, deadline=None)
def test_valid_files_round_trip(
    metadata: dict[str, tuple[str, Any]], tensors: tuple[Tensor, ...], alignment: int | None, version: int
) -> None:
    items = [(key, kind, value) for key, (kind, value) in metadata.items()]
    model = ModelFile.open(write(items, tensors, alignment=alignment, version=version))
    assert (model.version, model.alignment) == (version, alignment or 32)
    found = {key: plain(value) for key, value in model.metadata.items() if key != "general.alignment"}
    assert found == {key: value for key, (_, value) in metadata.items()}
    assert list(model.tensors) == [tensor.name for tensor in tensors]
    for tensor in tensors:
        info = model.tensors[tensor.name]
        assert (info.shape, info.format.id) == (tensor.shape, tensor.type_id)
        assert model.data(tensor.name).tobytes() == tensor.data
