"""Selectors of blocks of positions, and attention to the chosen blocks and to the newest positions.

A block has one key, made of its tokens once it is complete, and kept at the position of its last token. A row
chooses among the complete blocks up to its own position; it always sees the positions behind them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.models.layers.attention import Attention
from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.layers.history import BlockInputs, mean_of, pooled
from oxillama.models.layers.latent_attention import LatentAttention
from oxillama.models.layers.recurrent import RecurrentBlock
from oxillama.models.layers.selector import Selector
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


def with_newest(blocks: np.ndarray, last: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions in chosen complete blocks and behind all complete blocks, ascending, and their numbers.

    Args:
        blocks: int32 (n, most), ascending; a row has min((last + 1) // size, most).
        last: int32 (n,), the row's own position.
    """
    n, most = blocks.shape
    complete, more = np.divmod(last + 1, size)
    found = np.empty((n, most * size + size - 1), np.int32)
    within = np.arange(size, dtype=np.int32)
    found[:, : most * size] = (blocks[:, :, None] * size + within).reshape(n, -1)
    found[:, most * size :] = complete[:, None] * size + within[:-1]
    found[complete <= most] = np.arange(found.shape[1])
    counts = np.where(complete <= most, last + 1, most * size + more)
    return found, counts.astype(np.int32)


class BlockSelector(Selector):
    """What the selectors of blocks share.

    Args:
        owner: the block in whose state they keep the inputs of incomplete blocks.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights, owner: RecurrentBlock) -> None:
        super().__init__(spec, i, weights)
        self.owner = owner

    def store(self, rows: np.ndarray, keys: np.ndarray, step: Step) -> None:
        """Keeps the keys (m, width) of blocks that end with these rows (m,)."""
        placed = step.work.rows["block_keys", len(step.batch), self.sizes.width]
        placed[:] = 0
        placed[rows] = keys
        step.kv[self.group].store(self.index, placed, 0, 0, step.n_threads)

    def seen(self, queries: np.ndarray, weights: np.ndarray, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """The positions that the rows see, and how many."""
        return with_newest(self.chosen(queries, weights, step), step.batch.positions, self.sizes.block)


class PooledSelector(BlockSelector):
    """A block's key is a sum of its tokens' keys, weighted by a softmax channel by channel (GLM-5.3)."""

    def __init__(self, spec: Spec, i: int, weights: Weights, owner: RecurrentBlock) -> None:
        super().__init__(spec, i, weights, owner)
        assert spec.latent is not None
        block, sizes, width = f"blk.{i}.indexer", self.sizes, self.sizes.width
        keys = [(f"{block}.attn_k", width), (f"{block}_compressor_gate", width)]
        self.key_and_weights: Linear = weights.linear([*keys, (f"{block}.proj", sizes.n_heads)], spec.n_embd)
        self.queries = self.load_queries(weights, i, spec.latent.q_rank)
        scale, shift = (weights.vector(f"{block}.k_norm.{part}", width) for part in ("weight", "bias"))
        self.norm: HeadNorm = HeadNorm(weights.kernels, True, sizes.epsilon, 1, width, scale, shift)
        self.places: np.ndarray = weights.matrix(f"{block}_compressor_ape.weight", sizes.block, width)
        self.inputs: BlockInputs = BlockInputs(sizes.block, 2 * width)

    def linears(self) -> list[Linear]:
        return [self.queries, self.key_and_weights]

    def run(self, h: np.ndarray, compressed: np.ndarray, step: Step) -> np.ndarray | None:
        """As `PositionSelector.run`; the numbers of positions go to ``step.counts``."""
        sizes, width = self.sizes, self.sizes.width
        x = step.work.rows["selector_key", len(h), self.key_and_weights.rows]
        self.key_and_weights.apply(h, x, step)
        self.norm.apply(x, step.n_threads)
        x[:, width : 2 * width] += self.places[step.batch.positions % sizes.block]
        rows, _, parts = self.inputs.complete(self.owner, x[:, : 2 * width], step.batch)
        values, logits = parts[:, :, :width], parts[:, :, width:]
        self.store(rows, pooled(self.kernels, values, logits, step.n_threads), step)
        step.counts = None
        if not self.needed(step):
            return None
        queries, weights = self.asked(compressed, step), x[:, 2 * width :] * self.weight_scale
        chosen, step.counts = self.seen(queries, weights, step)
        return chosen


class PooledLatentAttention(LatentAttention, RecurrentBlock):
    """Latent attention to chosen blocks."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        history = self.selector.inputs.history if self.selector is not None else None
        self.state_floats: int = history.floats if history else 0
        self.record_floats: int = history.record_floats if history else 0

    def new_selector(self, spec: Spec, i: int, weights: Weights) -> Any:
        """The selector of layer ``i``."""
        return PooledSelector(spec, i, weights, self)


