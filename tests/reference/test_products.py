"""The reference's blocks and matrix products: the bits of the kernels, for every format and target."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama._kernels import pack
from oxillama.base.formats import FORMATS
from oxillama.reference import blocks
from oxillama.reference.products import float_products, load_matrix
from tests.support.fma import fma
from tests.support.kernels import COMPUTE, NAMES, PRESENT, apply, linear, matrix, normal, same_bits

ROWS, COLS = 19, 512
"""Rows that fill no whole panel, and two blocks of 256."""


@pytest.mark.parametrize("name", NAMES)
def test_blocks_as_floats(name: str) -> None:
    data, out = matrix(name, ROWS, COLS, seed=1), np.empty(ROWS * COLS, np.float32)
    pack.dequantize(FORMATS[name].id, data.reshape(-1), out)
    assert same_bits(blocks.dequantize(FORMATS[name], data), out)


@pytest.mark.parametrize("name", NAMES)
def test_products(name: str) -> None:
    data, x = matrix(name, ROWS, COLS, seed=2), normal(5, COLS, seed=3)
    x[1] *= np.float32(1e-30)
    x[2, :300] = 0.0
    x[3, 5], x[4, 400] = np.nan, np.inf
    bias = normal(ROWS, seed=4)
    with np.errstate(all="ignore"):
        found = load_matrix(FORMATS[name], data, ROWS, COLS).times(x) + bias
    for target in PRESENT:
        assert same_bits(found, apply(linear(target, [(name, data)], COLS, bias), x))


@pytest.mark.parametrize("rounded", COMPUTE)
@pytest.mark.parametrize("name", ["F32", "Q8_0", "Q4_K"])
def test_products_of_rows_that_packing_rounds(name: str, rounded: str) -> None:
    data, x = matrix(name, ROWS, COLS, seed=7), normal(5, COLS, seed=8)
    x[1], x[2] = x[1] * np.float32(1e-30), 0.0
    x[3, 5], x[4, 400] = np.nan, np.inf
    bias, values = normal(ROWS, seed=9), blocks.dequantize(FORMATS[name], data).reshape(ROWS, COLS)
    with np.errstate(all="ignore"):
        found = load_matrix(FORMATS[name], data, ROWS, COLS, COMPUTE[rounded]).times(x) + bias
    for target in PRESENT:
        assert same_bits(found, apply(linear(target, [(rounded, values.view(np.uint8))], COLS, bias), x))


def test_a_span_has_a_scale_and_the_last_one_is_short() -> None:
    """y = fma(N, d A, y) for each 128 columns in order, from the largest values of these columns."""
    w, x = normal(3, 160, seed=1), normal(2, 160, seed=2)
    w[1, 130], x[0, 3] = 50, -70
    y = np.zeros((2, 3), np.float32)
    for columns in (slice(0, 128), slice(128, 160)):
        (q, d), (a, s) = (rounded_alone(v[:, columns]) for v in (w, x))
        y = np.vectorize(fma, otypes=[np.float32])((a @ q.T).astype(np.float32), d[None] * s[:, None], y)
    found = load_matrix(FORMATS["F32"], w.view(np.uint8), 3, 160, "w8a8-128").times(x)
    assert same_bits(found, y)


def rounded_alone(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of rows."""
    most = np.abs(v).max(axis=1)
    return np.rint(v * (np.float32(127) / most)[:, None]).astype(np.int64), most / np.float32(127)


@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_dequantized_products(compute: str) -> None:
    data, x = matrix("Q4_K", ROWS, COLS, seed=5), normal(2, COLS, seed=6)
    found = load_matrix(FORMATS["Q4_K"], data, ROWS, COLS, compute)
    assert found.floats is not None
    bits = found.floats.view(np.uint32)
    if compute == "bf16":
        assert not (bits & 0xFFFF).any()
        bits = (bits >> 16).astype("<u2")
    stored = bits.view(np.uint8).reshape(ROWS, -1)
    assert same_bits(found.times(x), apply(linear(PRESENT[0], [(compute.upper(), stored)], COLS), x))


def test_exact_products_of_bf16() -> None:
    """``compute="f32"`` multiplies a BF16 matrix as F32, and activations keep their bits."""
    data, x = matrix("BF16", ROWS, COLS, seed=5), normal(2, COLS, seed=6)
    found = load_matrix(FORMATS["BF16"], data, ROWS, COLS, "f32")
    assert found.floats is not None
    stored = found.floats.view(np.uint8).reshape(ROWS, -1)
    assert same_bits(found.times(x), apply(linear(PRESENT[0], [("F32", stored)], COLS), x))
    assert not same_bits(found.times(x), load_matrix(FORMATS["BF16"], data, ROWS, COLS).times(x))


def test_a_sum_of_floats_is_rounded_once() -> None:
    """Rounded to float64 first, the second sum would be halfway between two float32, and become the other."""
    odd, near = np.float32(1 + 2**-23), np.float32(2**-15)
    w, x = np.array([[odd, 1 + near]], np.float32), np.array([[1, 2**-24 * (1 - near)]], np.float32)
    assert same_bits(float_products(w, x), np.array([[odd]]))
