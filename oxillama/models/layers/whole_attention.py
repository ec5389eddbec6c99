"""Attention without pages of a sequence: some rows attend to all of some others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama._kernels import Kernels
from oxillama._kernels.attention.page_table import PageTable
from oxillama._kernels.memory import aligned_empty
from oxillama.base.formats import KV_TYPES
from oxillama.models.flash_attention import PAGE, page_tables


def attend_to_all(
    kernels: Kernels,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    heads: int,
    n_threads: int,
    parts: Sequence[tuple[int, int]] | None = None,
) -> np.ndarray:
    """float32 (n, width): softmax(q k^T / sqrt(width / heads)) v of each head.

    Args:
        q: float32 (n, width).
        k, v: float32 (m, width).
        parts: numbers of rows of q, and of rows of k that they attend to, part by part; the rows of k are at
            least as many. None: all attend to all.
    """
    width = q.shape[1]
    parts = [(len(q), len(k))] if parts is None else parts
    attention, dim = kernels.attention, width // heads
    shape = attention.KvShape(1, heads, dim, dim, KV_TYPES["f32"], KV_TYPES["f32"], PAGE)
    tables = page_tables([n_keys for _, n_keys in parts])
    n_pages = int(tables.max()) + 1
    pages = PageTable(shape.page_bytes)
    pages.put(0, aligned_empty(n_pages * shape.page_bytes).reshape(n_pages, -1))
    counts = np.array([(0, 0), *parts], np.int32)
    query_rows, key_rows = np.cumsum(counts, axis=0, dtype=np.int32).T.copy()
    firsts = counts[1:, 1] - counts[1:, 0]
    stored = attention.PagedBatch(shape, pages, tables, key_rows, np.zeros_like(firsts))
    stored.store(0, np.concatenate([k, v], axis=1), 0, width, n_threads)
    batch = attention.PagedBatch(shape, pages, tables, query_rows, firsts)
    out = np.empty((len(q), width), np.float32)
    scratch = aligned_empty(batch.scratch_bytes(n_threads))
    batch.attend(0, np.ascontiguousarray(q), heads, dim**-0.5, out, scratch, n_threads, 0, causal=False)
    return out
