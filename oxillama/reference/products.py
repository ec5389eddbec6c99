"""Products of matrices and activations: integer sums inside a block, then fused products by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.base.formats import FLOATS, LAYOUTS, ROUNDED, Format
from oxillama.reference.blocks import Blocks, dequantize, take_apart
from oxillama.reference.floats import (
    F32,
    MAGIC,
    flush,
    fma,
    fused_sum,
    in_lanes,
    in_pairs,
    select_max,
    to_bf16,
    to_pair_bf16,
    tree_max,
)


@dataclass(frozen=True)
class Activations:
    """Rows of activations as int8 in blocks of 32, 128 or 256 columns, or one block for the whole row.

    Attributes:
        codes: int64 (n, blocks, block).
        scale: float32 (n, blocks); NaN if the block has a NaN or an infinity.
    """

    codes: np.ndarray
    scale: np.ndarray


def quantize_activations(x: np.ndarray, block: int) -> Activations:
    """scale = max|x| / 127, code = round(x * (127 / max|x|)), ties to even; 0 for a block below 1e-36.

    Zeros fill up a short last block.
    """
    by_block = np.pad(x, ((0, 0), (0, -x.shape[1] % block))).reshape(len(x), -1, block)
    top = np.zeros((*by_block.shape[:2], 16), F32)
    for step in in_lanes(np.abs(by_block)):
        top = select_max(step, top)
    most = tree_max(top)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(most > F32(1e-36), F32(127) / most, F32(0))
        rounded = (by_block * inverse[..., None] + MAGIC) - MAGIC
        finite = np.isfinite(rounded).all(axis=-1)
        codes = np.where(np.isfinite(rounded), rounded, 0).astype(np.int64)
        scale = np.where(finite, most / F32(127), F32(np.nan))
    return Activations(codes, scale)


@dataclass(frozen=True)
class Matrix:
    """A matrix in the form that the products need.

    Attributes:
        rows, cols: its shape.
        floats: float32 (rows, cols) of a float format; None for a quantized format.
        paired: the floats are bf16, multiplied in pairs of columns with activations rounded to bf16.
        blocks: the blocks of a quantized format, all rows one after another.
        layout: name of the packed layout, which defines how blocks are multiplied (`formats.LAYOUTS`).
        rounded: a matrix of `formats.ROUNDED`, in the form of activations.
    """

    rows: int
    cols: int
    floats: np.ndarray | None
    blocks: Blocks | None
    layout: str
    rounded: Activations | None = None
    paired: bool = False

    def times(self, x: np.ndarray) -> np.ndarray:
        """float32 (n, rows): x (n, cols) times the transposed matrix."""
        if self.floats is not None:
            return pair_products(self.floats, x) if self.paired else float_products(self.floats, x)
        if self.rounded is not None:
            return row_products(self.rounded, self.layout, x)
        assert self.blocks is not None
        if self.blocks.scale.ndim == 2:
            return half_products(self.blocks, self.rows, x)
        return block_products(self.blocks, self.layout, self.rows, x)


def load_matrix(fmt: Format, data: np.ndarray, rows: int, cols: int, compute: str = "int8") -> Matrix:
    """Make a matrix from a tensor's bytes; ``compute`` may dequantize it first (and then round it)."""
    if fmt.name in FLOATS or compute != "int8":
        values = dequantize(fmt, data).reshape(rows, cols)
        if compute in ROUNDED:
            layout = ROUNDED[compute].layout or ""
            span = min(LAYOUTS[layout].span, cols)
            return Matrix(rows, cols, None, None, layout, quantize_activations(values, span))
        if fmt.name not in FLOATS and compute == "bf16":
            return Matrix(rows, cols, to_bf16(values), None, "", paired=True)
        return Matrix(rows, cols, values, None, "", paired=fmt.name == "BF16" and compute != "f32")
    blocks = take_apart(fmt, np.ascontiguousarray(data, np.uint8).reshape(-1, fmt.block_bytes))
    return Matrix(rows, cols, None, blocks, fmt.layout or "")


