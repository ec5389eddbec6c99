"""The candidates of one choice: their weights, thresholds, and the draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.errors import SamplingError
from oxillama.reference.floats import F32, LANES, exp, fma, log_double, select_max, tree

LARGEST = float(np.finfo(F32).max)
SMALL = 1024
"""Candidates that are sorted rather than searched."""
SPLITS = 7
"""Thresholds that a search tries at a time."""
PIECE = 256
"""Weights that are added in 16 lanes of float32, before doubles add the pieces."""


@dataclass
class Weights:
    """e = exp(x - top), their sum, and the sum of e (x - top)."""

    e: np.ndarray
    total: float
    moment: float

    @property
    def entropy(self) -> float:
        """In nats."""
        return max(log_double(self.total) - self.moment / self.total, 0.0)


def in_pieces(x: np.ndarray, fill: float = 0.0) -> np.ndarray:
    """(16, pieces, 16): the steps of each piece of 256."""
    whole = np.pad(x, (0, -len(x) % PIECE), constant_values=F32(fill))
    return whole.reshape(-1, PIECE // LANES, LANES).transpose(1, 0, 2)


def piece_sums(x: np.ndarray) -> list[float]:
    """The sum of each piece: 16 lanes of float32, then the tree."""
    sums = np.zeros((-(-len(x) // PIECE), LANES), F32)
    for step in in_pieces(x):
        sums = sums + step
    found: list[float] = tree(sums).tolist()
    return found


def in_order(numbers: list[float]) -> float:
    """The sum of doubles, one after the other: Python's `sum` compensates for roundings."""
    total = 0.0
    for number in numbers:
        total += number
    return total


class Candidates:
    """Tokens that may be chosen, in the order of their ids until `rank` puts the highest logits first.

    Attributes
    ----------
    ids, x : int64 (n,) and float32 (n,), the logits; -inf is no candidate.
    vocab : tokens of the vocabulary.
    """

    def __init__(self, logits: np.ndarray) -> None:
        if not (logits < np.inf).all():
            raise SamplingError("logits: hold a NaN or +inf")
        self.ids: np.ndarray = np.arange(len(logits))
        self.x: np.ndarray = logits.astype(F32)
        self.vocab: int = len(logits)
        self.is_ranked: bool = False

    @property
    def top(self) -> float:
        """The highest logit. Raises SamplingError if there is no candidate."""
        top = float(self.x.max(initial=-np.inf))
        if top == -np.inf:
            raise SamplingError("logits: every token is masked")
        return top

    def weights(self) -> Weights:
        """What is drawn by."""
        d = self.x - F32(self.top)
        e = exp(d)
        moments = np.zeros((-(-len(d) // PIECE), LANES), F32)
        for step, distance in zip(in_pieces(e), in_pieces(select_max(d, np.full_like(d, -128)))):
            moments = fma(step, distance, moments)
        return Weights(e, in_order(piece_sums(e)), in_order(tree(moments).tolist()))

    def only(self, at: np.ndarray) -> None:
        """Keeps the candidates at these places, in this order."""
        self.ids, self.x = self.ids[at], self.x[at]

    def keep(self, key: np.ndarray, threshold: float, ties: int) -> None:
        """Keeps those whose key is above the threshold, and the first ``ties`` of those at it."""
        limit = F32(threshold)
        at = key == limit
        self.only((key > limit) | (at & (np.cumsum(at) <= ties)))

    def keep_from(self, logit: float) -> None:
        """Keeps what reaches a logit, less the error of a float32 of its size, and the highest."""
        threshold = min(logit - (abs(logit) + 1.0) * 1.2e-7, self.top)
        self.keep(self.x, max(threshold, -LARGEST), len(self.x))

    def order(self, key: np.ndarray) -> np.ndarray:
        """Places from the highest key down, the first of equals first."""
        return np.lexsort((np.arange(len(key)), -key))

    def rank(self, n: int) -> None:
        """Keeps the n highest, from the highest down."""
        order = self.order(self.x)
        self.only(order[self.x[order] > -np.inf][:n])
        self.is_ranked = True

    def top_k(self, k: int) -> None:
        if k >= len(self.x):
            return
        if k <= 128:
            self.rank(k)
            return
        highest = self.order(self.x)[:k]
        self.only(np.sort(highest[self.x[highest] > -np.inf]))

    def draw(self, u: float) -> tuple[int, float]:
        """The first candidate whose cumulative weight exceeds u times the total, and its log-probability."""
        if not self.is_ranked and len(self.x) <= SMALL:
            self.rank(len(self.x))
        w = self.weights()
        at = walk(w.e, 0.0, u * w.total)
        return int(self.ids[at]), (float(self.x[at]) - self.top) - log_double(w.total)


def walk(weight: np.ndarray, total: float, target: float) -> int:
    """The first index at which ``total`` and the weights to it exceed the target; else the last above 0.

    Whole pieces are skipped by their sums.
    """
    last = 0
    for i, added in zip(range(0, len(weight), PIECE), piece_sums(weight)):
        piece, after = weight[i : i + PIECE], total + added
        if after > target or i + PIECE >= len(weight):
            for k, w in enumerate(piece.tolist(), i):
                if w > 0.0:
                    last, total = k, total + w
                    if total > target:
                        return k
            return last
        if after > total:
            last = i + int(np.flatnonzero(piece)[-1])
        total = after
    return last


def cut(
    key: np.ndarray, weight: np.ndarray, target: float, lowest: float, candidates: int
) -> tuple[float, int]:
    """Threshold and ties for `Candidates.keep`: the highest keys whose weights exceed the target.

    Seven thresholds are tried at a time over the open range, until at most 1,024 keys are left to sort.
    """
    finite = key[key > -np.inf]
    low, high = max(F32(lowest), finite.min()), finite.max()
    threshold, ties, above = float(low), candidates, 0.0
    while len(key) > SMALL and low < high:
        bounds = [
            F32(float(low) + (float(high) - float(low)) * (j + 1) / (SPLITS + 1)) for j in range(SPLITS)
        ]
        mass = [in_order(piece_sums(np.where(key < bound, F32(0), weight))) for bound in bounds]
        j = max((j for j in range(SPLITS) if above + mass[j] > target), default=-1)
        inside = key >= (bounds[j] if j >= 0 else low)
        if j < SPLITS - 1:
            inside &= key < bounds[j + 1]
            above, threshold = above + mass[j + 1], float(bounds[j + 1])
        key, weight = key[inside], weight[inside]
        if not len(key):
            return threshold, ties
        low, high = key.min(), key.max()
    if len(key) > SMALL:
        return float(low), walk(weight, above, target) + 1
    order = np.lexsort((np.arange(len(key)), -key))
    total = above
    for i, at in enumerate(order):
        total += float(weight[at])
        if total > target or i + 1 == len(order) or key[order[i + 1]] == -np.inf:
            break
    threshold = float(key[order[i]])
    return threshold, int((key[order[: i + 1]] == F32(threshold)).sum())
