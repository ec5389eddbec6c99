"""Adapters beside the products of a `Linear`: against float64, and the same bits in every batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama._kernels import load
from tests.support.kernels import PRESENT, linear, matrix, normal, on_targets, refuses, same_bits

COLS, ROWS = 96, (40, 24, 23)  # three matrices that share an input, one not a whole number of panels
RANKS = (5, 16, 3)


def as_f32(values: np.ndarray) -> tuple[str, np.ndarray]:
    return "F32", np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(len(values), -1)


class Factors:
    """Random factors for some of the matrices, as arrays and as the kernels' `LowRank`."""

    def __init__(self, target: str, seed: int, parts: tuple[int, ...] = (0, 1, 2)) -> None:
        self.parts = parts
        self.a = [normal(RANKS[i], COLS, seed=seed + i) for i in parts]
        self.b = [normal(ROWS[i], RANKS[i], seed=seed + 10 + i) for i in parts]
        self.factors = [0.5 + i for i in parts]
        columns = np.cumsum([0, *(len(a) for a in self.a)])
        packed = [
            (linear(target, [as_f32(b)], b.shape[1]), int(column), sum(ROWS[:i]))
            for i, b, column in zip(parts, self.b, columns)
        ]
        a = linear(target, [as_f32(np.concatenate(self.a))], COLS)
        ranks = np.concatenate([np.full(len(a), f) for a, f in zip(self.a, self.factors)])
        self.kernel = load(target).linear.LowRank(a, packed, ranks)

    def delta(self, x: np.ndarray) -> np.ndarray:
        """float64 (n, rows) of x (n, cols)."""
        found = np.zeros((len(x), sum(ROWS)))
        for i, a, b, factor in zip(self.parts, self.a, self.b, self.factors):
            first = sum(ROWS[:i])
            found[:, first : first + ROWS[i]] = factor * (x.astype(float) @ a.T.astype(float)) @ b.T
        return found


def plan(target: str, *groups: tuple[Factors, float, int, int]) -> Any:
    factors, scales, starts, counts = zip(*groups)
    arrays = np.array(scales, np.float64), np.array(starts, np.int32), np.array(counts, np.int32)
    return load(target).linear.LowRankPlan([f.kernel for f in factors], *arrays)


def base(target: str) -> Any:
    return linear(target, [("Q8_0", matrix("Q8_0", rows, COLS)) for rows in ROWS], COLS)


def run(
    layer: Any, x: np.ndarray, plans: tuple[Any, ...], n_threads: int = 1, onto: np.ndarray | None = None
) -> np.ndarray:
    out = np.full((len(x), layer.rows), np.nan, np.float32) if onto is None else onto.copy()
    room = layer.scratch_bytes(len(x)) + sum(plan.scratch_bytes for plan in plans)
    layer.apply(x, out, np.full(room, 0x5A, np.uint8), n_threads, onto is not None, plans)
    return out


@on_targets
def test_products_equal_float64(target: str) -> None:
    first, second, some = Factors(target, 1), Factors(target, 2), Factors(target, 3, (0, 2))
    x, onto = normal(9, COLS), normal(9, sum(ROWS), seed=5)
    plans = (
        plan(target, (first, 2.0, 1, 3), (second, -1.0, 4, 1), (some, 0.5, 7, 2)),
        plan(target, (some, 3.0, 1, 4)),
    )
    wanted = run(base(target), x, (), onto=onto).astype(float)
    for rows, factors, scale in (
        (slice(1, 4), first, 2.0),
        (slice(4, 5), second, -1.0),
        (slice(7, 9), some, 0.5),
        (slice(1, 5), some, 3.0),
    ):
        wanted[rows] += scale * factors.delta(x[rows])
    for n_threads in (1, 2, 3):
        found = run(base(target), x, plans, n_threads, onto)
        assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()
    plain = run(base(target), x, (), onto=onto)
    for row in (0, 5, 6):
        assert same_bits(found[row], plain[row])


