"""Exact attention over NumPy arrays by the engine's kernel, in memory linear in the length.

The method is FlashAttention-2 (Dao, 2023) with an online softmax (Milakov and Gimelshein, 2018): a query
visits the keys block by block and updates its maximal score, the sum of exponentials and the weighted sum of
values. Results have the same bits for every instruction set, number of threads and batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from oxillama._kernels import best
from oxillama._kernels.attention.page_table import PageTable
from oxillama._kernels.memory import aligned_empty
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.base.config.engine import available_cpus
from oxillama.base.formats import KV_TYPES
from oxillama.errors import ConfigError

PAGE = 64  # positions


def flash_attention_forward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    num_heads: int,
    head_dim: int,
    softmax_scale: float | None = None,
    causal_mask: bool = True,
    **options: Any,
) -> np.ndarray:
    """softmax(softmax_scale * q k^T) v of each head, for one sequence.

    Args:
        q: (tokens, num_heads, head_dim), or flat: (tokens, num_heads * head_dim). Any real numbers; computed
            in float32.
        k: (positions, kv_heads, head_dim), or flat. Fewer heads than ``num_heads`` are shared by equal groups
            of neighbouring query heads (grouped-query attention).
        v: (positions, kv_heads, value_dim), or flat.
        num_heads: of the queries.
        head_dim: of the queries.
        softmax_scale: None for head_dim ** -0.5.
        causal_mask: query i has position ``positions - tokens + i`` and attends to no later one; False: to
            all.
        options: the keywords of `batched_flash_attention`.

    Returns:
        float32 (tokens, num_heads, value_dim), or flat where ``q`` is

    Raises:
        ConfigError: shapes do not fit each other, or an option is outside its range; the message names it.
    """
    found: np.ndarray = batched_flash_attention(
        [q], [k], [v], num_heads, head_dim, softmax_scale, causal_mask, **options
    )[0]
    return found


def batched_flash_attention(
    q: np.ndarray | Sequence[np.ndarray],
    k: np.ndarray | Sequence[np.ndarray],
    v: np.ndarray | Sequence[np.ndarray],
    num_heads: int,
    head_dim: int,
    softmax_scale: float | None = None,
    causal_mask: bool = True,
    *,
    window: int = 0,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    num_threads: int | None = None,
) -> Any:
    """`flash_attention_forward` for many sequences in one call.

    Args:
        q: an array with one more axis in front, the sequences; or a list of such arrays as
            `flash_attention_forward` takes, whose lengths may differ.
        k: as ``q``.
        v: as ``q``.
        window: query i attends to position j only if |i - j| < window; 0 for no such limit.
        softcap: scores become softcap * tanh(score / softcap) (Bello et al., 2016); 0 for none.
        sinks: (num_heads,), one more score for each head, which has no value (Xiao et al., 2023).
        slopes: (num_heads,), a score loses slope * |i - j| (ALiBi: Press, Smith and Lewis, 2022).
        num_threads: None for the CPUs this process may use.

    Returns:
        float32 (sequences, tokens, ...) if ``q`` is one array, or else a list of arrays

    Raises:
        ConfigError: as `flash_attention_forward`.
    """
    n_threads = available_cpus() if num_threads is None else num_threads
    for name, value in (("num_heads", num_heads), ("head_dim", head_dim), ("num_threads", n_threads)):
        if value < 1:
            raise ConfigError(f"{name}: expected an integer >= 1, got {value}")
    for name, number in (("window", window), ("softcap", softcap)):
        if not 0 <= number < 1e30:
            raise ConfigError(f"{name}: expected a finite number >= 0, got {number}")
    if not len(q) == len(k) == len(v):
        raise ConfigError(
            f"q, k, v: expected one of each for every sequence, got {len(q)}, {len(k)} and {len(v)}"
        )
    if len(q) == 0:
        return np.empty(np.shape(q), np.float32) if isinstance(q, np.ndarray) else []
    kv_heads, value_dim = _heads(k[0], v[0], num_heads, head_dim)
    queries = [_rows(x, f"q[{i}]", num_heads, head_dim) for i, x in enumerate(q)]
    keys = [_rows(x, f"k[{i}]", kv_heads, head_dim) for i, x in enumerate(k)]
    values = [_rows(x, f"v[{i}]", kv_heads, value_dim) for i, x in enumerate(v)]
    ordered = bool(causal_mask or window or slopes is not None)
    runs = [run for i in range(len(q)) for run in _runs(i, queries[i], keys[i], values[i], ordered)]

    attention = best().attention
    shape, pages, tables = new_pages(attention, [len(x) for x in keys], kv_heads, head_dim, value_dim)

    def batch(of: list[Run]) -> Any:
        row_start = np.cumsum([0, *(run.rows for run in of)], dtype=np.int32)
        first = np.array([run.first for run in of], np.int32)
        return attention.PagedBatch(shape, pages, tables[[run.sequence for run in of]], row_start, first)

    kv = np.concatenate([np.concatenate(keys), np.concatenate(values)], axis=1)
    stored = batch([Run(i, 0, len(x)) for i, x in enumerate(keys)])
    in_openmp_thread(partial(stored.store, 0, kv, 0, kv_heads * head_dim, n_threads))
    rows, attending = np.concatenate(queries), batch(runs)
    out = np.empty((len(rows), num_heads * value_dim), np.float32)
    attend = partial(
        attending.attend,
        0,
        rows,
        num_heads,
        head_dim**-0.5 if softmax_scale is None else softmax_scale,
        out,
        aligned_empty(attending.scratch_bytes(n_threads)),
        n_threads,
        window,
        causal=causal_mask,
        softcap=softcap,
        sinks=None if sinks is None else _rows(sinks, "sinks", num_heads, None),
        slopes=None if slopes is None else _rows(slopes, "slopes", num_heads, None),
    )
    in_openmp_thread(attend)
    found = [
        part.reshape(len(part), num_heads, value_dim) if np.ndim(x) == 3 else part
        for part, x in zip(np.split(out, np.cumsum([len(x) for x in queries])[:-1]), q, strict=True)
    ]
    return np.stack(found) if isinstance(q, np.ndarray) else found


@dataclass(frozen=True)
class Run:
    """Consecutive rows of a sequence."""

    sequence: int
    first: int  # position
    rows: int


def _runs(i: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, ordered: bool) -> list[Run]:
    """The queries of sequence ``i``, up to its last position. More than that, if their order does not matter,
    take several runs."""
    n = len(k)
    if len(v) != n:
        raise ConfigError(f"v[{i}]: expected {n} positions, as k[{i}] has, got {len(v)}")
    if len(q) > n and (ordered or n == 0):
        raise ConfigError(f"q[{i}]: expected at most {n} tokens, the positions of k[{i}], got {len(q)}")
    rows = [min(n, len(q) - done) for done in range(0, len(q), max(1, n))]
    return [Run(i, n - count, count) for count in rows]


def _heads(k: np.ndarray, v: np.ndarray, num_heads: int, head_dim: int) -> tuple[int, int]:
    """Key heads and the width of a value, from the first sequence's arrays."""
    width, values = (int(np.prod(np.shape(x)[1:])) for x in (k, v))
    kv_heads = width // head_dim
    if kv_heads < 1 or kv_heads * head_dim != width or num_heads % kv_heads:
        raise ConfigError(
            f"k: expected heads of {head_dim} whose number divides {num_heads}, got {np.shape(k)}"
        )
    if values < 1 or values % kv_heads:
        raise ConfigError(f"v: expected {kv_heads} heads, as k has, got {np.shape(v)}")
    return kv_heads, values // kv_heads


