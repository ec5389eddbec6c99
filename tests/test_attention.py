"""Paged attention: right against its twin, and the same bits in any batch, chunk, page size and target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.formats import LAYOUTS
from oxillama.tensor import aligned_empty
from tests.floor import PRESENT, normal, same_bits
from tests.twins import attention as twin

on_targets = pytest.mark.parametrize("target", PRESENT)
KV_TYPES = ("f32", "f16", "bf16")


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
    lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attention = load(self.target).attention
        layout = LAYOUTS[self.kv_type].id
        self.kv_shape = self.attention.KvShape(*self.shape, layout, self.page_size)
        self.memory = [aligned_empty(self.kv_shape.page_bytes) for _ in range(self.n_pages)]
        for page in self.memory:
            page[:] = self.fill
        self.addresses = np.array([page.ctypes.data for page in self.memory], np.int64)
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
        return self.attention.PagedBatch(self.kv_shape, self.addresses, tables, row_start, first)

    def run(
        self,
        parts: list[tuple[int, np.ndarray]],
        heads: int,
        scale: float,
        n_threads: int = 1,
        layer: int = 0,
        window: int = 0,
        chunk: int = 0,
    ) -> list[np.ndarray]:
        """Stores and attends: (sequence, qkv rows) to each one's (rows, heads * value_dim)."""
        _, kv_heads, key_dim, value_dim = self.shape
        batch = self.batch([(sequence, len(qkv)) for sequence, qkv in parts])
        qkv = np.ascontiguousarray(np.concatenate([qkv for _, qkv in parts]))
        batch.store(layer, qkv, heads * key_dim, (heads + kv_heads) * key_dim, n_threads)
        out = np.full((len(qkv), heads * value_dim), np.nan, np.float32)
        scratch = np.full(batch.scratch_bytes(n_threads), 0xFF, np.uint8)
        batch.attend(layer, qkv, heads, scale, out, scratch, n_threads, window, chunk)
        return np.split(out, np.cumsum([len(qkv) for _, qkv in parts])[:-1])


def rows(n: int, shape: tuple[int, int, int, int], heads: int, seed: int = 0) -> np.ndarray:
    """Random q, k, v rows."""
    _, kv_heads, key_dim, value_dim = shape
    return normal(n, heads * key_dim + kv_heads * (key_dim + value_dim), seed=seed)


def wanted(
    qkv: np.ndarray,
    shape: tuple[int, int, int, int],
    heads: int,
    kv_type: str,
    scale: float,
    window: int = 0,
    chunk: int = 0,
) -> np.ndarray:
    _, kv_heads, key_dim, value_dim = shape
    q, k, v = np.split(qkv, np.cumsum([heads * key_dim, kv_heads * key_dim]), axis=1)
    k, v = twin.rounded(k, kv_type), twin.rounded(v, kv_type)
    n = len(qkv)
    out = twin.attend(
        q.reshape(n, heads, key_dim),
        k.reshape(n, kv_heads, key_dim),
        v.reshape(n, kv_heads, value_dim),
        scale,
        window=window or None,
        chunk=chunk or None,
    )
    return out.reshape(n, -1)


SHAPES = {
    "multi-head": ((1, 4, 32, 32), 4),
    "grouped": ((2, 2, 64, 64), 8),
    "multi-query": ((1, 1, 48, 48), 5),
    "narrow keys": ((1, 2, 24, 80), 6),
    "wide keys": ((1, 2, 80, 16), 2),
    "odd keys": ((1, 3, 7, 32), 9),
    "odd values": ((1, 3, 16, 37), 6),
    "few values": ((2, 2, 16, 5), 4),
    "full group": ((1, 1, 16, 16), 64),
}


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("name", SHAPES)
@on_targets
def test_attention_is_that_of_the_twin(target: str, name: str, kv_type: str) -> None:
    shape, heads = SHAPES[name]
    qkv = rows(83, shape, heads)
    layer = shape[0] - 1
    found = Cache(target, shape, kv_type).run([(0, qkv)], heads, shape[2] ** -0.5, layer=layer)[0]
    error = np.abs(found - wanted(qkv, shape, heads, kv_type, shape[2] ** -0.5))
    assert error.max() < 4e-6


LIMITS = [(1, 0), (5, 0), (64, 0), (100, 0), (10**6, 0), (0, 1), (0, 48), (0, 64), (0, 8192), (20, 48)]
"""Windows and chunks, 0 for none."""


@pytest.mark.parametrize(("window", "chunk"), LIMITS)
@pytest.mark.parametrize("name", ["multi-head", "grouped", "odd values"])
def test_a_limited_view_is_that_of_the_twin(name: str, window: int, chunk: int) -> None:
    shape, heads = SHAPES[name]
    qkv, scale = rows(213, shape, heads), shape[2] ** -0.5
    found = Cache(PRESENT[0], shape, "f32").run([(0, qkv)], heads, scale, window=window, chunk=chunk)[0]
    error = np.abs(found - wanted(qkv, shape, heads, "f32", scale, window, chunk))
    assert error.max() < 4e-6