def float_products(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A fused product for each column, in order."""
    return fused_sum(w.T[:, None], x.T[:, :, None], np.zeros((len(x), len(w)), F32))


def pair_products(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A fused product for each column, the odd column of a pair first; x is rounded to bf16."""
    order = in_pairs(w.shape[1])
    return float_products(flush(w)[:, order], to_pair_bf16(x)[:, order])


def row_products(w: Activations, layout_name: str, x: np.ndarray) -> np.ndarray:
    """Each block adds y = fma(float(sum of integers), scale * activation scale, y); a whole row is y."""
    a = quantize_activations(x, w.codes.shape[2])
    out = np.zeros((len(x), len(w.codes)), F32)
    for b in range(w.codes.shape[1]):
        # sums below 2^53 are exact in float64, and as integers have no negative zero
        sums = a.codes[:, b].astype(np.float64) @ w.codes[:, b].T.astype(np.float64)
        part, scale = sums.astype(np.int64).astype(F32), w.scale[None, :, b] * a.scale[:, b, None]
        out = part * scale if layout_name == "r8" else fma(part, scale, out)
    return out


def half_products(blocks: Blocks, rows: int, x: np.ndarray) -> np.ndarray:
    """Each block adds y = fma(fma(float(second), scale 2, float(first) * scale 1), activation scale, y)."""
    a = quantize_activations(x, 32)
    scale = blocks.scale.reshape(rows, -1, 2)
    integers = blocks.integers.reshape(rows, -1, 2, 16).astype(np.float64)
    out = np.zeros((len(x), rows), F32)
    for b in range(a.codes.shape[1]):
        codes = a.codes[:, b].reshape(len(x), 2, 16).astype(np.float64)
        first, second = ((codes[:, i] @ integers[:, b, i].T).astype(F32) for i in range(2))
        both = fma(second, scale[None, :, b, 1], first * scale[None, :, b, 0])
        out = fma(both, a.scale[:, b, None], out)
    return out


def block_products(blocks: Blocks, layout_name: str, rows: int, x: np.ndarray) -> np.ndarray:
    """Each block adds y = fma(float(sum of integers), scale * activation scale, y), then its minima."""
    layout = LAYOUTS[layout_name]
    form = layout.block_len
    a = quantize_activations(x, form)
    per = blocks.integers.shape[1] // form  # product blocks in one block of the file
    n_blocks = a.codes.shape[1]
    integers = blocks.integers.reshape(rows, n_blocks, form)
    scale = np.repeat(blocks.scale.reshape(rows, -1), per, axis=1) * F32(layout.unit)
    n_subs = 1 if blocks.scales is None else blocks.scales.shape[1]
    subs = np.ones((rows, n_blocks, n_subs), np.int64)
    if blocks.scales is not None:
        subs = blocks.scales.reshape(rows, n_blocks, n_subs)
    minimum = None if blocks.minimum is None else F32(0) - blocks.minimum.reshape(rows, n_blocks)
    out = np.zeros((len(x), rows), F32)
    for b in range(n_blocks):
        codes = a.codes[:, b].reshape(len(x), n_subs, -1)
        weights = (integers[:, b].reshape(rows, n_subs, -1) * subs[:, b, :, None]).reshape(rows, form)
        # sums below 2^53 are exact in float64
        sums = a.codes[:, b].astype(np.float64) @ weights.T.astype(np.float64)
        out = fma(sums.astype(F32), scale[None, :, b] * a.scale[:, b, None], out)
        if minimum is not None:
            if blocks.minima is None:
                taken = np.broadcast_to(-codes.sum(axis=(1, 2))[:, None], out.shape)
            else:
                minima = blocks.minima.reshape(rows, n_blocks, -1)[:, b]
                taken = codes.sum(axis=2) @ minima.T
            out = fma(taken.astype(F32), minimum[None, :, b] * a.scale[:, b, None], out)
    return out