class MeanSelector(BlockSelector):
    """A block's key is the normed mean of its tokens' keys, rotated by its first position (Qwen 3.8)."""

    def __init__(self, spec: Spec, i: int, weights: Weights, owner: RecurrentBlock) -> None:
        super().__init__(spec, i, weights, owner)
        block, sizes, width = f"blk.{i}.indexer", self.sizes, self.sizes.width
        names = [(f"{block}.k_proj", width), (f"{block}.q_proj", sizes.n_heads * width)]
        self.keys_and_queries: Linear = weights.linear(names, spec.n_embd)
        self.query_norm, self.key_norm = (
            load_head_norm(spec, weights, f"{block}.{part}_norm.weight", heads, width)
            for part, heads in (("q", sizes.n_heads), ("k", 1))
        )
        self.inputs: BlockInputs = BlockInputs(sizes.block, width)

    def linears(self) -> list[Linear]:
        return [self.keys_and_queries]

    def run(self, h: np.ndarray, step: Step) -> tuple[np.ndarray, np.ndarray] | None:
        """The positions that the rows of h (n, d) see, and how many; None for all."""
        sizes, width = self.sizes, self.sizes.width
        x = step.work.rows["selector_key", len(h), self.keys_and_queries.rows]
        self.keys_and_queries.apply(h, x, step)
        rows, firsts, parts = self.inputs.complete(self.owner, x[:, :width], step.batch)
        keys = mean_of(parts)
        if len(keys):
            self.key_norm.apply(keys, step.n_threads)
            if self.rope is not None:
                self.turn(keys, 1, step.table_at(self.rope, firsts), step)
        self.store(rows, keys, step)
        if not self.needed(step):
            return None
        queries = np.ascontiguousarray(x[:, width:])
        self.query_norm.apply(queries, step.n_threads)
        if self.rope is not None:
            self.turn(queries, sizes.n_heads, step.tables[self.rope], step)
        return self.seen(queries, np.ones((len(h), sizes.n_heads), np.float32), step)


class BlockAttention(Attention, RecurrentBlock):
    """Attention to chosen blocks; all heads see the same."""

    is_sparse = True

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        self.selector: MeanSelector = MeanSelector(spec, i, weights, self)
        history = self.selector.inputs.history
        self.state_floats: int = history.floats
        self.record_floats: int = history.record_floats

    def linears(self) -> list[Linear]:
        return [*super().linears(), *self.selector.linears()]

    def attend(self, h: np.ndarray, qkv: np.ndarray, attended: np.ndarray, step: Step) -> None:
        """attended (n, heads value_dim) = the attended values, for rows qkv of q, k and v."""
        chosen, counts = self.selector.run(h, step) or (None, None)
        layer, kv, heads, dim = self.layer, step.kv[self.group], self.layer.n_heads, self.layer.key_dim
        kv.store(self.index, qkv, heads * dim, (heads + layer.n_kv_heads) * dim, step.n_threads)
        args = self.index, qkv, heads, self.spec.score_scale, attended, step.work.scratch, step.n_threads
        kv.attend(*args, softcap=self.options.softcap, chosen=chosen, counts=counts)
