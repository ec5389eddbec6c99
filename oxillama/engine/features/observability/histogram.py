"""Counts of values by size."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass
class Histogram:
    """Counts of values up to each bound, their sum, and how many there were."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """nan without values."""
        return self.total / self.count if self.count else math.nan

    def cumulative(self) -> list[tuple[float, int]]:
        """Each bound, inf at last, with how many values were up to it."""
        found, below = [], 0
        for bound, n in zip((*self.bounds, math.inf), self.counts):
            below += n
            found.append((bound, below))
        return found

    def __add__(self, other: Histogram) -> Histogram:
        """The values of both, which have the same bounds."""
        counts = [n + m for n, m in zip(self.counts, other.counts)]
        return Histogram(self.bounds, counts, self.total + other.total)

    def copy(self) -> Histogram:
        return Histogram(self.bounds, list(self.counts), self.total)
