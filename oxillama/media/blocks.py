"""The parts of encoders: products with clamps, norms, attention, feed-forward blocks; all by the kernels.

Rows are float32 (n, width). What NumPy does here are additions, products and comparisons of single elements,
which have the same bits on every machine; sums along an axis are written as additions in order.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama.errors import LoadError
from oxillama.models.flash_attention import batched_flash_attention
from oxillama.models.layers.norm import Norm
from oxillama.weights.linear import Linear, Pass
from oxillama.weights.loader import Weights

T = TypeVar("T")

Segments = Sequence[tuple[int, int]]
"""Beginnings and ends of rows that see each other."""

Steps = Generator[None, None, T]
"""Work that may be interrupted at each ``yield``, and what it comes to."""


def finished(steps: Steps[T]) -> T:
    """The result of work that is done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


@dataclass
class Tools:
    """What all parts of an encoder share: its tensors, and how many threads to use."""

    weights: Weights
    n_threads: int

    def matrix(self, name: str, cols: int, rows: int | None = None) -> Matrix:
        """The matrix ``name`` for rows of ``cols``; ``rows`` is the width that it gives, None for any."""
        stored = self.weights.shape(f"{name}.weight")
        rows = (stored[1] if len(stored) == 2 else 1) if rows is None else rows
        return Matrix(self, self.weights.linear([(name, rows)], cols), read_clamps(self, name))

    def unrolled(self, name: str, shape: tuple[int, ...]) -> Matrix:
        """The kernel of a convolution as a matrix; ``shape`` in GGUF order, the last of it the outputs.

        Convolutions multiply numbers of 16 bits, as ggml's do. Of two dimensions it is a matrix like others.
        """
        values = self.weights.array(name, shape)
        is_convolution = len(shape) > 2
        if is_convolution:
            values = halved(values)
        linear = self.weights.linear_from(name, values.reshape(shape[-1], -1))
        return Matrix(self, linear, None, is_convolution)

    def norm(self, name: str, width: int, kind: str, eps: float) -> Norm:
        """A norm, "rms" or "layer", with the weight and the bias that the file has."""
        weights = self.weights
        weight = weights.vector(f"{name}.weight", width)
        bias = weights.vector(f"{name}.bias", width) if weights.has(f"{name}.bias") else None
        return Norm(weights.kernels, kind == "layer", eps, weight, bias)

    def optional_norm(self, name: str, width: int, kind: str, eps: float) -> Norm | None:
        """A norm; None where the file has none."""
        return self.norm(name, width, kind, eps) if self.weights.has(f"{name}.weight") else None

    def plain_norm(self, eps: float) -> Norm:
        """An RMS norm without weight."""
        return Norm(self.weights.kernels, False, eps, None, None)

    def vector(self, name: str, width: int) -> np.ndarray | None:
        """float32 (width,); None where the file has none."""
        return self.weights.vector(name, width) if self.weights.has(name) else None

    def activate(self, x: np.ndarray, name: str) -> np.ndarray:
        """The activation of x, in place; returns it."""
        self.weights.kernels.vector.activate(x, name, x, self.n_threads)
        return x


def normed(norm: Norm | None, x: np.ndarray, n_threads: int) -> np.ndarray:
    """The norm of x (n, d), in new memory; x itself for None."""
    return x if norm is None else norm.apply(np.ascontiguousarray(x), np.empty_like(x), n_threads)


Clamps = tuple[float, float, float, float]
"""Least and most input, least and most output."""


def read_clamps(tools: Tools, name: str) -> Clamps | None:
    """The bounds of a matrix's inputs and outputs; None where the file has none. Raises LoadError for NaN."""
    ends = ("input_min", "input_max", "output_min", "output_max")
    found = [tools.vector(f"{name}.{end}", 1) for end in ends]
    if all(bound is None for bound in found):
        return None
    usual = (-np.inf, np.inf, -np.inf, np.inf)
    bounds = [float(at if bound is None else bound[0]) for bound, at in zip(found, usual, strict=True)]
    if any(bound != bound for bound in bounds):
        raise LoadError(f"{name}: expected bounds that are numbers, got {bounds}")
    return bounds[0], bounds[1], bounds[2], bounds[3]


