"""Cut and valid model files; tests/fuzz has hostile ones.

Whatever opens is then used in full, so that a check left out at opening shows as another exception.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama.base.formats import FORMATS, Format
from oxillama.errors import GGUFError
from oxillama.gguf.model_file import ModelFile, StringArray
from tests.fuzz.targets.containers import survive
from tests.support.gguf_writer import Tensor, f32_tensor, write
from tests.support.spread import slow

SMALL = write(
    [
        ("general.architecture", "str", "llama"), ("n", "u32", 7), ("x", "f32", 0.5), ("on", "bool", True),
        ("tokens", "[str]", ["a", "bc", "", b"\xff"]), ("scores", "[f32]", [0.5, 1.5]),
        ("flags", "[bool]", [True, False]), ("nest", "[[i16]]", [[1], [2, 3]]),
    ],
    [f32_tensor("w", 1), Tensor("q", (32, 2), FORMATS["Q4_0"].id, bytes(36)), f32_tensor("v", 1)],
    alignment=32,
)  # fmt: skip


def outcome(data: bytes) -> ModelFile | None:
    """Opens and uses a file in full, within bounds of memory; None where it is refused."""
    try:
        return survive(data, len(data))
    except GGUFError:
        return None


def test_the_small_file_is_sound() -> None:
    model = outcome(SMALL)
    assert model is not None
    assert list(model.tensors) == ["w", "q", "v"]
    assert len(model.metadata) == 9


def test_truncation_anywhere_is_refused() -> None:
    for length in range(len(SMALL)):
        assert outcome(SMALL[:length]) is None, length


@pytest.mark.parametrize("flipped", [0x01, slow(0x20)])
def test_any_byte_may_be_wrong(flipped: int) -> None:
    for position in range(len(SMALL)):
        outcome(SMALL[:position] + bytes([SMALL[position] ^ flipped]) + SMALL[position + 1 :])


@pytest.mark.parametrize("wrong", [0xFF, slow(0), slow(1), slow(0x7F), slow(0x80)])
def test_any_byte_may_be_another(wrong: int) -> None:
    for position in range(len(SMALL)):
        outcome(SMALL[:position] + bytes([wrong]) + SMALL[position + 1 :])


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
    fmt: Format = draw(st.sampled_from([fmt for fmt in FORMATS.values() if fmt.file_id != 42]))
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
