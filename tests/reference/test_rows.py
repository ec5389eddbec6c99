"""The reference's operations on numbers and rows: the bits of the kernels, on every target."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.reference import floats, rows
from tests.references.fma import fma as exact_fma
from tests.support.kernels import PRESENT, normal, same_bits

EDGES = np.array(
    [
        0.0,
        -0.0,
        1e-45,
        -1e-39,
        1.1754944e-38,
        0.5625,
        -0.56249994,
        1.0,
        7.0,
        -7.0,
        88.0,
        89.0,
        -87.3,
        -88.0,
        3e38,
    ],
    np.float32,
)
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


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("d", [1, 15, 16, 33, 300])
def test_norms(d: int, target: str) -> None:
    vector, x = load(target).vector, normal(5, d, seed=d)
    weight, bias = normal(d, seed=3), normal(d, seed=4)
    for centred, kernel in ((False, vector.rms_norm), (True, vector.layer_norm)):
        out = np.empty_like(x)
        kernel(x, weight, 1e-5, out, 1, bias)
        assert same_bits(rows.norm(x, 1e-5, weight, bias, centred), out)
        kernel(x, None, 1e-5, out, 1)
        assert same_bits(rows.norm(x, 1e-5, centred=centred), out)


@pytest.mark.parametrize("target", PRESENT)
def test_soft_caps_and_softmax(target: str) -> None:
    vector, x = load(target).vector, normal(333, seed=5, std=20.0)
    capped, out = x.copy(), np.empty_like(x)
    vector.soft_cap(capped, 7.5, 1)
    assert same_bits(rows.soft_cap(x, 7.5), capped)
    x[7] = -np.inf
    assert vector.softmax(x, out)
    assert same_bits(rows.softmax(x), out)


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("neox", [False, True])
def test_rotations(neox: bool, target: str) -> None:
    vector, positions = load(target).vector, np.array([0, 1, 2, 77, 4095, 999_999], np.int32)
    turns = rows.frequencies(24, 500000.0)
    table = np.empty((len(positions), 2, 12), np.float32)
    vector.rope_table(positions, turns, 1.25, table)
    assert same_bits(rows.rotation_table(positions, turns, 1.25), table)
    x = normal(len(positions), 3, 32, seed=6)
    turned = x.reshape(len(x), -1).copy()
    vector.rope(turned, 3, 32, table, neox, 1)
    assert same_bits(rows.rotate(x, table, neox).reshape(len(x), -1), turned)


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "chosen"])
def test_the_choice_of_experts(gating: str, target: str) -> None:
    logits = normal(20, 24, seed=7, std=2.0)
    logits[3, 5] = logits[3, 9] = logits[3].max() + 1  # equals
    bias = normal(24, seed=8)
    options = [(None, 1, 1)] if gating == "chosen" else [(None, 1, 1), (bias, 1, 1), (bias, 4, 2)]
    for given, groups, kept in options:
        for normalize, scale in ((False, 1.0), (True, 2.5)):
            chosen, weights = np.empty((20, 5), np.int32), np.empty((20, 5), np.float32)
            load(target).routing.route(logits, given, gating, groups, kept, normalize, scale, chosen, weights)
            for i, row in enumerate(logits):
                found, shares = rows.route(
                    row, 5, gating, bias=given, groups=groups, kept=kept, normalize=normalize, scale=scale
                )
                assert (found == chosen[i]).all()
                assert same_bits(shares, weights[i])
