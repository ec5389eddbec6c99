"""Attention to a window and to compressed blocks (DeepSeek-V4): one key head, whose keys are also its values.

A layer's blocks have 4 tokens, of which a selector chooses some, or 128, and then a row sees all complete
ones. The key of a block is a sum of its tokens' keys, weighted by a softmax channel by channel, normed, and
rotated by the block's first position. Blocks of 4 overlap: they have keys of their own for the block behind
them. What is attended rotates back by the row's position. Groups of heads then go through a matrix each.
"""

from __future__ import annotations

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.block_selector import BlockSelector
from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.layers.history import BlockInputs, pooled
from oxillama.models.layers.recurrent import RecurrentBlock
from oxillama.models.page_groups import place_of
from oxillama.models.sizes import Compression
from oxillama.models.spec import Spec
from oxillama.models.weights.grouped import GroupedLinear, row_groups
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

OVERLAPPING = 4
"""Tokens of blocks that overlap, and are chosen."""
NEVER = np.float32(-3e38)


class Compressor:
    """The keys of complete blocks.

    Args:
        name: of its tensors, without "_kv", "_gate", "_ape" and "_norm".
        width: of a key.
        size: tokens of a block.
        at, record: where its floats begin in the owner's states and records.
    """

    def __init__(
        self, spec: Spec, weights: Weights, name: str, width: int, size: int, rope: int, at: int, record: int
    ) -> None:
        self.parts: int = 2 if size == OVERLAPPING else 1
        self.width = width
        self.rope = rope
        self.kernels: Kernels = weights.kernels
        wide = self.parts * width
        self.names: list[tuple[str, int]] = [(f"{name}_kv", wide), (f"{name}_gate", wide)]
        self.places: np.ndarray = weights.matrix(f"{name}_ape.weight", size, wide)
        self.norm: HeadNorm = load_head_norm(spec, weights, f"{name}_norm.weight", 1, width)
        self.inputs: BlockInputs = BlockInputs(size, 2 * wide, self.parts == 2, at, record)

    def run(self, owner: RecurrentBlock, x: np.ndarray, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """The rows that complete blocks, and float32 (m, width), the blocks' keys; x (n, 2 parts width) is
        changed."""
        width, half = self.width, x.shape[1] // 2
        x[:, half:] += self.places[step.batch.positions % len(self.places)]
        rows, firsts, given = self.inputs.complete(owner, x, step.batch)
        values, logits = given[:, :, :half], given[:, :, half:]
        if self.parts == 2:  # the first halves of the block before, the second halves of its own
            size = len(self.places)
            values, logits = (
                np.concatenate([each[:, :size, :width], each[:, size:, width:]], axis=1)
                for each in (values, logits)
            )
            logits[firsts == 0, :size] = NEVER
        keys = pooled(self.kernels, values, logits, step.n_threads)
        if len(keys):
            self.norm.apply(keys, step.n_threads)
            table = step.table_at(self.rope, firsts)
            first = width - 2 * table.shape[2]
            self.kernels.vector.rope(keys, 1, width, table, False, step.n_threads, first)
        return rows, keys


class CompressedSelector(BlockSelector):
    """The selector of blocks of 4, which have keys of its own."""

    def __init__(
        self, spec: Spec, i: int, weights: Weights, owner: RecurrentBlock, at: int, record: int
    ) -> None:
        super().__init__(spec, i, weights, owner)
        assert spec.compression is not None and self.rope is not None
        sizes, block = self.sizes, f"blk.{i}.indexer"
        self.queries = self.load_queries(weights, i, spec.compression.q_rank)
        names = f"{block}_compressor", sizes.width, sizes.block, self.rope, at, record
        self.compressor: Compressor = Compressor(spec, weights, *names)
        self.names: list[tuple[str, int]] = [*self.compressor.names, (f"{block}.proj", sizes.n_heads)]

    def run(self, x: np.ndarray, compressed: np.ndarray, step: Step) -> np.ndarray | None:
        """Stores the keys of complete blocks; int32 (n, most), the blocks that rows choose, None for all.

        x (n, width) are the products of its matrices ``names``, compressed (n, q_rank) the queries of
        attention.
        """
        wide = 4 * self.sizes.width
        self.store(*self.compressor.run(self.owner, np.ascontiguousarray(x[:, :wide]), step), step)
        if not self.needed(step):
            return None
        queries = self.asked(compressed, step)
        assert self.rope is not None
        self.turn(queries, self.sizes.n_heads, step.tables[self.rope], step)
        return self.chosen(queries, x[:, wide:] * self.weight_scale, step)


class CompressedAttention(RecurrentBlock):
    """Attention of one layer. Compressed keys are in the second of its places in the pages, at the last
    position of a block. Both places are of one page, so keys that the window has left stay in memory, too."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        assert spec.compression is not None
        sizes, layer, block, d = spec.compression, spec.layers[i], f"blk.{i}", spec.n_embd
        self.sizes: Compression = sizes
        self.heads: int = layer.n_heads
        self.dim: int = layer.key_dim
        self.size: int = layer.block_size
        self.window: int = layer.window or sizes.window
        self.rope: int = layer.rope or 0
        self.scale: float = spec.score_scale
        self.kernels: Kernels = weights.kernels
        self.group, self.index = place_of(spec, i)
        names = [(f"{block}.attn_q_a", sizes.q_rank), (f"{block}.attn_kv", self.dim)]
        self.compressor: Compressor | None = None
        self.selector: CompressedSelector | None = None
        if self.size:
            more = f"{block}.attn_compressor", self.dim, self.size, self.rope, 0, 0
            self.compressor = Compressor(spec, weights, *more)
            history = self.compressor.inputs.history
            self.state_floats, self.record_floats = history.floats, history.record_floats
            names += self.compressor.names
        if self.size == OVERLAPPING:
            self.selector = CompressedSelector(spec, i, weights, self, self.state_floats, self.record_floats)
            history = self.selector.compressor.inputs.history
            self.state_floats += history.floats
            self.record_floats += history.record_floats
            names += self.selector.names
        self.first: Linear = weights.linear(names, d)
        self.attn_q_b: Linear = weights.linear([(f"{block}.attn_q_b", self.heads * self.dim)], sizes.q_rank)
        self.norms: list[HeadNorm] = [
            load_head_norm(spec, weights, f"{block}.{name}.weight", 1, width, column)
            for name, width, column in (
                ("attn_q_a_norm", sizes.q_rank, 0), ("attn_kv_a_norm", self.dim, sizes.q_rank)
            )
        ]  # fmt: skip
        self.head_norm: HeadNorm = HeadNorm(self.kernels, False, spec.norm_eps, self.heads, self.dim, None)
        self.sinks: np.ndarray = weights.vector(f"{block}.attn_sinks.weight", self.heads)
        cols = self.heads * self.dim // sizes.groups
        self.attn_output_a: GroupedLinear = row_groups(
            weights, f"{block}.attn_output_a", sizes.groups, sizes.rank, cols
        )
        self.attn_output_b: Linear = weights.linear(
            [(f"{block}.attn_output_b", d)], sizes.groups * sizes.rank
        )

    def linears(self) -> list[Linear]:
        queries = [self.selector.queries] if self.selector else []
        return [self.first, self.attn_q_b, *queries, *self.attn_output_a.members, self.attn_output_b]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, sizes, work, n_threads, vector = len(h), self.sizes, step.work, step.n_threads, self.kernels.vector
        heads, dim, rank, kv = self.heads, self.dim, sizes.q_rank, step.kv[self.group]
        x = work.rows["qkv", n, self.first.rows]
        self.first.apply(h, x, step)
        for norm in self.norms:
            norm.apply(x, n_threads)
        compressed, q = work.rows["compressed", n, rank], work.rows["queries", n, heads * dim]
        compressed[:] = x[:, :rank]
        self.attn_q_b.apply(compressed, q, step)
        self.head_norm.apply(q, n_threads)
        table = step.tables[self.rope]
        still = dim - 2 * table.shape[2]
        vector.rope(q, heads, dim, table, False, n_threads, still)
        vector.rope(x, 1, 2 * table.shape[2], table, False, n_threads, rank + still)
        kv.store(self.index, x, rank, rank, n_threads)
        attended = work.rows["attended", n, heads * dim]
        args = self.index, q, heads, self.scale, attended, work.scratch, n_threads
        if self.compressor is None:
            kv.attend(*args, self.window, sinks=self.sinks)
        else:
            chosen, counts = self.positions(x[:, rank + dim :], compressed, step)
            kv.attend(*args, sinks=self.sinks, chosen=chosen, counts=counts)
        back = table.copy()
        np.negative(back[:, 1], out=back[:, 1])
        vector.rope(attended, heads, dim, back, False, n_threads, still)
        narrow = self.attn_output_a.each(attended.reshape(n, sizes.groups, -1), step)
        self.attn_output_b.apply(np.ascontiguousarray(narrow.reshape(n, -1)), out, step, accumulate)

    def positions(self, x: np.ndarray, compressed: np.ndarray, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """Stores compressed keys; the blocks and then the positions that each row sees, and how many.

        x (n, width) are the products of the compressors' matrices.
        """
        assert self.compressor is not None
        size, wide, last = self.size, 2 * self.compressor.parts * self.dim, step.batch.positions
        rows, keys = self.compressor.run(self, np.ascontiguousarray(x[:, :wide]), step)
        placed = step.work.rows["block_keys", len(x), self.dim]
        placed[:] = 0
        placed[rows] = keys
        step.kv[self.group].store(self.index + 1, placed, 0, 0, step.n_threads)
        complete, longest = (last + 1) // size, int(last.max()) + 1
        blocks = np.arange(longest // size, dtype=np.int32)[None]
        if self.selector is not None:
            found = self.selector.run(x[:, wide:], compressed, step)
            if found is not None:
                blocks, complete = found, np.minimum(complete, found.shape[1])
        at = np.arange(blocks.shape[1] + min(self.window, longest), dtype=np.int32)
        blocks = np.pad(blocks, ((0, 0), (0, len(at) - blocks.shape[1])))
        first = np.maximum(0, last + 1 - self.window)
        in_window = first[:, None] + at - complete[:, None]
        # a block by the position behind its last one, negated; a position of the window as it is
        chosen = np.where(at < complete[:, None], -(blocks + 1) * np.int32(size), in_window)
        return chosen.astype(np.int32), (complete + last - first + 1).astype(np.int32)
