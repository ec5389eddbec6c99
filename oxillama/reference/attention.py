"""Attention of the rows of one sequence: blocks of 64 positions, partitions of 1,024, in order."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from oxillama.reference.floats import F32, LANES, exp, fma, select_max, tanh, tree, tree_max
from oxillama.reference.kv import Stored

BLOCK = 64
"""Positions whose scores share one step of the online softmax; aligned to absolute positions."""
PARTITION = 1024
"""Positions that are summed apart and then merged, in order."""
LEAST = F32(-3e38)
"""Below every score."""


@dataclass(frozen=True)
class View:
    """Which positions a row sees, and what is added to scores.

    Attributes
    ----------
    causal : none behind its own.
    window : position j only if |i - j| < window; 0 for all.
    chunk : j only if both lie between the same multiples of this; 0 for all.
    soft_cap : scores become cap tanh(score / cap); 0 for none.
    sinks : float32 (heads,), one more score without a value.
    slopes : float32 (heads,), scores lose slope * |i - j|.
    biases : float32 (heads, 2 n + 1), added to scores by j - i from -n to n; beyond as at the ends.
    """

    causal: bool = True
    window: int = 0
    chunk: int = 0
    soft_cap: float = 0.0
    sinks: np.ndarray | None = None
    slopes: np.ndarray | None = None
    biases: np.ndarray | None = None

    def first(self, i: np.ndarray) -> np.ndarray:
        """The first position that each row sees."""
        first = np.maximum(0, i + 1 - self.window) if self.window else np.zeros_like(i)
        return np.maximum(first, i - i % self.chunk) if self.chunk else first

    def last(self, i: np.ndarray, end: int) -> np.ndarray:
        """One past the last position that each row sees."""
        if self.causal:
            return i + 1
        last = np.full_like(i, end)
        last = np.minimum(last, i + self.window) if self.window else last
        return np.minimum(last, i - i % self.chunk + self.chunk) if self.chunk else last


@dataclass
class State:
    """What rows carry from block to block: the weighted sum of the values, 16 sums, the highest score."""

    outputs: np.ndarray  # (rows, heads, value_dim)
    sums: np.ndarray  # (rows, heads, 16)
    most: np.ndarray  # (rows, heads)

    def merge(self, part: State, rows: np.ndarray) -> None:
        """Adds what these rows found in one partition: both shrink to the higher score."""
        most = select_max(part.most[rows], self.most[rows])
        a, b = exp(self.most[rows] - most), exp(part.most[rows] - most)
        for name in ("sums", "outputs"):
            mine, other = getattr(self, name), getattr(part, name)[rows]
            mine[rows] = fma(other, b[..., None], mine[rows] * a[..., None])
        self.most[rows] = most


FARTHEST = 128
"""The distance from which on T5's biases are the same."""


def distance_biases(table: np.ndarray) -> np.ndarray:
    """float32 (heads, 2 * 128 + 1): T5's biases by distance (Raffel et al., 2020).

    Half of the buckets of ``table`` (buckets, heads) are for keys behind the query. Half of those have one
    distance each, the others share what is left up to 128, evenly by its logarithm.
    """
    half, found = len(table) // 2, []
    near = half // 2
    for distance in range(-FARTHEST, FARTHEST + 1):
        bucket = abs(distance)
        if bucket >= near:
            share = float(Decimal(bucket / near).ln()) / float(Decimal(FARTHEST / near).ln())
            bucket = min(half - 1, near + int(share * (half - near) + 1e-9))
        found.append(table[bucket + (half if distance > 0 else 0)])
    return np.array(found, F32).T


def alibi_slopes(n_heads: int, most: float) -> np.ndarray:
    """float32 (heads,): 2^(-most (h + 1) / n) with n the power of two up to the heads.

    Heads beyond it take the odd steps of twice as many.
    """
    n = 1 << (n_heads.bit_length() - 1)
    exponents = [
        -most * (h + 1) / n if h < n else -most * (2 * (h - n) + 1) / (2 * n) for h in range(n_heads)
    ]
    return np.array([float(Decimal(2) ** Decimal(e)) for e in exponents], F32)


def empty(rows: int, heads: int, value_dim: int) -> State:
    """The state of rows that have seen nothing."""
    shape = (rows, heads)
    return State(np.zeros((*shape, value_dim), F32), np.zeros((*shape, LANES), F32), np.full(shape, LEAST))


