"""Dequantizing and packing: bit-equal to the `gguf` package, and every value in its place."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from oxillama._kernels import pack
from oxillama.base.formats import FORMATS, LAYOUTS, ROUNDED, Format
from oxillama.reference.blocks import dequantize as stated
from oxillama.reference.products import quantize_activations
from tests.support.kernels import (
    PRESENT,
    RUNNABLE,
    apply,
    linear,
    packed,
    product,
    put_scale,
    refuses,
    same_bits,
    scale_places,
)

BLOCKED = [fmt for fmt in RUNNABLE if fmt.block_len > 1]
HALF = [fmt for fmt in RUNNABLE if fmt.block_bytes == 2]
by_name = pytest.mark.parametrize("fmt", RUNNABLE, ids=lambda fmt: fmt.name)

# f16 bits
ZEROS, DENORMALS, NORMALS = (0x0000, 0x8000), (0x0001, 0x83FF), (0x0400, 0x3C00, 0xBC01, 0x7BFF)
INFINITIES, NANS = (0x7C00, 0xFC00), (0x7E00, 0x7C01, 0xFFFF)  # one NaN is signalling
SCALES = ZEROS + DENORMALS + NORMALS + INFINITIES + NANS


def dequantize(fmt: Format, blocks: np.ndarray, n_threads: int = 1) -> np.ndarray:
    out = np.full(blocks.size // fmt.block_bytes * fmt.block_len, 7, np.float32)
    pack.dequantize(fmt.id, np.ascontiguousarray(blocks).reshape(-1), out, n_threads)
    return out


UNKNOWN_TO_GGUF = {"Q8_1", "Q8_K", "Q1_0"} | set(FORMATS) - set(gguf.GGMLQuantizationType.__members__)
"""Formats that `gguf.quants` does not dequantize: `oxillama.reference` does."""


def reference(fmt: Format, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if fmt.name in UNKNOWN_TO_GGUF:
            return stated(fmt, blocks)
        values = gguf.quants.dequantize(np.ascontiguousarray(blocks), gguf.GGMLQuantizationType[fmt.name])
    return values.astype(np.float32).reshape(-1)


def all_codes(n_bytes: int, seed: int) -> np.ndarray:
    """256 blocks in which every byte takes each of its values once: uint8 (256, n_bytes)."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(256) for _ in range(n_bytes)], axis=1).astype(np.uint8)


@by_name
def test_dequantize_of_every_byte_value_is_that_of_the_gguf_package(fmt: Format) -> None:
    for seed in range(8):
        blocks = all_codes(fmt.block_bytes, seed)
        assert same_bits(dequantize(fmt, blocks), reference(fmt, blocks))


@pytest.mark.parametrize("fmt", BLOCKED, ids=lambda fmt: fmt.name)
def test_dequantize_of_every_kind_of_scale_is_that_of_the_gguf_package(fmt: Format) -> None:
    for at in scale_places(fmt.name):
        blocks = all_codes(fmt.block_bytes, 9)
        put_scale(fmt.name, blocks, 0x3C00)  # 1.0
        for scale in SCALES:
            put_scale(fmt.name, blocks, scale, at)
            assert same_bits(dequantize(fmt, blocks), reference(fmt, blocks)), hex(scale)


@pytest.mark.parametrize("fmt", HALF, ids=lambda fmt: fmt.name)
def test_every_half_float_is_dequantized(fmt: Format) -> None:
    values = np.arange(65536, dtype="<u2").view(np.uint8)
    found = dequantize(fmt, values)
    assert same_bits(found, reference(fmt, values.reshape(1, -1)))
    assert np.isnan(found).sum() == 2 * (1023 if fmt.name == "F16" else 127)


