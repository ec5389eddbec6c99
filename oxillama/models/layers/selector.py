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
from oxillama.models.sizes import Selector as SelectorSizes
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

BLOCK = 64  # positions that the kernel scores at a time
ROWS = 16  # rows whose scores are in memory at a time


def new_scores(n: int, longest: int) -> np.ndarray:
    """Working memory for the scores of n rows, of sequences of up to ``longest`` positions."""
    return np.empty((min(n, ROWS), -(-longest // BLOCK) * BLOCK), np.float32)


class Selector:
    """What the selectors of positions and of blocks share: the keys' pages, and the choice."""

    queries: Linear
    """The matrix that makes a selector's queries from compressed queries."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        assert spec.selector is not None
        self.sizes: SelectorSizes = spec.selector
        self.group, self.index = selector_place(spec, i)
        self.rope: int | None = spec.layers[i].rope
        self.kernels: Kernels = weights.kernels
        self.weight_scale = np.float32((self.sizes.width * self.sizes.n_heads) ** -0.5)

    def load_queries(self, weights: Weights, i: int, rank: int) -> Linear:
        """The matrix of queries from ``rank`` compressed ones."""
        return weights.linear([(f"blk.{i}.indexer.attn_q_b", self.sizes.n_heads * self.sizes.width)], rank)

    def turn(self, x: np.ndarray, heads: int, table: np.ndarray, step: Step) -> None:
        """Rotates heads, at the positions of the table."""
        sizes = self.sizes
        column = sizes.width - 2 * table.shape[2] if sizes.turns_last else 0
        self.kernels.vector.rope(x, heads, sizes.width, table, sizes.neox, step.n_threads, column)

    def needed(self, step: Step) -> bool:
        """Whether a row has more positions or blocks to choose from than it may."""
        return int(step.batch.positions.max() + 1) // self.sizes.block > self.sizes.n_chosen

    def asked(self, compressed: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, heads width): the queries of compressed ones (n, rank), not rotated."""
        queries = step.work.rows["selector_queries", len(compressed), self.queries.rows]
        self.queries.apply(compressed, queries, step)
        return queries

    def chosen(self, queries: np.ndarray, weights: np.ndarray, step: Step) -> np.ndarray:
        """int32 (n, n_chosen): the positions or blocks with the highest scores, ascending; of a row that has
        fewer, those come first."""
        sizes, n = self.sizes, len(queries)
        scores = new_scores(n, int(step.batch.positions.max()) + 1)
        found = np.zeros((n, sizes.n_chosen), np.int32)
        args = self.index, queries, sizes.n_heads, weights, scores, found, step.work.scratch, step.n_threads
        step.kv[self.group].choose(*args, sizes.block)
        return found


class PositionSelector(Selector):
    """The selector of one layer."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        assert spec.latent is not None
        block, sizes = f"blk.{i}.indexer", self.sizes
        self.queries = self.load_queries(weights, i, spec.latent.q_rank)
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
        keys = step.work.rows["selector_key", len(h), self.key_and_weights.rows]
        self.key_and_weights.apply(h, keys, step)
        self.norm.apply(keys, step.n_threads)
        if self.rope is not None:
            self.turn(keys, 1, step.tables[self.rope], step)
        step.kv[self.group].store(self.index, keys, 0, 0, step.n_threads)
        if not self.needed(step):
            return None
        queries = self.asked(compressed, step)
        if self.rope is not None:
            self.turn(queries, self.sizes.n_heads, step.tables[self.rope], step)
        return self.chosen(queries, keys[:, self.sizes.width :] * self.weight_scale, step)
