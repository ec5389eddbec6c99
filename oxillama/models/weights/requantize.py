"""Converts rows of one format to another, some rows at a time: for quantizing files, and while loading."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from oxillama._kernels import Kernels, pack
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.base.formats import ROUNDED, Format
from oxillama.errors import GGUFError
from oxillama.gguf.extent import Extent
from oxillama.gguf.file_types import UNWEIGHTED

CHUNK_ELEMENTS = 1 << 22
"""Elements converted at a time, which bounds the memory."""


def converted(
    kernels: Kernels,
    name: str,
    source: Format,
    blocks: Extent,
    cols: int,
    target: Format,
    importance: np.ndarray | None = None,
    n_threads: int = 1,
) -> Iterator[np.ndarray]:
    """A matrix in another format, in chunks of whole rows: 16 n rows each, except the last.

    Args:
        name: of the tensor, for errors.
        source, blocks: format and rows of the matrix.
        target: one of `formats.WRITABLE` or `formats.ROUNDED`; ``cols`` is a multiple of its block length.
        importance: float32 (cols,), above 0: weights of the errors of the columns; None for 1.

    Yields:
        uint8 (rows of the chunk, bytes of a row), in new memory.

    Raises:
        GGUFError: a value is NaN, or larger than the target can hold.
        ModelFileError: the file cannot be read, or has changed since it was opened.
    """
    row_bytes = source.nbytes(cols)
    for chunk, rows in row_chunks(blocks, row_bytes, CHUNK_ELEMENTS // cols * row_bytes):
        values = np.empty((rows, cols), np.float32)
        in_openmp_thread(partial(pack.dequantize, source.id, chunk, values, n_threads))
        check_range(name, values, target)
        if target in ROUNDED.values():
            yield values.view(np.uint8)
        else:
            yield quantized(kernels, values, target, importance, n_threads)


def row_chunks(blocks: Extent, row_bytes: int, n_bytes: int) -> Iterator[tuple[np.ndarray, int]]:
    """The rows of a matrix, 16 n at a time: their bytes, uint8, which the next ones overwrite, and how many.

    A chunk has at most ``n_bytes``, or 16 rows where these are larger.
    """
    step = max(16, n_bytes // row_bytes // 16 * 16) * row_bytes
    buffer = None if isinstance(blocks.holder, np.ndarray) else np.empty(min(step, blocks.nbytes), np.uint8)
    for start in range(0, blocks.nbytes, step):
        chunk = blocks.read(start, min(step, blocks.nbytes - start), buffer)
        yield chunk, len(chunk) // row_bytes


def check_range(name: str, values: np.ndarray, target: Format) -> None:
    """Raises GGUFError if a format cannot hold one of these float32 values of the tensor ``name``."""
    if target.name in ("F32", "BF16") or not values.size:
        return
    low, high = float(values.min()), float(values.max())
    if not (low >= -target.most and high <= target.most):
        found = high if low >= -target.most else low
        text = f"expected values from {-target.most:.6g} to {target.most:.6g} for {target.name}, got {found}"
        raise GGUFError(text, key=name)


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
