"""The choice of experts: the bits of the reference on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.reference import rows as reference
from tests.support.kernels import PRESENT, normal, refuses, same_bits


def route(
    target: str,
    logits: np.ndarray,
    k: int,
    gating: str = "softmax",
    *,
    bias: np.ndarray | None = None,
    groups: int = 1,
    kept: int = 1,
    normalize: bool = False,
    scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    chosen, weights = np.empty((len(logits), k), np.int32), np.full((len(logits), k), np.nan, np.float32)
    load(target).routing.route(logits, bias, gating, groups, kept, normalize, scale, chosen, weights)
    return chosen, weights


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "chosen", "sqrt_softplus"])
@pytest.mark.parametrize(
    ("experts", "k", "groups", "kept"),
    [
        (1, 1, 1, 1), (4, 2, 1, 1), (64, 8, 1, 1), (100, 100, 1, 1), (256, 8, 8, 4), (12, 3, 4, 2),
        (6, 2, 6, 3),
    ],
)  # fmt: skip
def test_the_best_are_taken(
    experts: int, k: int, groups: int, kept: int, gating: str, normalize: bool
) -> None:
    logits = normal(50, experts, seed=experts, std=2)
    for bias in (None, 0.1 * normal(experts, seed=1)):
        if gating == "chosen" and (bias is not None or groups > 1):
            continue
        options: dict[str, Any] = {"bias": bias, "groups": groups, "kept": kept, "normalize": normalize}
        options["scale"] = 2.5
        chosen, weights = zip(*(reference.route(row, k, gating, **options) for row in logits))
        for target in PRESENT:
            found = route(target, logits, k, gating, **options)
            assert np.array_equal(found[0], chosen)
            assert same_bits(found[1], np.stack(weights))


def test_of_equals_the_first_is_taken_and_nan_last() -> None:
    logits = np.float32([[1, 5, 5, 1, 5, 0], [np.nan, 1, np.nan, np.nan, 0, np.nan]])
    assert route(PRESENT[0], logits, 2)[0].tolist() == [[1, 2], [1, 4]]
    assert route(PRESENT[0], logits, 4)[0].tolist() == [[0, 1, 2, 4], [0, 1, 2, 4]]
    grouped = route(PRESENT[0], np.full((1, 6), np.nan, np.float32), 3, groups=3, kept=2)[0]
    assert len(set(grouped[0].tolist()) & set(range(6))) == 3


def test_weights_that_nearly_vanish_are_not_blown_up() -> None:
    logits = np.float32([[-50, -60, -70]])
    _, weights = route(PRESENT[0], logits, 2, "sigmoid", normalize=True)
    assert np.allclose(weights, np.exp([[-50, -60]]) / 6.103515625e-5, rtol=1e-5)


@pytest.mark.parametrize(("n", "experts", "k"), [(1, 1, 1), (1, 64, 8), (50, 7, 3), (33, 1024, 2)])
def test_rows_are_grouped_by_expert_each_in_order(n: int, experts: int, k: int) -> None:
    rng = np.random.default_rng(n)
    chosen = np.stack([np.sort(rng.permutation(experts)[:k]) for _ in range(n)]).astype(np.int32)
    weights = normal(n, k)
    for target in PRESENT:
        counts, rows = np.empty(experts, np.int32), np.empty(n * k, np.int32)
        factors = np.empty(n * k, np.float32)
        load(target).routing.group(chosen, weights, counts, rows, factors)
        order = np.argsort(chosen, axis=None, kind="stable")
        assert np.array_equal(counts, np.bincount(chosen.reshape(-1), minlength=experts))
        assert np.array_equal(rows, order // k)
        assert same_bits(factors, weights.reshape(-1)[order])


def test_experts_that_do_not_exist_are_not_grouped() -> None:
    counts, rows, factors = np.empty(4, np.int32), np.empty(2, np.int32), np.empty(2, np.float32)
    for bad in (-1, 4):
        given = np.int32([[0, bad]]), normal(1, 2), counts, rows, factors
        refuses(f"chosen: expected 0 to 3, got {bad}", load(PRESENT[0]).routing.group, *given)


def test_bad_calls_are_refused() -> None:
    given = route, PRESENT[0], normal(3, 8)
    refuses("got 0 of 8", *given, 0)
    refuses("got 9 of 8", *given, 9)
    refuses("got 2 of 8 in 1 of 3", *given, 2, groups=3, kept=1)
    refuses("got 3 of 8 in 1 of 4", *given, 3, groups=4, kept=1)
    refuses("neither bias nor groups", *given, 2, gating="chosen", bias=normal(8))
    refuses("bias: expected at least 8", *given, 2, bias=normal(7))
    known = "softmax, sigmoid, chosen, sqrt_softplus"
    refuses(f"gating: expected one of {known}, got 'tanh'", *given, 2, "tanh")
    refuses("at most 1024 experts, got 2 of 1025", route, PRESENT[0], normal(1, 1025), 2)
