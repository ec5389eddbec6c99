"""The signatures of what is compiled here, for type checkers alone; a test compares them with the modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np


class Linear(Protocol):
    """Matrices that share one input, stacked by rows."""

    rows: int
    cols: int
    panels: tuple[np.ndarray, ...] | None

    def __init__(
        self,
        matrices: Sequence[tuple[int, int, np.ndarray | None]],
        cols: int,
        bias: np.ndarray | None = None,
        bf16_dot: bool | None = None,
        scales: np.ndarray | None = None,
    ) -> None: ...
    def give(self, panels: Sequence[np.ndarray] | None) -> None: ...
    def scratch_bytes(self, n: int) -> int: ...
    def apply(
        self,
        x: np.ndarray,
        out: np.ndarray,
        scratch: np.ndarray,
        n_threads: int,
        accumulate: bool = False,
        plans: tuple[LowRankPlan, ...] = (),
    ) -> None: ...


class LowRank(Protocol):
    """What an adapter adds to the products of one `Linear`."""

    cols: int
    ranks: int
    rows: int

    def __init__(self, a: Linear, parts: Sequence[tuple[Linear, int, int]], factors: np.ndarray) -> None: ...
    def scratch_bytes(self, n: int) -> int: ...


class LowRankPlan(Protocol):
    """Which rows of a product take which adapter, each row one at most."""

    cols: int
    rows: int
    n_groups: int
    end: int
    scratch_bytes: int

    def __init__(
        self, factors: list[LowRank], scales: np.ndarray, starts: np.ndarray, counts: np.ndarray
    ) -> None: ...


Linears: TypeAlias = list[Linear]
LowRankPlans: TypeAlias = tuple[LowRankPlan, ...]
LinearClass: TypeAlias = type[Linear]
LowRankClass: TypeAlias = type[LowRank]
LowRankPlanClass: TypeAlias = type[LowRankPlan]


class LinearModule(Protocol):
    """`linear.pyx`, built for a target."""

    Linear: LinearClass
    LowRank: LowRankClass
    LowRankPlan: LowRankPlanClass
    BF16_DOT: bool

    def computes_bf16_dot(self, way: int) -> bool: ...
    def apply_groups(
        self,
        linears: Linears,
        counts: np.ndarray,
        x: np.ndarray,
        rows: np.ndarray | None,
        out: np.ndarray,
        scratch: np.ndarray,
        n_threads: int,
        plans: LowRankPlans = (),
    ) -> None: ...