@on_targets
def test_a_row_has_the_same_bits_in_every_batch(target: str) -> None:
    first, second = Factors(target, 1), Factors(target, 2)
    layer, x = base(target), normal(20, COLS)
    groups = [(first, 1.5, 0, 7), (second, 0.25, 7, 1), (first, 1.5, 8, 12)]
    whole = run(layer, x, (plan(target, *groups), plan(target, (second, 2.0, 3, 9))), 2)
    for row in range(20):
        factors, scale = next((f, s) for f, s, start, n in groups if start <= row < start + n)
        plans = [plan(target, (factors, scale, 0, 1))]
        plans += [plan(target, (second, 2.0, 0, 1))] if 3 <= row < 12 else []
        assert same_bits(run(layer, x[row : row + 1], tuple(plans))[0], whole[row])
    reference = run(base(PRESENT[0]), x, (plan(PRESENT[0], (Factors(PRESENT[0], 1), 1.5, 0, 20)),))
    assert same_bits(run(layer, x, (plan(target, (first, 1.5, 0, 20)),)), reference)


@on_targets
def test_groups_of_rows_with_matrices_of_their_own(target: str) -> None:
    """As experts have them: the rows of x are gathered, those of the output stand by expert."""
    kernels = load(target)
    layers = [linear(target, [as_f32(normal(30, COLS, seed=seed))], COLS) for seed in (1, 2)]
    a = [normal(4, COLS, seed=7), normal(4, COLS, seed=8)]
    b = [normal(30, 4, seed=9), normal(30, 4, seed=10)]
    factors = [
        kernels.linear.LowRank(
            linear(target, [as_f32(a[i])], COLS), [(linear(target, [as_f32(b[i])], 4), 0, 0)], np.ones(4)
        )
        for i in range(2)
    ]
    x, rows, counts = normal(5, COLS), np.array([3, 0, 4, 1, 1], np.int32), np.array([2, 3], np.int32)
    arrays = np.array([2.0, 3.0]), np.array([1, 2], np.int32), np.array([1, 2], np.int32)
    added = kernels.linear.LowRankPlan(factors, *arrays)
    out, plain = np.empty((5, 30), np.float32), np.empty((5, 30), np.float32)
    scratch = np.empty(2 * layers[0].scratch_bytes(5) + added.scratch_bytes, np.uint8)
    kernels.linear.apply_groups(layers, counts, x, rows, plain, scratch, 1)
    kernels.linear.apply_groups(layers, counts, x, rows, out, scratch, 2, (added,))
    wanted = plain.astype(float)
    wanted[1] += 2.0 * x[0].astype(float) @ a[0].T @ b[0].T
    wanted[2:4] += 3.0 * x[[4, 1]].astype(float) @ a[1].T @ b[1].T
    assert np.abs(out - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert same_bits(out[[0, 4]], plain[[0, 4]])


def test_plans_that_do_not_fit_are_refused() -> None:
    target = PRESENT[0]
    factors, layer, x = Factors(target, 1), base(target), normal(3, COLS)
    one = plan(target, (factors, 1.0, 0, 1))
    refuses("plans: expected at most 3 rows", run, layer, x, (plan(target, (factors, 1.0, 2, 2)),))
    text = "starts: expected groups in order"
    refuses(text, plan, target, (factors, 1.0, 1, 2), (factors, 1.0, 2, 1))
    refuses(text, plan, target, (factors, 1.0, 0, 0))
    narrow = linear(target, [("Q8_0", matrix("Q8_0", 16, COLS))], COLS)
    refuses(f"{COLS} columns to 16", run, narrow, x, (one,))
    given = x, np.empty((3, layer.rows), np.float32), np.empty(layer.scratch_bytes(3), np.uint8), 1, False
    refuses("scratch: expected", layer.apply, *given, (one,))
    refuses("plans: expected objects of LowRankPlan", layer.apply, *given, (3,), error=TypeError)
