"""Attention in which each key head sees some blocks of positions, which a selector of its own chooses
(MiniMax-M3).

The selector of a key head has one query; all share one key for each position. A block's score is the highest
product of its positions up to the row's. The newest blocks are always chosen, and count among the chosen
ones.
"""

from __future__ import annotations

import numpy as np

from oxillama.models.layers.attention import Attention
from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.layers.selector import new_scores
from oxillama.models.page_groups import selector_place
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


def positions_of(blocks: np.ndarray, last: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions of chosen blocks, and how many of them each row sees.

    Args:
        blocks: int32 (n, most), ascending; a row has min(last // size + 1, most).
        last: (n,), the row's own position, behind which it sees none.
    """
    n, most = blocks.shape
    counts = np.minimum(last // size + 1, most)
    ahead = blocks[np.arange(n), counts - 1] * size + size - 1 - last  # positions behind the token
    found = (blocks[:, :, None] * np.int32(size) + np.arange(size, dtype=np.int32)).reshape(n, -1)
    return found, (counts * size - np.maximum(ahead, 0)).astype(np.int32)


class SparseAttention(Attention):
    """Attention of one layer. Each key head has a place of its own in the pages."""

    is_sparse = True

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        assert spec.selector is not None
        block, sizes = f"blk.{i}.indexer", spec.selector
        self.sizes = sizes
        self.keys_group, self.keys_index = selector_place(spec, i)
        widths = [(f"{block}.q_proj", sizes.n_heads * sizes.width), (f"{block}.k_proj", sizes.width)]
        self.indexer: Linear = weights.linear(widths, spec.n_embd)
        self.indexer_norms: list[HeadNorm] = [
            load_head_norm(spec, weights, f"{block}.{part}_norm.weight", heads, sizes.width, column)
            for part, heads, column in (("q", sizes.n_heads, 0), ("k", 1, sizes.n_heads * sizes.width))
        ]

    def linears(self) -> list[Linear]:
        return [self.indexer, *super().linears()]

    def attend(self, h: np.ndarray, qkv: np.ndarray, attended: np.ndarray, step: Step) -> None:
        """attended (n, heads value_dim) = the attended values, key head by key head, for rows qkv of q, k and
        v."""
        layer, n, kv, work = self.layer, len(h), step.kv[self.group], step.work
        heads, kv_heads, dim, value_dim = layer.n_heads, self.kv_heads, layer.key_dim, layer.value_dim
        group, parts = heads // kv_heads, attended.reshape(n, kv_heads, -1)
        chosen = self.choose(h, step)
        for head in range(kv_heads):
            key, value = (heads + head) * dim, (heads + kv_heads) * dim + head * value_dim
            kv.store(self.index + head, qkv, key, value, step.n_threads)
            q, out = work.rows["head_q", n, group * dim], work.rows["head_out", n, group * value_dim]
            q[:] = qkv[:, head * group * dim : (head + 1) * group * dim]
            args = self.index + head, q, group, self.spec.score_scale, out, work.scratch, step.n_threads
            if chosen is None:
                kv.attend(*args)
            else:
                kv.attend(*args, chosen=chosen[head][0], counts=chosen[head][1])
            parts[:, head] = out

    def choose(self, h: np.ndarray, step: Step) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """The positions that the rows of h (n, d) see, for each key head, and their number; None for all."""
        sizes, n, n_threads, work = self.sizes, len(h), step.n_threads, step.work
        x = work.rows["selector_key", n, self.indexer.rows]
        self.indexer.apply(h, x, step)
        for norm in self.indexer_norms:
            norm.apply(x, n_threads)
        if self.layer.rope is not None:
            table, neox = step.tables[self.layer.rope], self.spec.ropes[self.layer.rope].neox
            self.kernels.vector.rope(x, sizes.n_heads + 1, sizes.width, table, neox, n_threads)
        kv = step.kv[self.keys_group]
        column = sizes.n_heads * sizes.width
        kv.store(self.keys_index, x, column, column, n_threads)
        positions = step.batch.positions
        longest = int(positions.max()) + 1
        if longest <= sizes.n_chosen * sizes.block:
            return None
        scores, none = new_scores(n, longest), np.ones((n, 1), np.float32)
        found = []
        for head in range(sizes.n_heads):
            q = np.ascontiguousarray(x[:, head * sizes.width : (head + 1) * sizes.width])
            blocks = np.zeros((n, sizes.n_chosen), np.int32)
            args = self.keys_index, q, 1, none, scores, blocks, work.scratch, n_threads
            kv.choose(*args, sizes.block, True, sizes.local)
            found.append(positions_of(blocks, positions, sizes.block))
        return found
