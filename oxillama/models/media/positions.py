"""Positions of patches: tables that are resized to the grid of a picture, and tables of rotations."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.media.resize import cubic
from oxillama.models.rope import rope_powers

Grid = tuple[int, int]
"""Columns and rows of patches."""


def grid_places(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """int32 (n,) each: x and y of the patches, row by row."""
    columns, rows = grid
    y, x = np.divmod(np.arange(columns * rows, dtype=np.int32), np.int32(columns))
    return x, y


def block_order(grid: Grid, side: int) -> np.ndarray:
    """int64 (n,): the patches block by block, each with ``side`` x ``side`` neighbours row by row.

    Only of grids that consist of whole blocks.
    """
    columns, rows = grid
    numbers = np.arange(columns * rows).reshape(rows // side, side, columns // side, side)
    found: np.ndarray = numbers.transpose(0, 2, 1, 3).reshape(-1)
    return found


# --- tables of positions ------------------------------------------------------------------------------


def corner_taps(n_in: int, n_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Linear interpolation that keeps the corners; places int64 (n_out, 2) and float32 weights."""
    step = np.float32(n_in - 1) / np.float32(max(1, n_out - 1))
    x = np.arange(n_out, dtype=np.float32) * step
    first = np.minimum(np.floor(x).astype(np.int64), n_in - 1)
    share = x - first.astype(np.float32)
    places = np.stack([first, np.minimum(first + 1, n_in - 1)], 1)
    return places, np.stack([np.float32(1) - share, share], 1)


def cubic_taps(n_in: int, n_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Cubic interpolation with a = -0.75, edges repeated; places int64 (n_out, 4) and float32 weights."""
    x = (np.arange(n_out) + 0.5) * (n_in / n_out) - 0.5
    first = np.floor(x).astype(np.int64) - 1
    places = first[:, None] + np.arange(4)
    weights = cubic(x[:, None] - places, -0.75)
    return np.clip(places, 0, n_in - 1), weights.astype(np.float32)


def smooth_taps(n_in: int, n_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Linear interpolation over the whole width of an output; places int64 (n_out, taps), float32 weights."""
    scale = n_out / n_in
    reach = max(1.0, 1.0 / scale)
    x = (np.arange(n_out) + 0.5) / scale
    first = np.maximum(0, np.trunc(x - reach + 0.5).astype(np.int64))
    end = np.minimum(n_in, np.trunc(x + reach + 0.5).astype(np.int64))
    places = first[:, None] + np.arange(int((end - first).max()))
    weights = np.maximum(0.0, 1.0 - np.abs(places - x[:, None] + 0.5) / reach)
    weights = np.where(places < end[:, None], weights, 0.0)
    total = np.zeros(n_out)
    for column in weights.T:  # in order
        total += column
    return np.minimum(places, n_in - 1), (weights / total[:, None]).astype(np.float32)


TAPS = {"corners": corner_taps, "bicubic": cubic_taps, "antialias": smooth_taps}


def resized_table(table: np.ndarray, grid: Grid, method: str) -> np.ndarray:
    """float32 (columns * rows, width) of a table float32 (side * side, width), by the method's taps."""
    side = math.isqrt(len(table))
    columns, rows = grid
    square = table[: side * side].reshape(side, side, -1)
    if grid == (side, side):
        return square.reshape(columns * rows, -1)
    wide = _mixed(square.transpose(1, 0, 2), *TAPS[method](side, columns))
    tall = _mixed(wide.transpose(1, 0, 2), *TAPS[method](side, rows))
    return tall.reshape(columns * rows, -1)


def _mixed(values: np.ndarray, places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """float32 (n_out, ...): sums of values (n_in, ...) in the order of the taps."""
    total = np.zeros((len(places), *values.shape[1:]), np.float32)
    for place, weight in zip(places.T, weights.T, strict=True):
        total += values[place] * weight[:, None, None]
    return total


def coarse_places(grid: Grid, side: int) -> np.ndarray:
    """int64 (n,): the rows of a table of ``side`` x ``side`` places on which the patches of a grid fall."""
    columns, rows = grid
    y = np.arange(rows) * side // rows
    x = np.arange(columns) * side // columns
    return (y[:, None] * side + x).reshape(-1)


# --- rotations ------------------------------------------------------------------------------------------


def angles(kernels: Kernels, places: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """float32 (n, 2, pairs): cosines and sines of int32 (n,) times float64 (pairs,)."""
    table = np.empty((len(places), 2, len(frequencies)), np.float32)
    kernels.vector.rope_table(np.ascontiguousarray(places, np.int32), frequencies, 1.0, table)
    return table


def rotation(
    kernels: Kernels, kind: str, head_dim: int, base: float, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """float32 (n, 2, head_dim / 2) for the patches at x and y, int32 (n,): half of the pairs turn by each."""
    powers = rope_powers(head_dim // 2, base)
    first, second = (x, y) if kind in ("2d", "halves") else (y, x)
    shifted = powers * _shift(base, head_dim) if kind == "2d yx" else powers
    parts = [angles(kernels, first, powers), angles(kernels, second, shifted)]
    return np.concatenate(parts, axis=2)


def _shift(base: float, head_dim: int) -> float:
    """base^(-2 / head_dim): the ratio of a rotation's odd frequency to the even frequency before it."""
    with localcontext(prec=30):
        return float((Decimal(base).ln() * -2 / head_dim).exp())
