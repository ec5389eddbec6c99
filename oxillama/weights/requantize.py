"""Rows of one format into rows of another, a few at a time: what the quantizer and quantize-on-load share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from oxillama._kernels import Kernels, pack
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.errors import GGUFError
from oxillama.formats import Format
from oxillama.weights.file_types import UNWEIGHTED

CHUNK_ELEMENTS = 1 << 22
"""Elements converted at a time: what bounds the memory."""

MOST = 65504.0
"""The largest half float; a block's scale is one."""


def converted(
    kernels: Kernels,
    name: str,
    source: Format,
    blocks: np.ndarray,
    cols: int,
    target: Format,
    importance: np.ndarray | None = None,
    n_threads: int = 1,
) -> Iterator[np.ndarray]:
    """Chunks of whole rows of a matrix in another format; each a multiple of 16 rows, but for the last.

    Parameters
    ----------
    name : of the tensor, for errors.
    source, blocks : its format and its rows, uint8 of any shape; dequantized first, if need be.
    target : one of `formats.WRITABLE`; ``cols`` is a multiple of its block length.
    importance : float32 (cols,), above 0: the weights of the columns' errors; None for 1.

    Yields
    ------
    uint8 (rows of the chunk, bytes of a row), in memory of its own.

    Raises
    ------
    GGUFError : a value is not finite, or larger than the target can hold.
    """
    rows = blocks.reshape(-1, source.nbytes(cols))
    step = max(16, CHUNK_ELEMENTS // cols // 16 * 16)
    for first in range(0, len(rows), step):
        chunk = np.ascontiguousarray(rows[first : first + step])
        values = np.empty((len(chunk), cols), np.float32)
        in_openmp_thread(partial(pack.dequantize, source.id, chunk.reshape(-1), values, n_threads))
        if target.name not in ("F32", "BF16"):
            low, high = float(values.min()), float(values.max())
            if not (low >= -MOST and high <= MOST):
                found = f"found {high if low >= -MOST else low}"
                raise GGUFError(f"{target.name} needs values of at most {MOST:.0f}, {found}", key=name)
        yield quantized(kernels, values, target, importance, n_threads)


def quantized(
    kernels: Kernels, values: np.ndarray, target: Format, importance: np.ndarray | None, n_threads: int = 1
) -> np.ndarray:
    """float32 (rows, cols) as uint8 (rows, bytes of a row)."""
    rows, cols = values.shape
    out = np.empty((rows, target.nbytes(cols)), np.uint8)
    weights = None if target.name in UNWEIGHTED else importance
    quantize = partial(kernels.quantize.quantize, target.id, values, rows, cols, weights, out, n_threads)
    in_openmp_thread(quantize)
    return out