class Matrix:
    """y = x W^T + b, of clamped inputs and then clamped where the file states bounds.

    Parameters
    ----------
    is_halved : x is rounded to float16 before.
    """

    def __init__(self, tools: Tools, linear: Linear, clamps: Clamps | None, is_halved: bool = False) -> None:
        self.linear = linear
        self.is_halved = is_halved
        self.n_threads: int = tools.n_threads
        self.clamps = clamps
        self.rows: int = linear.rows

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """float32 (n, rows) of float32 (n, cols)."""
        x = np.ascontiguousarray(x, np.float32)
        if self.is_halved:
            x = halved(x)
        if self.clamps is not None:
            x = clamped(x, *self.clamps[:2])
        y = np.empty((len(x), self.linear.rows), np.float32)
        if len(x):
            scratch = aligned_empty(self.linear.scratch_bytes(len(x)))
            self.linear.apply(x, y, Pass(scratch, self.n_threads))
        return y if self.clamps is None else clamped(y, *self.clamps[2:])


def halved(x: np.ndarray) -> np.ndarray:
    """float32 x, rounded to float16; what is too large for it is its largest number."""
    found: np.ndarray = clamped(x, -65504.0, 65504.0).astype(np.float16).astype(np.float32)
    return found


def clamped(x: np.ndarray, least: float, most: float) -> np.ndarray:
    """x, bounded."""
    found: np.ndarray = np.minimum(np.maximum(x, np.float32(least)), np.float32(most))
    return found


@dataclass
class Shape:
    """Sizes and facts of an encoder's blocks.

    Attributes
    ----------
    norm : "rms" or "layer". scale : of the scores. neox : pairs (k, k + d/2) rotate, else (2k, 2k + 1).
    halves : pairs (k, k + d/4) rotate within each half of a head.
    swaps : up and down may have each other's names. v_norm : values are normed.
    """

    prefix: str
    width: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    eps: float
    norm: str
    activation: str
    scale: float
    neox: bool = False
    halves: bool = False
    swaps: bool = False
    v_norm: bool = False


class Attention:
    """Attention of one block over all rows of a segment."""

    def __init__(self, tools: Tools, shape: Shape, block: str) -> None:
        self.tools: Tools = tools
        self.shape: Shape = shape
        q, k = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        fused = tools.weights.has(f"{block}.attn_qkv.weight")
        parts = [("attn_qkv", q + 2 * k)] if fused else [("attn_q", q), ("attn_k", k), ("attn_v", k)]
        self.parts: list[Matrix] = [
            tools.matrix(f"{block}.{name}", shape.width, rows) for name, rows in parts
        ]
        self.q_norm: Norm | None = self._norm(f"{block}.attn_q_norm", q)
        self.k_norm: Norm | None = self._norm(f"{block}.attn_k_norm", k)
        self.v_norm: Norm | None = tools.plain_norm(shape.eps) if shape.v_norm else None
        self.out: Matrix = tools.matrix(f"{block}.attn_out", q, shape.width)

    def _norm(self, name: str, width: int) -> Norm | None:
        """The norm of queries or keys: of each head, or of the whole row."""
        stored = self.tools.weights.shape(f"{name}.weight")
        by_head = stored == (self.shape.head_dim,)
        size = self.shape.head_dim if by_head else width
        return self.tools.optional_norm(name, size, self.shape.norm, self.shape.eps)

    def run(self, x: np.ndarray, table: np.ndarray | None, segments: Segments) -> np.ndarray:
        """float32 (n, width) of float32 (n, width); ``table`` of rotations float32 (n, 2, head_dim / 2)."""
        shape, n_threads = self.shape, self.tools.n_threads
        heads, kv_heads, dim = shape.n_heads, shape.n_kv_heads, shape.head_dim
        rows = np.concatenate([part(x) for part in self.parts], axis=1)
        q, k, v = np.split(rows, [heads * dim, (heads + kv_heads) * dim], axis=1)
        q, k = self._rotated(q, self.q_norm, heads, table), self._rotated(k, self.k_norm, kv_heads, table)
        v = _by_head(v, self.v_norm, dim, n_threads)
        parts = [tuple(of[start:end] for of in (q, k, v)) for start, end in segments]
        qs, ks, vs = zip(*parts, strict=True)
        attended = batched_flash_attention(
            qs, ks, vs, heads, dim, shape.scale, causal_mask=False, num_threads=n_threads
        )
        return self.out(np.concatenate(attended))

    def _rotated(self, x: np.ndarray, norm: Norm | None, heads: int, table: np.ndarray | None) -> np.ndarray:
        x = _by_head(x, norm, self.shape.head_dim, self.tools.n_threads)
        if table is not None and self.shape.halves:
            quarters = x.reshape(len(x), heads, 4, -1)[:, :, (0, 2, 1, 3)]  # scores are the same in any order
            x = np.ascontiguousarray(quarters).reshape(len(x), -1)
        if table is not None:
            vector = self.tools.weights.kernels.vector
            vector.rope(x, heads, self.shape.head_dim, table, self.shape.neox, self.tools.n_threads)
        return x