@pytest.mark.parametrize(("window", "chunk"), LIMITS)
def test_a_limited_view_has_the_same_bits_however_it_is_run(window: int, chunk: int) -> None:
    shape, heads = SHAPES["grouped"]
    qkv, scale = rows(150, shape, heads), shape[2] ** -0.5
    whole = Cache(PRESENT[0], shape, "f16").run([(0, qkv)], heads, scale, window=window, chunk=chunk)[0]
    for target in PRESENT:
        cache = Cache(target, shape, "f16")
        for start, end in ((0, 1), (1, 40), (40, 41), (41, 149), (149, 150)):
            neighbour = rows(7, shape, heads, seed=start)
            parts = [(1, neighbour), (0, qkv[start:end])]
            found = cache.run(parts, heads, scale, n_threads=2, window=window, chunk=chunk)[1]
            assert same_bits(found, whole[start:end])


def test_a_value_out_of_view_does_not_matter_even_if_it_is_infinite() -> None:
    shape, heads = SHAPES["grouped"]
    qkv, scale = rows(120, shape, heads), shape[2] ** -0.5
    spoiled = qkv.copy()
    spoiled[:30] = np.inf
    clean, found = (
        Cache(PRESENT[0], shape, "f32").run([(0, x)], heads, scale, window=40)[0] for x in (qkv, spoiled)
    )
    assert same_bits(found[69:], clean[69:])
    assert not np.isfinite(found[68]).any()


@pytest.mark.parametrize("seed", range(60))
def test_how_a_sequence_is_run_changes_no_bit(seed: int) -> None:
    """Chunks, neighbours, threads, page size and target; against the sequence run whole, alone."""
    rng = np.random.default_rng(seed)
    shape, heads = SHAPES[str(rng.choice(sorted(SHAPES)))]
    kv_type, scale = str(rng.choice(KV_TYPES)), shape[2] ** -0.5
    sequences = [rows(int(rng.integers(1, 150)), shape, heads, seed=i) for i in range(rng.integers(1, 5))]
    whole = [Cache(PRESENT[0], shape, kv_type).run([(0, qkv)], heads, scale)[0] for qkv in sequences]

    cache = Cache(PRESENT[seed % len(PRESENT)], shape, kv_type, int(rng.choice([16, 32, 64, 256])))
    found: list[list[np.ndarray]] = [[] for _ in sequences]
    left = dict(enumerate(sequences))
    while left:
        parts = []
        for i in rng.permutation(sorted(left))[: rng.integers(1, 5)].tolist():
            n = int(rng.choice([1, 2, 5, 33, len(left[i])]))
            parts.append((i, left[i][:n]))
            left[i] = left[i][n:]
        for (i, _), out in zip(parts, cache.run(parts, heads, scale, int(rng.integers(1, 4))), strict=True):
            found[i].append(out)
        left = {i: qkv for i, qkv in left.items() if len(qkv)}
    for pieces, alone in zip(found, whole, strict=True):
        assert same_bits(np.concatenate(pieces), alone)


@on_targets
def test_threads_change_no_bit(target: str) -> None:
    """Long enough that threads do start: 500,000 products."""
    shape, heads = (1, 2, 64, 64), 8
    parts = [(0, rows(200, shape, heads)), (1, rows(70, shape, heads, 1)), (2, rows(1, shape, heads, 2))]
    one = Cache(target, shape).run(parts, heads, 0.125)
    for n_threads in (2, 4):
        for a, b in zip(Cache(target, shape).run(parts, heads, 0.125, n_threads), one, strict=True):
            assert same_bits(a, b)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7F, 0xFC])
@on_targets
def test_what_unused_parts_of_pages_hold_does_not_matter(target: str, kv_type: str, fill: int) -> None:
    """Zeros, NaNs, huge numbers (0x7F7F...: NaN as f16), or large negative ones (0xFCFC)."""
    shape, heads = (1, 2, 32, 32), 4
    qkv = rows(75, shape, heads)
    clean = Cache(target, shape, kv_type, 32, fill=0x11).run([(0, qkv)], heads, 0.2)[0]
    cache = Cache(target, shape, kv_type, 32, fill=fill)
    pieces = [cache.run([(0, qkv[a:b])], heads, 0.2)[0] for a, b in ((0, 1), (1, 18), (18, 70), (70, 75))]
    assert same_bits(np.concatenate(pieces), clean)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@on_targets
