"""Blocks of drafts: attention of rows that see each other, and convolutions over the rows of a block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.models.layers.attention import Attention
from oxillama.models.layers.layer import Block
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

OUT_OF_WINDOW = -1e30
"""Added to a score, it makes the exponential 0."""


class BlockAttention(Attention):
    """Attention whose keys and values can be stored without queries, for rows that others see."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        layer, block = self.layer, f"blk.{i}"
        value = "attn_v" if weights.has(f"{block}.attn_v.weight") else "attn_k"  # values are keys then
        widths = layer.n_kv_heads * layer.key_dim, layer.n_kv_heads * layer.value_dim
        names = [(f"{block}.{name}", width) for name, width in zip(("attn_k", value), widths)]
        self.attn_kv: Linear = weights.linear(names, spec.n_embd)

    def linears(self) -> list[Linear]:
        return [*super().linears(), self.attn_kv]

    def see(self, causal: bool, block_size: int) -> None:
        """Has rows of a block of ``block_size`` see the later ones, too, unless ``causal``."""
        window, biases = self.layer.window, None
        if not causal and 0 < window < block_size:  # a window of the kernel would end ahead of a row, too
            biases = np.zeros((self.layer.n_heads, 2 * window + 1), np.float32)
            biases[:, 0], window = OUT_OF_WINDOW, 0
        self.options = replace(self.options, causal=causal, window=window, biases=biases)

    def inject(self, g: np.ndarray, step: Step) -> None:
        """Stores the keys and values of rows g (n, d)."""
        n, width, rope, n_threads = len(g), self.attn_kv.rows, self.layer.rope, step.n_threads
        qkv, kv = step.work.rows["qkv", n, self.width], step.work.rows["injected", n, width]
        self.attn_kv.apply(g, kv, step)
        qkv[:, :-width], qkv[:, -width:] = 0, kv
        for norm in self.norms:
            norm.apply(qkv, n_threads)
        dim, heads, keys = self.layer.key_dim, self.layer.n_heads, self.layer.n_heads + self.kv_heads
        if rope is not None:
            neox = self.spec.ropes[rope].neox
            self.kernels.vector.rope(qkv, keys, dim, step.tables[rope], neox, n_threads)
        step.kv[self.group].store(self.index, qkv, heads * dim, keys * dim, n_threads)


class Convolved:
    """A block between two convolutions over the rows before a row, with weights that depend on the row.

    With n the normed input, W n holds numbers of each row for both sides, each tap and each group of columns:

        conv(y)[i] = sum over t of ((W n)[i, t] + base[t]) y[i - t], with zeros before the first row.

    Side 0 is the block's input n, side 1 its output.

    Args:
        name: of its tensors: "blk.0.attn_conv".
        taps, group: rows that one row reads, and columns that share a number.
        block_size: rows of a block of drafts; a batch is several of them.
    """

    def __init__(
        self, block: Block, name: str, weights: Weights, d: int, taps: int, group: int, block_size: int
    ) -> None:
        self.block = block
        self.shape: tuple[int, int, int] = (taps, d // group, group)
        self.block_size = block_size
        self.projection: Linear = weights.linear([(f"{name}_proj", 2 * taps * (d // group))], d)
        self.base: np.ndarray = weights.array(f"{name}_base", (d, taps, 2)).reshape(2, *self.shape)

    def linears(self) -> list[Linear]:
        return [self.projection, *self.block.linears()]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        rows = step.work.rows
        dynamic = rows["convolution", len(h), self.projection.rows]
        self.projection.apply(h, dynamic, step)
        given, y = rows.like("convolved", h), rows.like("unconvolved", h)
        given[:] = self._convolved(h, dynamic, 0)
        self.block.run(given, y, step, False)
        found = self._convolved(y, dynamic, 1)
        out[:] = out + found if accumulate else found

    def _convolved(self, y: np.ndarray, dynamic: np.ndarray, side: int) -> np.ndarray:
        """float32 (n, d)."""
        taps, groups, width = self.shape
        rows = y.reshape(-1, self.block_size, groups, width)
        numbers = dynamic.reshape(-1, self.block_size, 2, taps, groups, 1)[:, :, side]
        found = np.zeros_like(rows)
        for t in range(min(taps, self.block_size)):
            found[:, t:] += (numbers[:, t:, t] + self.base[side, t]) * rows[:, : self.block_size - t]
        return found.reshape(y.shape)
