"""The candidates of one token: weights, thresholds, and the draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.errors import SamplingError
from oxillama.reference.floats import F32, LANES, exp, fma, log_double, select_max, tree

LARGEST = float(np.finfo(F32).max)
SMALL = 1024
"""Up to this number of candidates, thresholds are found by sorting instead of a search."""
SPLITS = 7
"""Number of thresholds that a step of the search tests."""
PIECE = 256
"""Number of weights that are added in 16 lanes of float32; the sums of pieces are added in double."""


@dataclass
class Weights:
    """e = exp(x - top), sum(e), and sum(e * (x - top))."""

    e: np.ndarray
    total: float
    moment: float

    @property
    def entropy(self) -> float:
        """The entropy in nats."""
        return max(log_double(self.total) - self.moment / self.total, 0.0)


def in_pieces(x: np.ndarray, fill: float = 0.0) -> np.ndarray:
    """(16, pieces, 16): x in pieces of 256, each in 16 steps of 16 lanes."""
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
    """The sum of doubles one by one, since Python's `sum` compensates for rounding."""
    total = 0.0
    for number in numbers:
        total += number
    return total


class Candidates:
    """The tokens that may be chosen, ordered by id until `rank` sorts them by descending logits.

    Attributes:
        ids, x: int64 (n,) and float32 (n,), token ids and logits; -inf is not a candidate.
        vocab: size of the vocabulary.
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

    def logprob(self, token: int) -> float:
        """The log-probability of a token among all of the vocabulary."""
        return (float(self.x[token]) - self.top) - log_double(self.weights().total)

    def weights(self) -> Weights:
        """The weights of the candidates for the draw."""
        d = self.x - F32(self.top)
        e = exp(d)
        moments = np.zeros((-(-len(d) // PIECE), LANES), F32)
        for step, distance in zip(in_pieces(e), in_pieces(select_max(d, np.full_like(d, -128)))):
            moments = fma(step, distance, moments)
        return Weights(e, in_order(piece_sums(e)), in_order(tree(moments).tolist()))

    def only(self, at: np.ndarray) -> None:
        """Keep the candidates at these indices, in this order."""
        self.ids, self.x = self.ids[at], self.x[at]

    def keep(self, key: np.ndarray, threshold: float, ties: int) -> None:
        """Keep candidates with a key above the threshold, and the first ``ties`` with a key equal to it."""
        limit = F32(threshold)
        at = key == limit
        self.only((key > limit) | (at & (np.cumsum(at) <= ties)))

    def keep_from(self, logit: float) -> None:
        """Keep logits >= ``logit`` minus its float32 rounding error, and always the highest candidate."""
        threshold = min(logit - (abs(logit) + 1.0) * 1.2e-7, self.top)
        self.keep(self.x, max(threshold, -LARGEST), len(self.x))

    def order(self, key: np.ndarray) -> np.ndarray:
        """Indices sorted by descending key, stable."""
        return np.lexsort((np.arange(len(key)), -key))

    def rank(self, n: int) -> None:
        """Keep the n highest candidates, sorted by descending logits."""
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
    """The first index where ``total`` plus the cumulative weights exceeds the target; else the last weight >
    0.

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
    """Threshold and ties for `Candidates.keep`: the highest keys whose total weight exceeds the target.

    Seven thresholds at a time divide the open range, until at most 1,024 keys are left to sort.
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