def test_what_a_row_may_not_see_does_not_touch_it(target: str, value: float) -> None:
    """Rows of one tile see different prefixes; a later value must not reach an earlier row as 0 * inf."""
    shape, heads = (1, 1, 32, 32), 1
    qkv = rows(80, shape, heads)
    clean = Cache(target, shape).run([(0, qkv)], heads, 0.2)[0]
    for position in (1, 5, 15, 16, 37, 63, 64, 79):
        for columns in (slice(32, 64), slice(64, 96), slice(70, 71)):  # the key, the value, one element of it
            spoilt = qkv.copy()
            spoilt[position, columns] = value
            found = Cache(target, shape).run([(0, spoilt)], heads, 0.2)[0]
            assert same_bits(found[:position], clean[:position])
            assert not same_bits(found[position:], clean[position:])


@on_targets
def test_another_sequence_with_nan_touches_nobody(target: str) -> None:
    shape, heads = (1, 2, 32, 32), 4
    qkv = rows(70, shape, heads)
    alone = Cache(target, shape).run([(0, qkv)], heads, 0.2)[0]
    spoilt = np.full_like(rows(33, shape, heads), np.nan)
    found = Cache(target, shape).run([(1, spoilt), (0, qkv), (2, spoilt)], heads, 0.2)
    assert same_bits(found[1], alone)
    assert np.isnan(found[0]).all()
    assert np.isnan(found[2]).all()


@pytest.mark.parametrize("size", [1e4, 1e8, 1e18])
@on_targets
def test_large_scores_stay_finite(target: str, size: float) -> None:
    """The softmax then takes the best key alone."""
    shape, heads = (1, 1, 16, 16), 1
    qkv = rows(70, shape, heads)
    qkv[:, :16] = 0
    qkv[:, 0] = size
    qkv[:, 16] = np.linspace(-1, 1, 70)[np.random.default_rng(0).permutation(70)]  # scores from -size to size
    found = Cache(target, shape).run([(0, qkv)], heads, 1.0)[0]
    best = [int(np.argmax(qkv[: i + 1, 16])) for i in range(70)]
    assert np.allclose(found, qkv[best, 32:], rtol=1e-6)


