"""The format table agrees with the `gguf` package and with itself."""

from __future__ import annotations

import gguf
import pytest

from oxillama.base.formats import FLOATS, FORMAT_BY_ID, FORMATS, IN_MEMORY, LAYOUTS, ROUNDED, VARIANT, Format
from oxillama.reference.blocks import TAKE_APART
from tests.support.kernels import RUNNABLE


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_ids_and_sizes_of_the_gguf_package(name: str) -> None:
    fmt = FORMATS[name]
    assert fmt.name == name
    try:
        kind = gguf.GGMLQuantizationType[name]
    except KeyError:
        pytest.skip(f"this gguf package is older than {name}")
    sizes = gguf.GGML_QUANT_SIZES[kind]
    if name == "Q8_1":  # the package still has the two scales of 4 bytes each that it had in 2023
        assert sizes == (32, 40)
        sizes = (32, 36)  # sizeof(block_q8_1) in ggml-common.h
    assert (fmt.id, (fmt.block_len, fmt.block_bytes)) == (int(kind), sizes)


def test_ids_are_distinct() -> None:
    assert len(FORMAT_BY_ID) == len(FORMATS)
    assert all(FORMAT_BY_ID[fmt.id] is fmt for fmt in FORMATS.values())
    assert not {fmt.id for fmt in ROUNDED.values()} & set(FORMAT_BY_ID)  # no file has them
    assert len({fmt.id for fmt in IN_MEMORY.values()}) == len(IN_MEMORY)


def test_formats_of_one_number_differ_in_their_blocks() -> None:
    variants = [fmt for fmt in FORMATS.values() if fmt.id != fmt.file_id]
    assert [fmt.name for fmt in variants] == ["Q2_0_G128"]
    sizes = {name: (FORMATS[name].block_len, FORMATS[name].block_bytes) for name in ("Q2_0", "Q2_0_G128")}
    assert sizes == {"Q2_0": (64, 18), "Q2_0_G128": (128, 34)}  # block_q2_0 in ggml-common.h is the first
    for fmt in variants:
        other = FORMAT_BY_ID[fmt.file_id]
        assert fmt.id == VARIANT + other.id and other.id == other.file_id
        assert fmt.block_len % other.block_len == 0 and fmt.bits_per_weight != other.bits_per_weight


def test_every_format_of_the_gguf_package_is_listed() -> None:
    assert {kind.name for kind in gguf.GGMLQuantizationType} <= set(FORMATS)


def test_layouts_are_numbered_in_order_and_used() -> None:
    assert [layout.id for layout in LAYOUTS.values()] == list(range(len(LAYOUTS)))
    activations = {"f32", "bf16", "q8_32", "q8_128", "q8_256", "q8_row"}
    assert {layout.activation for layout in LAYOUTS.values()} == activations
    assert {fmt.layout for fmt in (*RUNNABLE, *ROUNDED.values())} == set(LAYOUTS)


def test_the_reference_states_every_format_with_kernels() -> None:
    assert {fmt.name for fmt in RUNNABLE} == {*TAKE_APART, *FLOATS}


def test_sizes() -> None:
    fmt = Format("X", 99, 32, 18)
    assert fmt.bits_per_weight == 4.5
    assert fmt.nbytes(320) == 180
    assert fmt.layout is None
