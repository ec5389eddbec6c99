"""A selector of positions beside latent attention (DeepSeek-V3.2, 2025): rows attend to some positions only.

It has queries, one key for each position, and a weight for each of its heads:

    score(i, j) = sum_h w_h(i) max(0, q_h(i) k(j)).

Row i attends to the ``n_chosen`` positions up to its own with the highest scores, of equal ones to the first,
and to all while there are no more than that. Queries are made of the compressed queries of attention, weights
and keys of the layer's input; keys have a layer norm. The first or last dimensions of queries and keys
rotate. Keys are kept in pages of their own.
"""

from __future__ import annotations

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.head_norm import HeadNorm
from oxillama.models.page_groups import selector_place
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

BLOCK = 64  # positions that the kernel scores at a time
ROWS = 16  # rows whose scores are in memory at a time


def new_scores(n: int, longest: int) -> np.ndarray:
    """Working memory for the scores of n rows, of sequences of up to ``longest`` positions."""
    return np.empty((min(n, ROWS), -(-longest // BLOCK) * BLOCK), np.float32)


class PositionSelector:
    """The selector of one layer."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        assert spec.latent is not None and spec.selector is not None
        block, sizes = f"blk.{i}.indexer", spec.selector
        self.group, self.index = selector_place(spec, i)
        self.sizes = sizes
        self.rope: int | None = spec.layers[i].rope
        self.kernels: Kernels = weights.kernels
        self.queries: Linear = weights.linear(
            [(f"{block}.attn_q_b", sizes.n_heads * sizes.width)], spec.latent.q_rank
        )
        self.key_and_weights: Linear = weights.linear(
            [(f"{block}.attn_k", sizes.width), (f"{block}.proj", sizes.n_heads)], spec.n_embd
        )
        scale, shift = (weights.vector(f"{block}.k_norm.{part}", sizes.width) for part in ("weight", "bias"))
        self.norm: HeadNorm = HeadNorm(weights.kernels, True, sizes.epsilon, 1, sizes.width, scale, shift)

    def linears(self) -> list[Linear]:
        return [self.queries, self.key_and_weights]

    def run(self, h: np.ndarray, compressed: np.ndarray, step: Step) -> np.ndarray | None:
        """Stores the rows' keys and chooses positions.

        Args:
            h: float32 (n, d), the input of the layer's attention.
            compressed: float32 (n, q_rank), its compressed queries after their norm.

        Returns:
            int32 (n, n_chosen): of a row at position p the first min(p + 1, n_chosen) are the positions that
                it attends to, in ascending order; None if every row attends to all.
        """
        n, sizes, work, n_threads = len(h), self.sizes, step.work, step.n_threads
        keys = work.rows["selector_key", n, self.key_and_weights.rows]
        self.key_and_weights.apply(h, keys, step)
        self.norm.apply(keys, n_threads)
        table = step.tables[self.rope] if self.rope is not None else None
        if table is not None:
            first = sizes.width - 2 * table.shape[2] if sizes.turns_last else 0
            self.kernels.vector.rope(keys, 1, sizes.width, table, sizes.neox, n_threads, first)
        kv = step.kv[self.group]
        kv.store(self.index, keys, 0, 0, n_threads)
        longest = int(step.batch.positions.max()) + 1
        if longest <= sizes.n_chosen:
            return None
        queries = work.rows["selector_queries", n, self.queries.rows]
        self.queries.apply(compressed, queries, step)
        if table is not None:
            heads = sizes.n_heads
            self.kernels.vector.rope(queries, heads, sizes.width, table, sizes.neox, n_threads, first)
        weights = keys[:, sizes.width :] * np.float32((sizes.width * sizes.n_heads) ** -0.5)
        scores = new_scores(n, longest)
        chosen = np.zeros((n, sizes.n_chosen), np.int32)
        kv.choose(self.index, queries, sizes.n_heads, weights, scores, chosen, work.scratch, n_threads)
        return chosen