@by_name
def test_threads_change_nothing(fmt: Format) -> None:
    n = max(1, 300_000 // fmt.block_len)
    blocks = np.random.default_rng(1).integers(0, 256, (n, fmt.block_bytes), np.uint8)
    alone = dequantize(fmt, blocks)
    assert same_bits(alone[: 1000 * fmt.block_len], reference(fmt, blocks[:1000]))
    assert same_bits(dequantize(fmt, blocks, 3), alone)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
@by_name
def test_every_packed_value_comes_back_from_its_place(fmt: Format, rows: int) -> None:
    """Row r, column c is what a one-hot activation at c brings out of row r."""
    cols = 3 * fmt.block_len if fmt.block_len > 1 else 37
    rng = np.random.default_rng(rows)
    data = rng.integers(0, 256, (rows, fmt.nbytes(cols)), np.uint8)
    blocks = data.reshape(-1, fmt.block_bytes)
    if fmt.block_len > 1:
        put_scale(fmt.name, blocks, rng.uniform(0.5, 2, len(blocks)).astype(np.float16).view(np.uint16))
    if fmt.block_len == 1:
        data = rng.standard_normal((rows, cols)).astype("<f4")
        data = {"F16": data.astype("<f2"), "BF16": data.view("<u2")[:, 1::2]}.get(fmt.name, data)
        data = np.ascontiguousarray(data).view(np.uint8)
    one_hot = np.eye(cols, dtype=np.float32) * np.float32(127)  # codes of 127 and a scale of 1: exact
    out = apply(linear(PRESENT[0], [(fmt.name, data)], cols), one_hot)
    assert same_bits(out, product(fmt.name, data, one_hot))


@by_name
def test_packed_bytes_are_a_function_of_the_file(fmt: Format) -> None:
    """Padding included, on any number of threads, whatever the memory held (`packed` fills it)."""
    cols = 3 * fmt.block_len if fmt.block_len > 1 else 5  # an odd number of scales is padded
    rows = np.random.default_rng(4).integers(0, 256, (37, fmt.nbytes(cols)), np.uint8)
    first = packed(fmt.name, rows, cols)[2]
    out = np.zeros_like(first)
    pack.pack(fmt.id, rows.reshape(-1), len(rows), cols, out, 4)
    assert np.array_equal(first, out)
    assert first.nbytes == pack.packed_bytes(fmt.id, 37, cols) == 3 * pack.packed_bytes(fmt.id, 16, cols)


@pytest.mark.parametrize("fmt", ROUNDED.values(), ids=lambda fmt: fmt.name)
def test_rows_that_packing_rounds_have_their_codes_and_sums_in_the_panel(fmt: Format) -> None:
    """A span has scales, sums of codes, then codes, four columns of 16 rows at a time; missing rows are 0."""
    rows, cols = 5, 160
    w = np.random.default_rng(6).standard_normal((rows, cols)).astype("<f4")
    w[1] = 0
    panel = packed(fmt.name, w.view(np.uint8), cols)[2]
    span = LAYOUTS[fmt.layout or ""].span
    for first in range(0, cols, span):
        columns = w[:, first : first + span]
        n = columns.shape[1]
        whole = quantize_activations(columns, n)
        wanted = np.zeros((16, n), np.int8)
        wanted[:rows] = whole.codes[:, 0]
        assert (panel[:64].view("<f4")[:rows] == whole.scale[:, 0]).all()
        assert not panel[4 * rows : 64].any()
        assert (panel[64:128].view("<i4") == wanted.sum(axis=1, dtype=np.int64)).all()
        codes, panel = panel[128 : 128 + 16 * n].view(np.int8), panel[128 + 16 * n :]
        assert (codes.reshape(n // 4, 16, 4) == wanted.reshape(16, -1, 4).swapaxes(0, 1)).all()
    assert not len(panel)


def test_no_file_holds_rows_that_packing_rounds() -> None:
    for fmt in ROUNDED.values():
        given = fmt.id, np.zeros(128, np.uint8), np.zeros(32, np.float32)
        refuses("format_id: expected a format of files, got", pack.dequantize, *given)


@pytest.mark.skipif(os.name == "nt", reason="there Python reads the file")
@by_name
def test_packing_from_a_file_is_packing(fmt: Format, tmp_path: Path) -> None:
    """The rows, the threads and the reads of each thread vary; a short file is an error."""
    path, rng = tmp_path / "blocks", np.random.default_rng(5)
    for rows, blocks in ((1, 1), (37, 3), (16 * 9, 40), (16, 600)):
        cols = blocks * (fmt.block_len if fmt.block_len > 1 else 32)
        data = rng.integers(0, 256, rows * fmt.nbytes(cols), np.uint8)
        path.write_bytes(bytes(77) + data.tobytes())
        wanted = np.zeros(pack.packed_bytes(fmt.id, rows, cols), np.uint8)
        pack.pack(fmt.id, data, rows, cols, wanted)
        with path.open("rb") as file:
            for n_threads in (1, 3):
                out = np.full_like(wanted, 255)
                assert pack.pack_file(fmt.id, file.fileno(), 77, rows, cols, out, n_threads) is True
                assert np.array_equal(out, wanted)
                assert pack.pack_file(fmt.id, file.fileno(), 78, rows, cols, out, n_threads) is False
            given = fmt.id, file.fileno(), 77
            refuses("out: expected", pack.pack_file, *given, rows, cols, out[:-1])
            refuses("shape: expected rows of blocks", pack.pack_file, *given, 0, cols, out)
        assert pack.pack_file(fmt.id, -1, 77, rows, cols, out) is False


WIDER = {
    "IQ1_S": 2.29, "IQ1_M": 2.04, "IQ2_XXS": 1.73, "IQ2_XS": 1.55, "IQ2_S": 1.4, "IQ3_XXS": 1.41,
    "IQ3_S": 1.26, "TQ1_0": 1.23, "Q1_0": 1.34, "MXFP4": 1.06, "Q2_0": 1.12,
    "Q2_0_G128": 1.18,
}  # fmt: skip
"""How much more than the file: rows of a grid are spelled out, base-3 digits and shared scales unpacked."""

NARROWER = {"Q8_1": 0.94, "Q8_K": 0.89}  # their sums are not kept


@by_name
def test_packing_takes_no_more_memory_than_the_file(fmt: Format) -> None:
    """Within a few percent: headers are padded to 64 bytes, minima and scales widened to whole bytes."""
    rows, cols = 16, 1024
    ratio = pack.packed_bytes(fmt.id, rows, cols) / fmt.nbytes(rows * cols)
    assert NARROWER.get(fmt.name, 1) <= ratio <= WIDER.get(fmt.name, 1.05)


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.layout is None], ids=lambda fmt: fmt.name)
def test_a_format_without_kernels_is_refused(fmt: Format) -> None:
    text = f"format_id: expected .*, got {fmt.id}"
    refuses(text, pack.packed_bytes, fmt.id, 16, 256)
    refuses(text, pack.dequantize, fmt.id, np.zeros(1024, np.uint8), np.zeros(256, np.float32))


@by_name
def test_wrong_sizes_and_types_are_refused(fmt: Format) -> None:
    cols = 2 * fmt.block_len
    blocks = np.zeros(fmt.nbytes(16 * cols), np.uint8)
    out = np.zeros(16 * cols, np.float32)
    data = np.zeros(pack.packed_bytes(fmt.id, 16, cols), np.uint8)
    strided = np.zeros(32 * cols, np.float32)[::2]
    refuses("blocks: expected", pack.dequantize, fmt.id, blocks[:-1], out)
    refuses("blocks: expected", pack.dequantize, fmt.id, blocks.view(np.int8), out, error=TypeError)
    refuses("out: expected", pack.dequantize, fmt.id, blocks, out.astype(np.float64), error=TypeError)
    refuses("C-contiguous", pack.dequantize, fmt.id, blocks, strided, error=TypeError)
    refuses("blocks: expected", pack.pack, fmt.id, blocks[:-1], 16, cols, data)
    refuses("out: expected", pack.pack, fmt.id, blocks, 16, cols, data[:-1])
    for rows, wrong in ((0, cols), (16, 0), (-1, cols)):
        refuses("shape: expected rows of blocks", pack.pack, fmt.id, blocks, rows, wrong, data)
    if fmt.block_len > 1:
        refuses("shape: expected rows of blocks", pack.pack, fmt.id, blocks, 16, cols - 1, data)
        refuses("out: expected whole blocks", pack.dequantize, fmt.id, blocks, out[:-1])