def _by_head(x: np.ndarray, norm: Norm | None, head_dim: int, n_threads: int) -> np.ndarray:
    """x (n, heads * head_dim) normed, in memory of its own; each head apart if the norm is as wide as one."""
    x = np.array(x, order="C")
    if norm is None:
        return x
    width = head_dim if norm.weight is None else len(norm.weight)
    rows = x.reshape(-1, width)
    norm.apply(rows, rows, n_threads)
    return x


class FeedForward:
    """down(activation(gate x) * up x), or down(activation(up x)) without a gate."""

    def __init__(self, tools: Tools, shape: Shape, block: str) -> None:
        self.tools: Tools = tools
        self.activation: str = shape.activation
        names = ["ffn_up", "ffn_down"]
        if shape.swaps and tools.weights.shape(f"{block}.ffn_down.weight")[:1] == (shape.width,):
            names.reverse()
        gate = f"{block}.ffn_gate"
        has_gate = tools.weights.has(f"{gate}.weight")
        self.gate: Matrix | None = tools.matrix(gate, shape.width, shape.n_ff) if has_gate else None
        self.up: Matrix = tools.matrix(f"{block}.{names[0]}", shape.width, shape.n_ff)
        self.down: Matrix = tools.matrix(f"{block}.{names[1]}", shape.n_ff, shape.width)

    def run(self, x: np.ndarray) -> np.ndarray:
        """float32 (n, width) of float32 (n, width)."""
        up = self.up(x)
        if self.gate is None:
            return self.down(self.tools.activate(up, self.activation))
        gates = self.tools.activate(self.gate(x), self.activation)
        gates *= up
        return self.down(gates)


class Block:
    """x += post(scale * attention(norm x)), then x += scale * post(feed_forward(norm x)), then x *= scale."""

    def __init__(self, tools: Tools, shape: Shape, i: int) -> None:
        block, width = f"{shape.prefix}.blk.{i}", shape.width
        self.tools = tools

        def norm(name: str) -> Norm | None:
            return tools.optional_norm(f"{block}.{name}", width, shape.norm, shape.eps)

        self.attn_norm, self.attn_post_norm = norm("ln1"), norm("attn_post_norm")
        self.ffn_norm, self.ffn_post_norm = norm("ln2"), norm("ffn_post_norm")
        self.attn_scale: np.ndarray | None = tools.vector(f"{block}.ls1.weight", width)
        self.ffn_scale: np.ndarray | None = tools.vector(f"{block}.ls2.weight", width)
        self.out_scale: np.ndarray | None = _out_scale(tools, f"{block}.out_scale.weight", width)
        self.attention: Attention = Attention(tools, shape, block)
        self.feed_forward: FeedForward = FeedForward(tools, shape, block)

    def steps(self, x: np.ndarray, table: np.ndarray | None, segments: Segments) -> Steps[np.ndarray]:
        """float32 (n, width) of float32 (n, width)."""
        n_threads = self.tools.n_threads
        y = self.attention.run(normed(self.attn_norm, x, n_threads), table, segments)
        if self.attn_scale is not None:
            y *= self.attn_scale
        x = x + normed(self.attn_post_norm, y, n_threads)
        yield
        y = self.feed_forward.run(normed(self.ffn_norm, x, n_threads))
        y = normed(self.ffn_post_norm, y, n_threads)
        if self.ffn_scale is not None:
            y = y * self.ffn_scale
        x = x + y
        return x if self.out_scale is None else x * self.out_scale


def _out_scale(tools: Tools, name: str, width: int) -> np.ndarray | None:
    """A factor of the whole block: one, or one for each column."""
    return tools.vector(name, 1 if tools.weights.shape(name) == (1,) else width)


def load_blocks(tools: Tools, shape: Shape, n: int) -> list[Block]:
    """The first ``n`` blocks."""
    return [Block(tools, shape, i) for i in range(n)]
