"""BF16 matrices: activations rounded to bf16, products in pairs of columns, by one instruction or by two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama._kernels import cpu, load
from oxillama.base.formats import FORMATS
from oxillama.reference.products import load_matrix
from tests.support.fma import fma
from tests.support.kernels import PRESENT, apply, matrix, normal, on_targets, packed, refuses, same_bits

LEAST = np.float32(2.0**-56)


def ways(rows: np.ndarray, cols: int) -> dict[str, Any]:
    """`Linear`s of a BF16 matrix for each target: by the automatic choice, and each way that a target has."""
    found = {}
    for target in PRESENT:
        module, parts = load(target).linear, [packed("BF16", rows, cols)]
        for way in (None, False, True) if module.BF16_DOT else (None,):
            found[f"{target}, bf16_dot={way}"] = module.Linear(parts, cols, None, way)
    return found


def products(bits: np.ndarray, x: np.ndarray) -> np.ndarray:
    """uint16 (rows, cols) times float32 (n, cols): what all ways and the reference say."""
    rows, cols = bits.shape
    data = np.ascontiguousarray(bits, "<u2").view(np.uint8)
    with np.errstate(all="ignore"):
        wanted = load_matrix(FORMATS["BF16"], data, rows, cols).times(x)
    for name, layer in ways(data, cols).items():
        assert same_bits(apply(layer, x), wanted), name
    return wanted


@pytest.mark.parametrize("cols", [1, 2, 3, 5, 70])
def test_any_numbers_give_the_same_bits(cols: int) -> None:
    """Bits are drawn: exponents from denormal to infinite, NaNs; in few columns not all sums are NaN."""
    rng = np.random.default_rng(cols)
    bits = rng.integers(0, 1 << 16, (133, cols), np.uint16)
    x = rng.integers(0, 1 << 32, (45, cols), np.uint32).view(np.float32)
    found = products(bits, x)
    assert np.isfinite(found).any()
    least = np.nanmin(np.abs(found[found != 0]))
    assert least >= np.finfo(np.float32).tiny  # no denormal, so nothing that a processor might flush


@pytest.mark.parametrize("low", [-62, -20, 0, 40])
def test_numbers_of_like_size_give_the_same_bits(low: int) -> None:
    """Sums that cancel, at the sizes where products begin to vanish, or to overflow."""
    rng = np.random.default_rng(low + 100)

    def draw(*shape: int) -> np.ndarray:
        size = np.ldexp(rng.uniform(1, 2, shape), rng.integers(low, low + 8, shape))
        return (size * rng.choice([-1, 1], shape)).astype(np.float32)

    w = draw(37, 96)
    w[:, 48:] = -w[:, :48]
    x = draw(19, 96)
    x[:, 48:] = x[:, :48] * np.float32(1 + 2.0**-7)
    products((w.view(np.uint32) >> 16).astype(np.uint16), x)


@on_targets
def test_two_columns_are_the_odd_product_and_then_the_even_one(target: str) -> None:
    """Exact rational arithmetic gives the expected sums; each product is rounded once."""
    rng = np.random.default_rng(3)
    bits = (rng.integers(0, 1 << 16, (64, 2)) & 0x83FF | 0x3C00).astype("<u2")
    w = (bits.astype(np.uint32) << 16).view(np.float32)
    x = ((rng.integers(0, 1 << 16, (64, 2)) & 0x83FF | 0x3C00).astype(np.uint32) << 16).view(np.float32)
    layer = load(target).linear.Linear([packed("BF16", bits.view(np.uint8), 2)], 2)
    longer = load(target).linear.Linear([packed("BF16", np.c_[bits, bits].view(np.uint8), 4)], 4)
    found = np.diagonal(apply(layer, x))
    further = np.diagonal(apply(longer, np.c_[x, x[:, ::-1]]))
    for i in range(64):
        pair = fma(w[i, 0], x[i, 0], fma(w[i, 1], x[i, 1], np.float32(0)))
        assert found[i] == pair
        assert further[i] == fma(w[i, 0], x[i, 1], fma(w[i, 1], x[i, 0], pair))


@on_targets
def test_activations_are_rounded_to_nearest_even(target: str) -> None:
    """Times the unit matrix: each activation, rounded; ties, the step to infinity, and what is too small."""
    one, step, top = 1.0, 2.0**-7, 255 * 2.0**120
    values = [one + step / 2, one + 3 * step / 2, one + step / 2 + 2.0**-20, top + 2.0**118, top + 2.0**119]
    wanted = [one, one + 2 * step, one + step, top, np.inf]
    values += [float(LEAST), float(np.nextafter(LEAST, np.float32(0))), 1e-40, 0.0]
    wanted += [float(LEAST), 0.0, 0.0, 0.0]
    eye = np.full((1, 1), 0x3F80, "<u2").view(np.uint8)
    layer = load(target).linear.Linear([packed("BF16", eye, 1)], 1)
    for sign in (1, -1):
        x = sign * np.float32(values)[:, None]
        assert (apply(layer, x)[:, 0] == sign * np.float32(wanted)).all()


@on_targets
def test_weights_below_the_least_are_zero(target: str) -> None:
    bits = np.array([[0x237F], [0x2380], [0xA37F], [0xA380], [0x0001], [0x007F], [0x0080]], "<u2")
    layer = load(target).linear.Linear([packed("BF16", bits.view(np.uint8), 1)], 1)
    found = apply(layer, np.float32([[2.0**100]]))[0]
    assert (found == np.float32([0, 2.0**44, 0, -(2.0**44), 0, 0, 0])).all()


@on_targets
def test_a_last_column_without_another_changes_nothing(target: str) -> None:
    """Whatever the memory behind it holds (`packed` and `apply` fill it)."""
    rows, x = matrix("BF16", 20, 33), normal(9, 33)
    longer = np.c_[rows.reshape(20, 66), np.zeros((20, 2), np.uint8)]
    make = load(target).linear.Linear
    one, other = (make([packed("BF16", data, cols)], cols) for data, cols in ((rows, 33), (longer, 34)))
    assert same_bits(apply(one, x), apply(other, np.c_[x, np.full((9, 1), 7, np.float32)]))


@on_targets
def test_the_instruction_is_taken_only_if_its_sums_are_those(target: str) -> None:
    """What other processors might do with a pair is told apart: another order, one rounding less."""
    module = load(target).linear
    assert not module.computes_bf16_dot(1)
    assert not module.computes_bf16_dot(2)
    if target in ("amx", "amx_emulated", "avx512") and cpu.has("avx512_bf16"):
        assert module.computes_bf16_dot(0) == module.BF16_DOT
    else:
        assert not module.BF16_DOT
        refuses("way: expected 1 or 2 .* got 0", module.computes_bf16_dot, 0)
    refuses("way: expected 0, 1 or 2, got 3", module.computes_bf16_dot, 3)


@on_targets
def test_an_instruction_that_is_not_there_is_refused_and_not_faster(target: str) -> None:
    module, parts = load(target).linear, [packed("BF16", matrix("BF16", 16, 8), 8)]
    if module.BF16_DOT:
        module.Linear(parts, 8, None, True)
    else:
        refuses("bf16_dot: expected False where no instruction", module.Linear, parts, 8, None, True)
        assert not module.BF16_DOT_IS_FASTER