def attend(q: np.ndarray, kv: Stored, scale: float, view: View = View()) -> np.ndarray:
    """float32 (n, heads, value_dim): softmax(scale * q k^T) v over the positions that each row sees.

    Parameters
    ----------
    q : float32 (n, heads, key_dim), the rows at the last n positions.
    kv : keys and values of all positions, as the cache holds them.
    """
    (rows, heads), n = q.shape[:2], len(kv.keys)
    positions = np.arange(n - rows, n)
    low, high = view.first(positions), view.last(positions, n)
    queries = F32(scale) * q
    total = empty(rows, heads, kv.values.shape[2])
    for start in range(0, n, PARTITION):
        part = empty(rows, heads, kv.values.shape[2])
        for block in range(start, min(start + PARTITION, n), BLOCK):
            walk_block(queries, kv, view, low, high, block, part)
        begins = low // PARTITION == start // PARTITION
        goes_on = (low // PARTITION < start // PARTITION) & (start < high)
        for name in ("outputs", "sums", "most"):
            getattr(total, name)[begins] = getattr(part, name)[begins]
        total.merge(part, goes_on)
    return finish(total, view)


def walk_block(
    queries: np.ndarray, kv: Stored, view: View, low: np.ndarray, high: np.ndarray, block: int, state: State
) -> None:
    """All rows through the positions from ``block`` on."""
    heads, n = queries.shape[1], len(kv.keys)
    at = np.arange(block, min(block + BLOCK, n))
    seen = (at >= low[:, None]) & (at < high[:, None])  # (rows, positions)
    rows = np.flatnonzero(seen.any(axis=1))
    if not len(rows):
        return
    seen, group, own = seen[rows], heads // kv.keys.shape[1], rows + n - len(queries)
    scores = kv.scores(queries[rows], at, group)  # (rows, heads, positions)
    if view.soft_cap:
        scores = F32(view.soft_cap) * tanh((F32(1) / F32(view.soft_cap)) * scores)
    if view.slopes is not None:
        distance = np.abs(at - own[:, None]).astype(F32)[:, None]
        scores = fma(-view.slopes[:, None], distance, scores)
    if view.biases is not None:
        reach = view.biases.shape[1] // 2
        scores = scores + view.biases[:, reach + np.clip(at - own[:, None], -reach, reach)].swapaxes(0, 1)
    scores = np.where(seen[:, None], scores, LEAST)
    in_panels = np.full((*scores.shape[:2], BLOCK), LEAST)
    in_panels[..., : len(at)] = scores
    panels = in_panels.reshape(*scores.shape[:2], BLOCK // LANES, LANES)
    lanes = np.broadcast_to(state.most[rows][..., None], (*scores.shape[:2], LANES))
    for p in range(BLOCK // LANES):
        lanes = select_max(panels[:, :, p], lanes)
    most = tree_max(lanes)
    grows = most != state.most[rows]
    shrink = exp(state.most[rows] - most)[..., None]
    sums = np.where(grows[..., None], state.sums[rows] * shrink, state.sums[rows])
    outputs = np.where(grows[..., None], state.outputs[rows] * shrink, state.outputs[rows])
    visible = np.zeros((len(rows), 1, BLOCK), bool)
    visible[:, 0, : len(at)] = seen
    weights = np.where(visible, kv.weights(in_panels - most[..., None]), F32(0))
    for p in range(BLOCK // LANES):
        sums = sums + weights[..., LANES * p : LANES * (p + 1)]
    outputs = kv.add_values(outputs, weights, seen, at, group)
    state.sums[rows], state.outputs[rows], state.most[rows] = sums, outputs, most


def finish(state: State, view: View) -> np.ndarray:
    """Outputs times shrink / (sum of exponentials); a sink is one more exponential."""
    total, shrink = tree(state.sums), np.ones_like(state.most)
    if view.sinks is not None:
        sinks = np.broadcast_to(view.sinks, state.most.shape)
        top = np.where(state.most < sinks, sinks, state.most)
        shrink = exp(state.most - top)
        total = fma(total, shrink, exp(sinks - top))
    found: np.ndarray = state.outputs * (shrink / total)[..., None]
    return found
