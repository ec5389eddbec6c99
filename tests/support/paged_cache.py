"""What the attention tests share: pages of one target, random rows, the reference's attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxillama._kernels import load
from oxillama._kernels.attention.page_table import PageTable
from oxillama._kernels.memory import aligned_empty
from oxillama.base.formats import KV_PAIRS, KV_TYPES
from oxillama.reference.attention import View, attend
from oxillama.reference.kv import store
from tests.support.kernels import normal


@dataclass
class Cache:
    """Pages of one target, filled with ``fill`` bytes; pages are dealt out in a scattered order.

    ``shape`` is (layers, kv heads, key_dim, value_dim).
    """

    target: str
    shape: tuple[int, int, int, int]
    kv_type: str = "f32"
    page_size: int = 16
    fill: int = 0xFF  # NaN in every KV type
    n_pages: int = 64
    bf16_dot: bool | None = None  # as `PagedBatch` takes it
    lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attention = load(self.target).attention
        key_type, value_type = (KV_TYPES[name] for name in KV_PAIRS[self.kv_type])
        self.kv_shape = self.attention.KvShape(*self.shape, key_type, value_type, self.page_size)
        self.table = PageTable(self.kv_shape.page_bytes)
        self.memory = [aligned_empty(self.kv_shape.page_bytes) for _ in range(self.n_pages)]
        for i, page in enumerate(self.memory):
            page[:] = self.fill
            self.table.put(i, page[None])
        self.free = np.random.default_rng(7).permutation(self.n_pages).tolist()
        self.pages: dict[int, list[int]] = {}

    def batch(self, parts: list[tuple[int, int]]) -> Any:
        """`PagedBatch` of (sequence, rows), each row behind what its sequence has."""
        for sequence, rows in parts:
            end = self.lengths.get(sequence, 0) + rows
            mine = self.pages.setdefault(sequence, [])
            while len(mine) * self.page_size < end:
                mine.append(self.free.pop())
        width = max(len(self.pages[sequence]) for sequence, _ in parts)
        tables = np.full((len(parts), width), -1, np.int32)
        for i, (sequence, _) in enumerate(parts):
            tables[i, : len(self.pages[sequence])] = self.pages[sequence]
        row_start = np.cumsum([0, *(rows for _, rows in parts)]).astype(np.int32)
        first = np.array([self.lengths.get(sequence, 0) for sequence, _ in parts], np.int32)
        for sequence, rows in parts:
            self.lengths[sequence] = self.lengths.get(sequence, 0) + rows
        return self.attention.PagedBatch(self.kv_shape, self.table, tables, row_start, first, self.bf16_dot)

    def run(
        self,
        parts: list[tuple[int, np.ndarray]],
        heads: int,
        scale: float,
        n_threads: int = 1,
        layer: int = 0,
        **options: Any,
    ) -> list[np.ndarray]:
        """Stores and attends: (sequence, qkv rows) to each one's (rows, heads * value_dim)."""
        _, kv_heads, key_dim, value_dim = self.shape
        batch = self.batch([(sequence, len(qkv)) for sequence, qkv in parts])
        qkv = np.ascontiguousarray(np.concatenate([qkv for _, qkv in parts]))
        batch.store(layer, qkv, heads * key_dim, (heads + kv_heads) * key_dim, n_threads)
        out = np.full((len(qkv), heads * value_dim), np.nan, np.float32)
        scratch = np.full(batch.scratch_bytes(n_threads), 0xFF, np.uint8)
        batch.attend(layer, qkv, heads, scale, out, scratch, n_threads, **options)
        return np.split(out, np.cumsum([len(qkv) for _, qkv in parts])[:-1])


def choose(
    batch: Any,
    q: np.ndarray,
    weights: np.ndarray,
    most: int,
    longest: int,
    room: int = 3,
    blocks: tuple[Any, ...] = (),
) -> np.ndarray:
    """int32 (rows, most): the positions (or blocks) that `PagedBatch.choose` gives a row, -1 behind them."""
    out = np.full((len(q), most), -1, np.int32)
    scores = np.full((room, -(-longest // 64) * 64), np.nan, np.float32)
    scratch = np.full(batch.scratch_bytes(2), 0xFF, np.uint8)
    batch.choose(0, q, weights.shape[1], weights, scores, out, scratch, 2, *blocks)
    return out


def rows(n: int, shape: tuple[int, int, int, int], heads: int, seed: int = 0) -> np.ndarray:
    """Random q, k, v rows."""
    _, kv_heads, key_dim, value_dim = shape
    return normal(n, heads * key_dim + kv_heads * (key_dim + value_dim), seed=seed)


def attended(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    kv_type: str = "f32",
    first: int | None = None,
    **options: Any,
) -> np.ndarray:
    """The reference's float32 (rows, heads, value_dim).

    ``q`` is (rows, heads, key_dim), at positions from ``first`` on, or the last ones; ``k`` and ``v`` are
    (positions, kv_heads, dim); the options are those of `PagedBatch.attend`.
    """
    view = View(soft_cap=options.pop("softcap", 0.0), **options)
    return attend(q, store(k, v, kv_type), scale, view, first)


def wanted(
    qkv: np.ndarray,
    shape: tuple[int, int, int, int],
    heads: int,
    kv_type: str,
    scale: float,
    n: int = 0,
    **options: Any,
) -> np.ndarray:
    """The reference's float32 (rows, heads * value_dim) of rows (q, k, v), or of the last ``n`` of them."""
    _, kv_heads, key_dim, value_dim = shape
    q, k, v = np.split(qkv, np.cumsum([heads * key_dim, kv_heads * key_dim]), axis=1)
    k, v = k.reshape(-1, kv_heads, key_dim), v.reshape(-1, kv_heads, value_dim)
    found = attended(q[-n:].reshape(-1, heads, key_dim), k, v, scale, kv_type, **options)
    return found.reshape(len(found), -1)


KINDS = (*KV_TYPES, "q8_0:q4_0", "f16:q5_1", "iq4_nl:bf16", "q8_0:f32")
"""Every type, and some pairs."""

SHAPES = {
    "multi-head": ((1, 4, 32, 32), 4), "grouped": ((2, 2, 64, 64), 8), "multi-query": ((1, 1, 48, 48), 5),
    "narrow keys": ((1, 2, 24, 80), 6), "wide keys": ((1, 2, 80, 16), 2), "odd keys": ((1, 3, 7, 32), 9),
    "odd values": ((1, 3, 16, 37), 6), "few values": ((2, 2, 16, 5), 4), "full group": ((1, 1, 16, 16), 64),
    "large group": ((1, 1, 16, 16), 130), "two large groups": ((1, 2, 8, 24), 140),
    "latent": ((1, 1, 576, 512), 128),
}  # fmt: skip


def some_options(rng: np.random.Generator, heads: int) -> dict[str, Any]:
    """Any combination of the options of `PagedBatch.attend`."""
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["causal"] = False
    if rng.random() < 0.3:
        options["window"] = int(rng.choice([1, 7, 64, 90]))
    if rng.random() < 0.3:
        options["chunk"] = int(rng.choice([1, 48, 64, 100]))
    if rng.random() < 0.4:
        options["softcap"] = float(rng.choice([0.5, 2, 30]))
    if rng.random() < 0.4:
        options["sinks"] = (3 * rng.standard_normal(heads)).astype(np.float32)
    if rng.random() < 0.4:
        options["slopes"] = (2.0 ** rng.uniform(-8, 0, heads)).astype(np.float32)
    return options
