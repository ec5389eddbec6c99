"""The reference's operations on numbers and rows: the bits of the kernels, on every target."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.reference import floats, rows
from tests.support.fma import fma as exact_fma
from tests.support.kernels import PRESENT, normal, same_bits

EDGES = np.array(
    [
        0.0, -0.0, 1e-45, -1e-39, 1.1754944e-38, 0.5625, -0.56249994, 1.0, 7.0, -7.0, 88.0, 89.0, -87.3,
        -88.0, 3e38,
    ],
    np.float32,
)  # fmt: skip
X = np.concatenate([normal(400, seed=1, std=3.0), normal(100, seed=2, std=40.0), EDGES])


def test_a_fused_product_is_rounded_once() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, (3, 3000), np.uint32)
    a, b, c = bits.view(np.float32)
    a[:600], b[:600] = 1 + np.float32(2**-12) * normal(2, 600, std=9.0).round()
    c[:600] = np.float32(2**-49) * normal(600, seed=1)  # next to the middle between two float32
    with np.errstate(all="ignore"):
        c[600::2] = -(a * b)[600::2] * (1 + np.float32(2e-7))  # sums that cancel
    usable = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    found = floats.fma(a, b, c)
    expected = [exact_fma(*numbers) for numbers in zip(a[usable], b[usable], c[usable])]
    assert (found[usable] == np.array(expected, np.float32)).all()


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("name", rows.ACTIVATIONS)
def test_activations(name: str, target: str) -> None:
    vector, out = load(target).vector, np.empty_like(X)
    vector.activate(X, name, out, 1)
    with np.errstate(all="ignore"):
        assert same_bits(rows.ACTIVATIONS[name](X), out)
        both, gated = np.concatenate([X, X[::-1]])[None], np.empty((1, len(X)), np.float32)
        vector.gate(both, name, gated, 1)
        assert same_bits(rows.gate(name, X, X[::-1])[None], gated)


WIDE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
    "exp": np.exp,
    "erfc": np.vectorize(math.erfc),
    "silu_clamped": lambda x: np.minimum(x, 7) / (1 + np.exp(-1.702 * np.minimum(x, 7))),
}
"""The formulas in float64."""
TOLERANCE = {  # relative to the value, and absolute where it nearly vanishes (a tail that falls like e^-x^2)
    "gelu": (2e-6, 1e-7),
    "gelu_erf": (2e-6, 1e-7),
    "gelu_quick": (2e-6, 0.0),
    "silu_clamped": (2e-6, 0.0),
    "erfc": (5e-7, 2e-7),
}


@pytest.mark.parametrize("name", rows.ACTIVATIONS)
def test_activations_are_near_their_formulas(name: str) -> None:
    x, (relative, absolute) = normal(3000, seed=3, std=4.0), TOLERANCE.get(name, (4e-7, 0.0))
    exact = WIDE[name](x.astype(np.float64))
    assert np.allclose(rows.ACTIVATIONS[name](x), exact, rtol=relative, atol=absolute)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("d", [1, 16, 33, 300])
def test_norms_and_softmax_are_near_their_formulas(d: int, centred: bool) -> None:
    x, weight, bias = normal(60, d, seed=d), normal(d, seed=3), normal(d, seed=4)
    wide = x.astype(np.float64) - (x.mean(axis=1, dtype=np.float64, keepdims=True) if centred else 0)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    assert np.allclose(rows.norm(x, 1e-5, weight, bias, centred), exact, rtol=2e-6, atol=3e-6)
    powers = np.exp(x.astype(np.float64))
    assert np.allclose(rows.softmax(x), powers / powers.sum(axis=1, keepdims=True), rtol=2e-6, atol=1e-37)
