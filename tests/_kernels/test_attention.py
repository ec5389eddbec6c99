"""Paged attention: the same bits in any batch, chunk, page size and target.

`tests/reference/test_attention.py` compares them with the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama._kernels.attention.page_table import PageTable
from oxillama.base.formats import LAYOUTS
from oxillama.reference.kv import rounded
from tests.support.kernels import PRESENT, normal, on_targets, refuses, same_bits
from tests.support.paged_cache import KINDS, SHAPES, Cache, rows, some_options
from tests.support.spread import leading


@pytest.mark.parametrize(("window", "chunk"), [(5, 0), (100, 0), (0, 1), (0, 64), (20, 48)])
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


@pytest.mark.parametrize("seed", leading(range(100), 40))
def test_how_a_sequence_is_run_changes_no_bit(seed: int) -> None:
    """Chunks, neighbours, threads, page size and target; against the sequence run whole, alone."""
    rng = np.random.default_rng(seed)
    shape, heads = SHAPES[str(rng.choice(sorted(SHAPES)))]
    kv_type, scale = str(rng.choice(KINDS)), shape[2] ** -0.5
    options = some_options(rng, heads) if seed % 2 else {}
    sequences = [rows(int(rng.integers(1, 150)), shape, heads, seed=i) for i in range(rng.integers(1, 5))]
    whole = [Cache(PRESENT[0], shape, kv_type).run([(0, x)], heads, scale, **options)[0] for x in sequences]

    page_size, target = int(rng.choice([1, 2, 4, 8, 16, 32, 64, 256])), PRESENT[seed % len(PRESENT)]
    cache = Cache(target, shape, kv_type, page_size, n_pages=600 // page_size + 8)
    found: list[list[np.ndarray]] = [[] for _ in sequences]
    left = dict(enumerate(sequences))
    while left:
        parts = []
        for i in rng.permutation(sorted(left))[: rng.integers(1, 5)].tolist():
            n = int(rng.choice([1, 2, 5, 33, len(left[i])])) if options.get("causal", True) else len(left[i])
            parts.append((i, left[i][:n]))
            left[i] = left[i][n:]
        n_threads = int(rng.integers(1, 4))
        for (i, _), out in zip(parts, cache.run(parts, heads, scale, n_threads, **options), strict=True):
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


@pytest.mark.parametrize("kv_type", KINDS)
@pytest.mark.parametrize("page_size", [4, 32])
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7F, 0xFC])
@on_targets
def test_what_unused_parts_of_pages_hold_does_not_matter(
    target: str, kv_type: str, fill: int, page_size: int
) -> None:
    """Zeros, NaNs, huge numbers (0x7F7F...: NaN as f16), or large negative ones (0xFCFC)."""
    shape, heads = (1, 2, 32, 32), 4
    qkv = rows(75, shape, heads)
    clean = Cache(target, shape, kv_type, 32, fill=0x11).run([(0, qkv)], heads, 0.2)[0]
    cache = Cache(target, shape, kv_type, page_size, fill=fill)
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


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16"])
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
        keys, values = (rounded(qkv[:, a : a + 16].copy(), kv_type) for a in (16, 32))
    raw = pages[0].view({"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[kv_type])
    stored = (raw.astype(np.uint32) << 16).view(np.float32) if kv_type == "bf16" else raw
    stored = stored.astype(np.float64)
    if kv_type == "bf16":  # pairs of positions, and pairs of dimensions
        keys, values = (np.where(np.abs(x) < 2.0**-56, 0, x) for x in (keys, values))
        assert np.array_equal(stored[1024:].reshape(32, 16, 2).swapaxes(1, 2).reshape(64, 16), values)
        assert np.array_equal(stored[:1024].reshape(4, 8, 16, 2).swapaxes(1, 2).reshape(64, 16), keys)
        return
    assert np.array_equal(stored[1024:].reshape(64, 16), values)
    assert np.array_equal(stored[:1024].reshape(4, 16, 16).transpose(0, 2, 1).reshape(64, 16), keys)


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_stored_codes_are_those_of_q8_0(page_size: int) -> None:
    """Every byte is the same on all targets; scale times code is what the reference says."""
    shape, heads = (1, 1, 40, 40), 1
    qkv = rows(64, shape, heads)
    qkv[3:9, 40:] *= np.float32([1e-30, 1e-9, 1e-4, 1e4, 1e6, 0])[:, None]
    qkv[10, 40:80], qkv[10, 80:] = np.linspace(-127, 127, 40) / 2, 127
    pages = []
    for target in PRESENT:
        cache = Cache(target, shape, "q8_0", page_size, fill=0)
        cache.run([(0, qkv)], heads, 0.0)
        pages.append(np.stack([cache.memory[page] for page in cache.pages[0]]))
    assert all(np.array_equal(page, pages[0]) for page in pages)
    n = min(page_size, 16)
    panels = pages[0].reshape(len(pages[0]), 2, -1, 2, 34 * n)  # (page, keys or values, panel, block, bytes)
    panels = panels.swapaxes(0, 1).reshape(2, 64 // n, 2, 34 * n)
    scales = (
        panels[..., : 2 * n].copy().view("<f2").astype(np.float64)[..., None]
    )  # (2, panel, block, lane, 1)
    keys, values = panels[..., 2 * n :].copy().view(np.int8)
    stored = [
        (keys.reshape(-1, 2, 32, n).swapaxes(2, 3) * scales[0]).swapaxes(1, 2).reshape(64, 64)[:, :40],
        (values.reshape(-1, 2, n, 32) * scales[1]).swapaxes(1, 2).reshape(64, 64)[:, :40],
    ]
    for found, x in zip(stored, (qkv[:, 40:80], qkv[:, 80:]), strict=True):
        assert np.array_equal(found, rounded(x[:, None], "q8_0")[:, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@on_targets
def test_a_block_of_q8_0_that_has_no_scale_is_nan(target: str, value: float) -> None:
    shape, heads = (1, 1, 64, 64), 1
    qkv = rows(8, shape, heads)
    qkv[5, 128 + 40] = value  # the second block of a value
    found = Cache(target, shape, "q8_0").run([(0, qkv)], heads, 0.125)[0]
    assert np.isnan(found[5:, 32:]).all()
    assert np.isfinite(found[5:, :32]).all()
    assert np.isfinite(found[:5]).all()


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
    assert make(2, 3, 24, 32, *[LAYOUTS["f16"].id] * 2, 64).page_bytes == 2 * 3 * 64 * (24 + 32) * 2
    assert make(1, 3, 40, 32, LAYOUTS["c8"].id, LAYOUTS["m5"].id, 64).page_bytes == 3 * 64 * (2 * 34 + 24)
    for arguments, text in (
        ((0, 1, 16, 16, 0, 0, 16), "expected sizes >= 1"),
        ((1, 0, 16, 16, 0, 0, 16), "expected sizes >= 1"),
        ((1, 1, 0, 16, 0, 0, 16), "expected sizes >= 1"),
        ((1, 1, 16, -1, 0, 0, 16), "expected sizes >= 1, and >= 0 of value_dim"),
        ((1, 1, 16, 16, LAYOUTS["k4"].id, 0, 16), "key_type: expected"),
        ((1, 1, 16, 16, 0, LAYOUTS["e4"].id, 16), "value_type: expected"),
        ((1, 1, 16, 16, -1, 0, 16), "key_type: expected"),
        ((1, 1, 16, 16, 0, 0, -8), "page_size: expected a power of two up to 16777216, got -8"),
        ((1, 1, 16, 16, 0, 0, 48), "page_size: expected a power of two up to 16777216, got 48"),
        ((1, 1, 16, 16, 0, 0, 0), "page_size"),
    ):
        refuses(text, make, *arguments)


@on_targets
def test_a_batch_that_does_not_fit_its_pages_is_refused(target: str) -> None:
    attention = load(target).attention
    shape = attention.KvShape(1, 1, 16, 16, 0, 0, 16)
    pages = PageTable(shape.page_bytes)
    pages.put(0, np.zeros((3, shape.page_bytes), np.uint8))

    def make(tables: Any, row_start: Any, position: Any, where: Any = pages) -> Any:
        i32 = np.int32
        return attention.PagedBatch(
            shape, where, np.array(tables, i32), np.array(row_start, i32), np.array(position, i32)
        )

    make([[0, 1, 2]], [0, 48], [0])
    for arguments, text in (
        (([[0, 1, 2]], [0, 49], [0]), "expected at most 48 positions, got 49"),
        (([[0, 1, 2]], [0, 1], [48]), "positions, got 49"),
        (([[0, 1, 2]], [0, 1], [2**31 - 1]), "positions, got 2147483648"),
        (([[0, 1, 3]], [0, 48], [0]), "expected pages below 3, got 3"),
        (([[0, -1, 2]], [0, 48], [0]), "expected pages below 3, got -1"),
        (([[0, 1, 2]], [0, 1], [-1]), "expected a position and a row count >= 0, got -1 and 1"),
        (([[0, 1, 2], [0, 1, 2]], [0, 2, 1], [0, 0]), "a row count >= 0, got 0 and -1"),
        (([[0, 1, 2]], [1, 2], [0]), "row_start: expected 0 first, got 1"),
        (([[0, 1, 2]], [0], [0]), "row_start: expected at least 2"),
        (([[0, 1, 2]], [0, 1], []), "position: expected at least 1"),
        (
            ([[0]], [0, 1], [0], PageTable(shape.page_bytes - 1)),
            "pages: expected pages of 2048 bytes, got 2047",
        ),
    ):
        refuses(text, make, *arguments)
    refuses("pages", make, [[0]], [0, 1], [0], np.zeros(1, np.int64), error=TypeError)
    make([[0, -1, -1]], [0, 16], [0])  # only pages that are needed have to exist


@on_targets
def test_rows_that_do_not_fit_are_refused(target: str) -> None:
    cache = Cache(target, (1, 2, 16, 16))
    batch = cache.batch([(0, 3)])
    qkv, out = normal(3, 128), np.zeros((3, 64), np.float32)
    scratch = np.zeros(batch.scratch_bytes(2), np.uint8)
    for arguments, text in (
        ((1, qkv, 64, 96, 1), "layer: expected 0 to 0, got 1"),
        ((-1, qkv, 64, 96, 1), "layer: expected 0 to 0, got -1"),
        ((0, qkv, 64, 97, 1), "store: expected keys and values within rows of 128"),
        ((0, qkv, 97, 64, 1), "store: expected keys and values within rows of 128"),
        ((0, qkv, -1, 64, 1), "store: expected keys and values within rows of 128"),
        ((0, qkv[:2], 64, 96, 1), "x: expected"),
    ):
        refuses(text, batch.store, *arguments)
    given, views = (0, qkv, 4, 0.25, out, scratch, 2), "expected window and chunk from 0 to 2147483647"
    for wrong, text in (
        ((1, *given[1:]), "layer: expected 0 to 0, got 1"),
        ((0, qkv, 3, 0.25, out, scratch, 2), "n_heads: expected a multiple of 2 .*, got 3"),
        ((0, qkv, 0, 0.25, out, scratch, 2), "n_heads: expected .*, got 0"),
        ((0, qkv, 10, 0.25, np.zeros((3, 160), np.float32), scratch, 2), "fits rows of 128, got 10"),
        ((0, qkv[:2], 4, 0.25, out, scratch, 2), "q: expected"),
        ((0, qkv, 4, 0.25, out[:2], scratch, 2), "out: expected"),
        ((0, qkv, 4, 0.25, out, scratch[:-1], 2), "scratch: expected"),
        ((0, qkv, 4, 0.25, out, scratch, 0), "n_threads: expected an integer from 1 to 1024, got 0"),
        ((*given, -1), f"{views}, got -1 and 0"),
        ((*given, 0, -3), f"{views}, got 0 and -3"),
    ):
        refuses(text, batch.attend, *wrong)
    three = np.zeros(3, np.float32)
    refuses("softcap: expected a finite number >= 0, got -1", batch.attend, *given, softcap=-1.0)
    refuses("softcap: expected", batch.attend, *given, softcap=np.nan)
    refuses("softcap: expected", batch.attend, *given, softcap=np.inf)
    refuses("sinks: expected at least 4 elements, got 3", batch.attend, *given, sinks=three)
    refuses("slopes: expected at least 4 elements, got 3", batch.attend, *given, slopes=three)
    text, biases = "biases: expected an odd number of distances, got 6", np.zeros((4, 6), np.float32)
    refuses(text, batch.attend, *given, biases=biases)
