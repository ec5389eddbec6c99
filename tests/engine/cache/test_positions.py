"""Keys and values by position: the same bytes of pages of any size, and back."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama.base.formats import KV_PAIRS, KV_TYPES
from oxillama.engine.cache.kv import PagedKvCache
from oxillama.engine.cache.kv_pool import KvCachePool, KvLayout
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.cache.positions import from_positions, position_bytes, to_positions
from tests.support.kernels import normal
from tests.support.paged_cache import KINDS, Cache

N = 37


def cache_of(
    layout: KvLayout, page_size: int, fill: int, x: np.ndarray
) -> tuple[PagedKvCache, list[np.ndarray]]:
    """A cache with rows of keys, then values, and copies of its pages; memory beside them is ``fill``."""
    sizes = (layout.n_layers, layout.n_heads, layout.key_dim, layout.value_dim)
    types = (KV_TYPES[name] for name in KV_PAIRS[layout.kv_type])
    shape = Cache("portable", sizes).attention.KvShape(*sizes, *types, page_size)
    pool = KvCachePool(shape, layout, page_size)
    kv = PagedKvCache(CachePool([pool]))
    kv.reserve(0, N)
    for page in kv.pages[0]:
        pool.page(page)[:] = fill
    batch = Cache("portable", sizes).attention.PagedBatch(
        shape,
        pool.table,
        np.array(kv.pages, np.int32),
        np.array([0, N], np.int32),
        np.zeros(1, np.int32),
    )
    for layer in range(layout.n_layers):
        batch.store(layer, x + layer, 0, layout.n_heads * layout.key_dim, 1)
    return kv, kv.snapshot(N)


@pytest.mark.parametrize("kv_type", KINDS)
@pytest.mark.parametrize("dims", [(1, 32, 32), (2, 40, 24), (3, 7, 1)], ids=str)
def test_the_bytes_do_not_depend_on_pages(kv_type: str, dims: tuple[int, int, int]) -> None:
    layout = KvLayout(2, *dims, kv_type)
    x = normal(N, layout.n_heads * (layout.key_dim + layout.value_dim), seed=5)
    found = {}
    for page_size, fill in ((1, 0xFF), (4, 0), (16, 0xFF), (64, 0x55)):
        kv, (pages,) = cache_of(layout, page_size, fill, x)
        data = to_positions(layout, page_size, pages, 0, N)
        assert len(data) == N * position_bytes(layout)
        found[page_size] = data.tobytes()
    assert len(set(found.values())) == 1
    for other in (1, 8, 16, 32):
        back, _ = cache_of(layout, other, 0xAA, np.zeros_like(x))
        back.restore([from_positions(layout, other, data, 0, N)], N)
        for layer in range(layout.n_layers):
            for read in ("keys", "values"):
                stored, again = (np.array(list(getattr(c, read)(layer, N))) for c in (kv, back))
                np.testing.assert_array_equal(again, stored)
                assert stored.any()


@pytest.mark.parametrize("first", [1, 16, 21, 36, N])
def test_a_part_is_the_part_of_the_whole(first: int) -> None:
    """The pages of what a window sees, from the page of its first position on."""
    layout = KvLayout(2, 2, 40, 24, "q8_0")
    x = normal(N, 128, seed=5)
    found = {}
    for page_size in (1, 8, 16, 64):
        _, (pages,) = cache_of(layout, page_size, 0xFF, x)
        data = to_positions(layout, page_size, pages[first // page_size :], first, N)
        assert len(data) == (N - first) * position_bytes(layout)
        found[page_size] = data.tobytes()
        back = from_positions(layout, page_size, data, first, N)
        assert len(back) == -(-N // page_size) - first // page_size
        again = to_positions(layout, page_size, back, first, N)
        np.testing.assert_array_equal(again, data)
    assert len(set(found.values())) == 1


def test_the_numbers_are_in_order() -> None:
    layout = KvLayout(1, 2, 3, 5, "f32")
    x = np.arange(N * 16, dtype=np.float32).reshape(N, 16)
    _, (pages,) = cache_of(layout, 16, 0xFF, x)
    numbers = to_positions(layout, 16, pages[1:], 17, 20).view("<f4")
    np.testing.assert_array_equal(
        numbers[: 2 * 3 * 3].reshape(2, 3, 3), x[17:20, :6].reshape(3, 2, 3).swapaxes(0, 1)
    )
    np.testing.assert_array_equal(
        numbers[2 * 3 * 3 :].reshape(2, 3, 5), x[17:20, 6:].reshape(3, 2, 5).swapaxes(0, 1)
    )


def test_no_tokens_are_no_bytes() -> None:
    layout = KvLayout(2, 1, 8, 8, "f16")
    assert to_positions(layout, 16, np.empty((0, layout.page_bytes(16)), np.uint8), 0, 0).shape == (0,)
    assert from_positions(layout, 16, np.empty(0, np.uint8), 0, 0).shape == (0, layout.page_bytes(16))
