"""The parts of encoders: products with clamps, norms, attention, feed-forward blocks; all by the kernels.

Rows are float32 (n, width). What NumPy does here are additions, products and comparisons of single elements,
which have the same bits on every machine; sums along an axis are written as additions in order.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama.errors import LoadError
from oxillama.models.flash_attention import new_pages
from oxillama.models.layers.head_norm import HeadNorm
from oxillama.models.layers.norm import Norm
from oxillama.models.media.facts import EncoderFacts
from oxillama.models.weights.linear import Linear, Pass
from oxillama.models.weights.loader import Weights

T = TypeVar("T")

CHUNK = 128
"""Rows that go through a matrix together: they, and some panels of it, stay in the cache."""

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

    def side_by_side(self, names: list[tuple[str, int]], cols: int) -> list[Matrix]:
        """Matrices of these rows: as one, or each alone if one of them has clamps."""
        if any(read_clamps(self, name) is not None for name, _ in names):
            return [self.matrix(name, cols, rows) for name, rows in names]
        return [Matrix(self, self.weights.linear(names, cols), None)]

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

    Args:
        is_halved: x is rounded to float16 before.
    """

    def __init__(self, tools: Tools, linear: Linear, clamps: Clamps | None, is_halved: bool = False) -> None:
        self.linear = linear
        self.is_halved = is_halved
        self.n_threads: int = tools.n_threads
        self.clamps = clamps
        self.rows: int = linear.rows

    def __call__(
        self, x: np.ndarray, y: np.ndarray | None = None, scratch: np.ndarray | None = None
    ) -> np.ndarray:
        """float32 (n, rows) of float32 (n, cols), written to y if that is given.

        ``scratch`` is memory to work in, of ``linear.scratch_bytes`` for `CHUNK` rows.
        """
        x = np.ascontiguousarray(x, np.float32)
        if self.is_halved:
            x = halved(x)
        if self.clamps is not None:
            x = clamped(x, *self.clamps[:2])
        if y is None:
            y = np.empty((len(x), self.linear.rows), np.float32)
        if scratch is None:
            scratch = aligned_empty(self.linear.scratch_bytes(min(len(x), CHUNK)))
        for rows in chunks(len(x)):
            self.linear.apply(x[rows], y[rows], Pass(scratch, self.n_threads))
        return y if self.clamps is None else clamped(y, *self.clamps[2:], out=y)


def chunks(n: int) -> list[slice]:
    """``n`` rows in pieces."""
    return [slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK)]


def halved(x: np.ndarray) -> np.ndarray:
    """float32 x, rounded to float16; what is too large for it is its largest number."""
    found: np.ndarray = clamped(x, -65504.0, 65504.0).astype(np.float16).astype(np.float32)
    return found


def clamped(x: np.ndarray, least: float, most: float, out: np.ndarray | None = None) -> np.ndarray:
    """x, bounded; in ``out``, which may be x."""
    found: np.ndarray = np.maximum(x, np.float32(least), out=out)
    np.minimum(found, np.float32(most), out=found)
    return found


