"""Attention for the rows of one sequence: blocks of 64 positions, partitions of 1,024, in order."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from oxillama.reference.floats import (
    F32,
    LANES,
    exp,
    fma,
    over_logistic,
    select_max,
    softplus,
    tanh,
    tree,
    tree_max,
)
from oxillama.reference.kv import Stored
from oxillama.reference.source import Source

LN2 = F32(0.6931471805599453)


def output_gate(source: Source, block: str, h: np.ndarray, attended: np.ndarray) -> np.ndarray:
    """Attended values (n, heads * dim), each head or element times the activation of its gate."""
    gates, name = source.linear(f"{block}.attn_gate", h), source.facts.gate_activation
    if name == "softplus2":
        shares = softplus(gates * LN2) * (F32(1) / LN2)
    else:
        shares = softplus(gates) if name == "softplus" else over_logistic(np.ones_like(gates), gates)
    return (attended.reshape(*shares.shape, -1) * shares[..., None]).reshape(attended.shape)


BLOCK = 64
"""Positions whose scores share one step of the online softmax; aligned to absolute positions."""
PARTITION = 1024
"""Positions of a partition; partitions are summed separately and then merged, in order."""
LEAST = F32(-3e38)
"""A number below every score."""


@dataclass(frozen=True)
class View:
    """Defines which positions a row sees, and terms that are added to scores.

    Attributes:
        causal: whether a row sees no later positions.
        window: row i sees position j only if |i - j| < window; 0: unlimited.
        chunk: row i sees position j only if i // chunk == j // chunk; 0: unlimited.
        soft_cap: scores become cap * tanh(score / cap); 0: unchanged.
        sinks: float32 (heads,), one more score of each head, without a value.
        slopes: float32 (heads,), slope * |i - j| is subtracted from scores.
        biases: float32 (heads, 2 n + 1), added to scores by j - i from -n to n; clipped to that range.
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
        """The last position that each row sees, plus one."""
        if self.causal:
            return i + 1
        last = np.full_like(i, end)
        last = np.minimum(last, i + self.window) if self.window else last
        return np.minimum(last, i - i % self.chunk + self.chunk) if self.chunk else last


EVERYTHING = View()


@dataclass
class State:
    """The running state of rows: weighted sum of values, 16 partial sums of weights, maximum score."""

    outputs: np.ndarray  # (rows, heads, value_dim)
    sums: np.ndarray  # (rows, heads, 16)
    most: np.ndarray  # (rows, heads)

    def merge(self, part: State, rows: np.ndarray) -> None:
        """Add the state of these rows in one partition: both are scaled to the larger maximum."""
        most = select_max(part.most[rows], self.most[rows])
        a, b = exp(self.most[rows] - most), exp(part.most[rows] - most)
        for name in ("sums", "outputs"):
            mine, other = getattr(self, name), getattr(part, name)[rows]
            mine[rows] = fma(other, b[..., None], mine[rows] * a[..., None])
        self.most[rows] = most


FARTHEST = 128
"""The distance from which on T5's biases are constant."""


def distance_biases(table: np.ndarray) -> np.ndarray:
    """float32 (heads, 2 * 128 + 1): T5's biases by distance (Raffel et al., 2020).

    Half of the buckets of ``table`` (buckets, heads) are for keys after the query. Half of these have one
    distance each; the other half divides distances up to 128 evenly by their logarithm.
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
    """float32 (heads,): 2^(-most (h + 1) / n), where n is the largest power of two up to the heads.

    Heads beyond n take the odd steps of the same formula with 2 n.
    """
    n = 1 << (n_heads.bit_length() - 1)
    exponents = [
        -most * (h + 1) / n if h < n else -most * (2 * (h - n) + 1) / (2 * n) for h in range(n_heads)
    ]
    return np.array([float(Decimal(2) ** Decimal(e)) for e in exponents], F32)


def empty(rows: int, heads: int, value_dim: int) -> State:
    """The state of rows that have seen no position."""
    shape = (rows, heads)
    return State(np.zeros((*shape, value_dim), F32), np.zeros((*shape, LANES), F32), np.full(shape, LEAST))


def attend(
    q: np.ndarray, kv: Stored, scale: float, view: View = EVERYTHING, first: int | None = None
) -> np.ndarray:
    """float32 (n, heads, value_dim): softmax(scale * q k^T) v over the positions that each row sees.

    Args:
        q: float32 (n, heads, key_dim), the rows at n consecutive positions.
        kv: keys and values of all positions, in the cache's representation.
        first: position of the first row; None where the rows are the last ones.
    """
    (rows, heads), n = q.shape[:2], len(kv.keys)
    positions = np.arange(rows) + (n - rows if first is None else first)
    low, high = view.first(positions), view.last(positions, n)
    queries = F32(scale) * q
    total = empty(rows, heads, kv.values.shape[2])
    for start in range(0, n, PARTITION):
        part = empty(rows, heads, kv.values.shape[2])
        for block in range(start, min(start + PARTITION, n), BLOCK):
            walk_block(queries, kv, view, positions, low, high, block, part)
        begins = low // PARTITION == start // PARTITION
        goes_on = (low // PARTITION < start // PARTITION) & (start < high)
        for name in ("outputs", "sums", "most"):
            getattr(total, name)[begins] = getattr(part, name)[begins]
        total.merge(part, goes_on)
    return finish(total, view)


def walk_block(
    queries: np.ndarray,
    kv: Stored,
    view: View,
    positions: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    block: int,
    state: State,
) -> None:
    """Process the positions of one block, which begins at ``block``, for the rows at ``positions``."""
    heads, n = queries.shape[1], len(kv.keys)
    at = np.arange(block, min(block + BLOCK, n))
    seen = (at >= low[:, None]) & (at < high[:, None])  # (rows, positions)
    rows = np.flatnonzero(seen.any(axis=1))
    if not len(rows):
        return
    seen, group, own = seen[rows], heads // kv.keys.shape[1], positions[rows]
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
    """outputs * shrink / (sum of exponentials); a sink adds one more exponential to the sum."""
    total, shrink = tree(state.sums), np.ones_like(state.most)
    if view.sinks is not None:
        sinks = np.broadcast_to(view.sinks, state.most.shape)
        top = np.where(state.most < sinks, sinks, state.most)
        shrink = exp(state.most - top)
        total = fma(total, shrink, exp(sinks - top))
    found: np.ndarray = state.outputs * (shrink / total)[..., None]
    return found
