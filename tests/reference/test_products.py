"""The reference's blocks and matrix products: the bits of the kernels, for every format and target."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama._kernels import pack
from oxillama.base.formats import FORMATS
from oxillama.reference import blocks
from oxillama.reference.products import float_products, load_matrix
from tests.support.kernels import NAMES, PRESENT, apply, linear, matrix, normal, same_bits

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


@pytest.mark.parametrize("name", ["F32", "Q8_0", "Q4_K"])
def test_products_with_one_scale_per_row(name: str) -> None:
    data, x = matrix(name, ROWS, COLS, seed=7), normal(5, COLS, seed=8)
    x[1], x[2] = x[1] * np.float32(1e-30), 0.0
    x[3, 5], x[4, 400] = np.nan, np.inf
    bias, values = normal(ROWS, seed=9), blocks.dequantize(FORMATS[name], data).reshape(ROWS, COLS)
    with np.errstate(all="ignore"):
        found = load_matrix(FORMATS[name], data, ROWS, COLS, "w8a8").times(x) + bias
    for target in PRESENT:
        assert same_bits(found, apply(linear(target, [("W8A8", values.view(np.uint8))], COLS, bias), x))


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
    """With ``compute="f32"`` a BF16 matrix is one of F32, and activations keep their bits."""
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