class Memory:
    """Memory that the blocks of an encoder work in, one after the other: fresh pages cost time.

    What is taken under a name is overwritten by what is taken under it next.
    """

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def take_bytes(self, name: str, n: int) -> np.ndarray:
        """uint8 (n,), at a multiple of 64."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < n:
            kept = self._kept[name] = aligned_empty(n)
        return kept[:n]

    def take(self, name: str, rows: int, width: int) -> np.ndarray:
        """float32 (rows, width)."""
        return self.take_bytes(name, 4 * rows * width).view(np.float32).reshape(rows, width)

    def product(self, matrix: Matrix, x: np.ndarray, name: str) -> np.ndarray:
        """A matrix times x."""
        y = self.take(name, len(x), matrix.rows)
        return matrix(x, y, self.scratch(matrix, len(x)))

    def scratch(self, matrix: Matrix, n: int) -> np.ndarray:
        """What a matrix works in, for up to ``n`` rows."""
        return self.take_bytes("scratch", matrix.linear.scratch_bytes(min(n, CHUNK)))

    def normed(self, norm: Norm | None, x: np.ndarray, n_threads: int) -> np.ndarray:
        """The norm of x; x itself for None."""
        return x if norm is None else norm.apply(x, self.take("normed", *x.shape), n_threads)


@dataclass
class Shape:
    """Facts of an encoder's blocks, beside its file's ``facts``.

    Attributes:
        prefix: of the names of its tensors.
        norm: "rms" or "layer".
        scale: of the scores.
        neox: pairs (k, k + d/2) rotate, else (2k, 2k + 1).
        halves: pairs (k, k + d/4) rotate within each half of a head.
        swaps: up and down may have each other's names.
        v_norm: values are normed.
    """

    prefix: str
    facts: EncoderFacts
    norm: str
    activation: str
    scale: float
    neox: bool = False
    halves: bool = False
    swaps: bool = False
    v_norm: bool = False


class Attention:
    """Attention of one block over all rows of a segment.

    Queries, keys and values stand side by side in one row, and are normed and rotated there.
    """

    def __init__(self, tools: Tools, shape: Shape, block: str) -> None:
        self.tools: Tools = tools
        self.shape: Shape = shape
        self.facts: EncoderFacts = shape.facts
        facts, dim = shape.facts, shape.facts.head_dim
        q, k = facts.n_heads * dim, facts.n_kv_heads * dim
        self.columns: tuple[int, int, int] = (0, q, q + k)
        self.width: int = q + 2 * k
        fused = tools.weights.has(f"{block}.attn_qkv.weight")
        parts = [("attn_qkv", q + 2 * k)] if fused else [("attn_q", q), ("attn_k", k), ("attn_v", k)]
        self.parts: list[Matrix] = tools.side_by_side(
            [(f"{block}.{name}", rows) for name, rows in parts], facts.width
        )
        self.norms: list[HeadNorm] = [
            *self._norms(f"{block}.attn_q_norm", facts.n_heads, 0),
            *self._norms(f"{block}.attn_k_norm", facts.n_kv_heads, q),
        ]
        if shape.v_norm:
            self.norms.append(self._head_norm(facts.n_kv_heads, dim, None, None, q + k))
        self.out: Matrix = tools.matrix(f"{block}.attn_out", q, facts.width)

    def _norms(self, name: str, heads: int, column: int) -> list[HeadNorm]:
        """The norm of queries or keys: of each head, or of the whole row; none where the file has none."""
        weights, dim = self.tools.weights, self.facts.head_dim
        if not weights.has(f"{name}.weight"):
            return []
        if weights.shape(f"{name}.weight") != (dim,):
            heads, dim = 1, heads * dim
        weight, bias = (self.tools.vector(f"{name}.{kind}", dim) for kind in ("weight", "bias"))
        return [self._head_norm(heads, dim, weight, bias, column)]

    def _head_norm(
        self, heads: int, dim: int, weight: np.ndarray | None, bias: np.ndarray | None, column: int
    ) -> HeadNorm:
        weight, bias = (None if each is None else np.tile(each, (heads, 1)) for each in (weight, bias))
        centred = self.shape.norm == "layer" and weight is not None
        kernels = self.tools.weights.kernels
        return HeadNorm(kernels, centred, self.facts.eps, heads, dim, weight, bias, column)

    def run(
        self, x: np.ndarray, norm: Norm | None, table: np.ndarray | None, segments: Segments, memory: Memory
    ) -> np.ndarray:
        """float32 (n, n_heads * head_dim), which `out` takes, of the norm of x, float32 (n, width).

        ``table`` of rotations is float32 (n, 2, head_dim / 2).
        """
        shape, facts, n_threads = self.shape, self.facts, self.tools.n_threads
        rows = memory.take("rows", len(x), self.width)
        for part in chunks(len(x)):
            self._project(memory.normed(norm, x[part], n_threads), rows[part], memory)
        for each in self.norms:
            each.apply(rows, n_threads)
        if table is not None:
            heads = facts.n_heads + facts.n_kv_heads
            if shape.halves:
                turning = rows[:, : self.columns[2]].reshape(len(x), heads, 4, -1)
                turning = turning[:, :, (0, 2, 1, 3)]  # scores are the same in any order
                rows[:, : self.columns[2]] = turning.reshape(len(x), -1)
            self.tools.weights.kernels.vector.rope(rows, heads, facts.head_dim, table, shape.neox, n_threads)
        return self._attended(rows, segments, memory)

    def _project(self, x: np.ndarray, rows: np.ndarray, memory: Memory) -> None:
        """Queries, keys and values of x (n, width), into rows (n, self.width)."""
        if len(self.parts) == 1:
            self.parts[0](x, rows, memory.scratch(self.parts[0], len(x)))
            return
        for part, column in zip(self.parts, self.columns, strict=True):
            rows[:, column : column + part.rows] = memory.product(part, x, "large")

    def _attended(self, rows: np.ndarray, segments: Segments, memory: Memory) -> np.ndarray:
        """float32 (n, n_heads * head_dim)."""
        facts, n_threads, (_, key, value) = self.facts, self.tools.n_threads, self.columns
        attention = self.tools.weights.kernels.attention
        lengths, take = [end - start for start, end in segments], partial(memory.take_bytes, "pages")
        dim = facts.head_dim
        kv, pages, tables = new_pages(attention, lengths, facts.n_kv_heads, dim, dim, take)
        row_start = np.array([0, *(end for _, end in segments)], np.int32)
        batch = attention.PagedBatch(kv, pages, tables, row_start, np.zeros(len(segments), np.int32))
        batch.store(0, rows, key, value, n_threads)
        found = memory.take("attended", len(rows), facts.n_heads * dim)
        scratch = memory.take_bytes("scratch", batch.scratch_bytes(n_threads))
        batch.attend(0, rows, facts.n_heads, self.shape.scale, found, scratch, n_threads, 0, causal=False)
        return found


class FeedForward:
    """down(activation(gate x) * up x), or down(activation(up x)) without a gate."""

    def __init__(self, tools: Tools, shape: Shape, block: str) -> None:
        self.tools: Tools = tools
        self.activation: str = shape.activation
        width, n_ff, names = shape.facts.width, shape.facts.n_ff, ["ffn_up", "ffn_down"]
        if shape.swaps and tools.weights.shape(f"{block}.ffn_down.weight")[:1] == (width,):
            names.reverse()
        gate = f"{block}.ffn_gate"
        has_gate = tools.weights.has(f"{gate}.weight")
        self.gate: Matrix | None = tools.matrix(gate, width, n_ff) if has_gate else None
        self.up: Matrix = tools.matrix(f"{block}.{names[0]}", width, n_ff)
        self.down: Matrix = tools.matrix(f"{block}.{names[1]}", n_ff, width)

    def run(self, x: np.ndarray, memory: Memory) -> np.ndarray:
        """float32 (n, width) of float32 (n, width)."""
        up = memory.product(self.up, x, "large")
        if self.gate is None:
            return memory.product(self.down, self.tools.activate(up, self.activation), "small")
        gates = self.tools.activate(memory.product(self.gate, x, "gates"), self.activation)
        gates *= up
        return memory.product(self.down, gates, "small")


class Block:
    """x += post(scale * attention(norm x)), then x += scale * post(feed_forward(norm x)), then x *= scale."""

    def __init__(self, tools: Tools, shape: Shape, i: int) -> None:
        block, width = f"{shape.prefix}.blk.{i}", shape.facts.width
        self.tools = tools

        def norm(name: str) -> Norm | None:
            return tools.optional_norm(f"{block}.{name}", width, shape.norm, shape.facts.eps)

        self.attn_norm: Norm | None = norm("ln1")
        self.attn_post_norm: Norm | None = norm("attn_post_norm")
        self.ffn_norm: Norm | None = norm("ln2")
        self.ffn_post_norm: Norm | None = norm("ffn_post_norm")
        self.attn_scale: np.ndarray | None = tools.vector(f"{block}.ls1.weight", width)
        self.ffn_scale: np.ndarray | None = tools.vector(f"{block}.ls2.weight", width)
        scale = f"{block}.out_scale.weight"  # a factor of the block, or factors of its columns
        self.out_scale = tools.vector(scale, 1 if tools.weights.shape(scale) == (1,) else width)
        self.attention: Attention = Attention(tools, shape, block)
        self.feed_forward: FeedForward = FeedForward(tools, shape, block)

    def steps(
        self, x: np.ndarray, table: np.ndarray | None, segments: Segments, memory: Memory
    ) -> Steps[None]:
        """Changes x, float32 (n, width). Nothing in ``memory`` outlives a step."""
        n_threads = self.tools.n_threads
        attended = self.attention.run(x, self.attn_norm, table, segments, memory)
        for part in chunks(len(x)):
            y = memory.product(self.attention.out, attended[part], "small")
            if self.attn_scale is not None:
                y *= self.attn_scale
            rows = x[part]
            rows += memory.normed(self.attn_post_norm, y, n_threads)
        yield
        for part in chunks(len(x)):
            rows = x[part]
            y = self.feed_forward.run(memory.normed(self.ffn_norm, rows, n_threads), memory)
            y = memory.normed(self.ffn_post_norm, y, n_threads)
            if self.ffn_scale is not None:
                y *= self.ffn_scale
            rows += y
            if self.out_scale is not None:
                rows *= self.out_scale