@on_targets
def test_equal_scores_give_the_mean(target: str) -> None:
    shape, heads = (1, 1, 16, 16), 1
    qkv = rows(70, shape, heads)
    qkv[:, :32] = 0
    found = Cache(target, shape).run([(0, qkv)], heads, 1.0)[0]
    means = np.cumsum(qkv[:, 32:].astype(np.float64), axis=0) / np.arange(1, 71)[:, None]
    assert np.allclose(found, means, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_stored_values_are_rounded_to_nearest_even(kv_type: str) -> None:
    """Every page byte is the same on all targets, keys (one by one) and values (16 at a time) alike."""
    shape, heads = (1, 1, 16, 16), 1
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, (64, 48), np.uint64).astype(np.uint32)
    ties = [0x38801000, 0x38803000, 0x33000000, 0x33000001, 0x3F808000, 0x3F818000, 0x387FC000, 0x387FE000]
    edges = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x007FFFFF, 1, 0x477FEFFF, 0x477FF000]
    bits[0, 16:], bits[1, 16:] = ties * 4, edges * 4
    qkv = bits.view(np.float32)
    qkv[np.isnan(qkv)] = 1.5
    pages = []
    for target in PRESENT:
        cache = Cache(target, shape, kv_type, page_size=64, n_pages=1, fill=0)
        cache.run([(0, qkv)], heads, 0.0)
        pages.append(cache.memory[0])
    assert all(np.array_equal(page, pages[0]) for page in pages)
    with np.errstate(over="ignore"):
        keys, values = (twin.rounded(qkv[:, a : a + 16].copy(), kv_type) for a in (16, 32))
    raw = pages[0].view({"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[kv_type])
    stored = (raw.astype(np.uint32) << 16).view(np.float32) if kv_type == "bf16" else raw
    stored = stored.astype(np.float64)
    assert np.array_equal(stored[1024:].reshape(64, 16), values)
    assert np.array_equal(stored[:1024].reshape(4, 16, 16).transpose(0, 2, 1).reshape(64, 16), keys)


@on_targets
def test_layers_keep_apart(target: str) -> None:
    shape, heads = (3, 2, 16, 16), 2
    cache = Cache(target, shape)
    parts = [rows(20, shape, heads, seed) for seed in range(3)]
    found = []
    for layer, qkv in enumerate(parts):
        cache.lengths.clear()
        found.append(cache.run([(0, qkv)], heads, 0.25, layer=layer)[0])
    cache.lengths[0] = 19  # the last row again, over what the others stored
    for layer, qkv in enumerate(parts):
        cache.lengths[0] = 19
        assert same_bits(cache.run([(0, qkv[19:])], heads, 0.25, layer=layer)[0][0], found[layer][19])


@on_targets
def test_a_shape_that_cannot_be_is_refused(target: str) -> None:
    make = load(target).attention.KvShape
    assert make(2, 3, 24, 32, LAYOUTS["f16"].id, 64).page_bytes == 2 * 3 * 64 * (24 + 32) * 2
    for arguments, text in (
        ((0, 1, 16, 16, 0, 16), "at least 1"),
        ((1, 0, 16, 16, 0, 16), "at least 1"),
        ((1, 1, 0, 16, 0, 16), "at least 1"),
        ((1, 1, 16, 0, 0, 16), "at least 1"),
        ((1, 1, 16, 16, LAYOUTS["c8"].id, 16), "kv_type: needs"),
        ((1, 1, 16, 16, -1, 16), "kv_type: needs"),
        ((1, 1, 16, 16, 0, 8), "page_size: needs a power of two, at least 16, got 8"),
        ((1, 1, 16, 16, 0, 48), "page_size: needs a power of two, at least 16, got 48"),
        ((1, 1, 16, 16, 0, 0), "page_size"),
    ):
        with pytest.raises(ValueError, match=text):
            make(*arguments)


@on_targets
def test_a_batch_that_does_not_fit_its_pages_is_refused(target: str) -> None:
    attention = load(target).attention
    shape = attention.KvShape(1, 1, 16, 16, 0, 16)
    memory = [aligned_empty(shape.page_bytes) for _ in range(3)]
    addresses = np.array([page.ctypes.data for page in memory], np.int64)

    def make(tables: Any, row_start: Any, position: Any, where: np.ndarray = addresses) -> Any:
        i32 = np.int32
        return attention.PagedBatch(
            shape, where, np.array(tables, i32), np.array(row_start, i32), np.array(position, i32)
        )

    make([[0, 1, 2]], [0, 48], [0])
    for arguments, text in (
        (([[0, 1, 2]], [0, 49], [0]), "49 positions do not fit 3 pages of 16"),
        (([[0, 1, 2]], [0, 1], [48]), "49 positions do not fit"),
        (([[0, 1, 2]], [0, 1], [2**31 - 1]), "2147483648 positions do not fit"),
        (([[0, 1, 3]], [0, 48], [0]), "page 3 does not exist"),
        (([[0, -1, 2]], [0, 48], [0]), "page -1 does not exist"),
        (([[0, 1, 2]], [0, 1], [-1]), "negative position"),
        (([[0, 1, 2], [0, 1, 2]], [0, 2, 1], [0, 0]), "negative position or row count"),
        (([[0, 1, 2]], [1, 2], [0]), "row_start: must begin with 0"),
        (([[0, 1, 2]], [0], [0]), "row_start: needs 2"),
        (([[0, 1, 2]], [0, 1], []), "position: needs 1"),
    ):
        with pytest.raises(ValueError, match=text):
            make(*arguments)
    with pytest.raises(TypeError, match="addresses: needs"):
        make([[0]], [0, 1], [0], addresses.astype(np.int32))
    make([[0, -1, -1]], [0, 16], [0])  # only pages that are needed have to exist


@on_targets
def test_rows_that_do_not_fit_are_refused(target: str) -> None:
    cache = Cache(target, (1, 2, 16, 16))
    batch = cache.batch([(0, 3)])
    qkv, out = normal(3, 128), np.zeros((3, 64), np.float32)
    scratch = np.zeros(batch.scratch_bytes(2), np.uint8)
    for arguments, text in (
        ((1, qkv, 64, 96, 1), "layer: 1 is not one of 1"),
        ((-1, qkv, 64, 96, 1), "layer: -1"),
        ((0, qkv, 64, 97, 1), "do not fit rows of 128"),
        ((0, qkv, 97, 64, 1), "do not fit rows of 128"),
        ((0, qkv, -1, 64, 1), "do not fit rows of 128"),
        ((0, qkv[:2], 64, 96, 1), "x: needs"),
    ):
        with pytest.raises(ValueError, match=text):
            batch.store(*arguments)
    for wrong, text in (
        ((1, qkv, 4, 0.25, out, scratch, 2), "layer: 1 is not one of 1"),
        ((0, qkv, 3, 0.25, out, scratch, 2), "3 query heads do not fit 2 key heads"),
        ((0, qkv, 0, 0.25, out, scratch, 2), "0 query heads"),
        ((0, qkv, 10, 0.25, np.zeros((3, 160), np.float32), scratch, 2), "rows of 128"),
        ((0, qkv[:2], 4, 0.25, out, scratch, 2), "q: needs"),
        ((0, qkv, 4, 0.25, out[:2], scratch, 2), "out: needs"),
        ((0, qkv, 4, 0.25, out, scratch[:-1], 2), "scratch: needs"),
        ((0, qkv, 4, 0.25, out, scratch, 0), "n_threads: needs at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=text):
            batch.attend(*wrong)