def _rows(x: np.ndarray, name: str, heads: int, dim: int | None) -> np.ndarray:
    """float32 (n, heads * dim) of an array with these heads; for dim None (heads,)."""
    x = np.asarray(x)
    expected = [(heads,)] if dim is None else [(len(x), heads, dim), (len(x), heads * dim)] if x.ndim else []
    if x.shape not in expected or x.dtype.kind not in "fiu":
        wanted = f"({heads},)" if dim is None else f"(n, {heads}, {dim}) or (n, {heads * dim})"
        raise ConfigError(f"{name}: expected real numbers of shape {wanted}, got {x.dtype} {x.shape}")
    return np.ascontiguousarray(x.reshape(len(x), heads * dim) if dim else x, np.float32)


def new_pages(
    attention: Any,
    lengths: list[int],
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    memory: Callable[[int], np.ndarray] = aligned_empty,
) -> tuple[Any, PageTable, np.ndarray]:
    """Pages of keys and values in float32 for sequences of these lengths.

    Args:
        attention: of the kernels.
        memory: uint8 (n,), for a number of bytes.

    Returns:
        the kernels' `KvShape`, the pages, and `page_tables`
    """
    shape = attention.KvShape(1, kv_heads, key_dim, value_dim, KV_TYPES["f32"], KV_TYPES["f32"], PAGE)
    tables, pages = page_tables(lengths), PageTable(shape.page_bytes)
    n_pages = int(tables.max()) + 1
    pages.put(0, memory(n_pages * shape.page_bytes).reshape(n_pages, -1))
    return shape, pages, tables


def page_tables(lengths: list[int]) -> np.ndarray:
    """int32 (sequences, width): page numbers, no page in two sequences; unused entries are 0."""
    counts = [-(-n // PAGE) for n in lengths]
    tables = np.zeros((len(counts), max(1, *counts)), np.int32)
    first = 0
    for table, count in zip(tables, counts, strict=True):
        table[:count] = np.arange(first, first + count)
        first += count
    return tables
