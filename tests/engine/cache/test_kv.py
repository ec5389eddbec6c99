"""Keys and values of one sequence: what is stored can be read back, what is shared is never written."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama.engine.cache.contiguous import KvCache
from oxillama.engine.cache.kv import PagedKvCache
from oxillama.engine.cache.kv_pool import KvCachePool, KvLayout, cache_pool
from oxillama.engine.cache.pages import CachePool, PagePool
from oxillama.errors import ConfigError, KvCacheFullError
from tests.support.kernels import normal
from tests.support.serving import Serving, decoder


def group_of(serving: Serving) -> KvCachePool:
    """The pages of its only group."""
    (group,) = serving.pool.groups
    assert isinstance(group, KvCachePool)
    return group


def store(serving: Serving, kv: PagedKvCache, start: int, x: np.ndarray) -> None:
    """Writes rows (n, heads * (key_dim + value_dim)) of keys, then values, into every layer."""
    spec = decoder(serving.name).spec
    kv.reserve(start, start + len(x))
    batch = serving.kernels.attention.PagedBatch(
        group_of(serving).shape,
        group_of(serving).table,
        np.array(kv.pages, np.int32),
        np.array([0, len(x)], np.int32),
        np.array([start], np.int32),
    )
    for layer in range(spec.n_layers):
        batch.store(layer, x + layer, 0, spec.layers[0].n_kv_heads * spec.key_dim, 1)


@pytest.mark.parametrize("name", ["llama", "narrow values, tied, Q8_0"])
@pytest.mark.parametrize(
    ("kv_type", "close"),
    [
        *(("f32", 0), ("f16", 2e-3), ("bf16", 2e-2), ("q8_0", 4e-2), ("q5_1", 0.2), ("q5_0", 0.4)),
        *(("q4_1", 0.4), ("q4_0", 0.8), ("iq4_nl", 0.8), ("q8_0:q4_1", 0.4)),
    ],
)
@pytest.mark.parametrize("page_size", [1, 8, 16, 64])
def test_keys_and_values_are_read_back(name: str, kv_type: str, close: float, page_size: int) -> None:
    serving = Serving(name, kv_type=kv_type, page_size=page_size)
    spec = decoder(name).spec
    keys = spec.layers[0].n_kv_heads * spec.key_dim
    x = normal(37, keys + spec.layers[0].n_kv_heads * spec.value_dim)
    kv = PagedKvCache(serving.pool)
    kv.reserve(0, 37)
    for page in kv.pages[0]:
        group_of(serving).page(page)[:] = 0xFF  # NaNs, wherever nothing is stored
    store(serving, kv, 0, x[:20])
    store(serving, kv, 20, x[20:])
    for layer in range(spec.n_layers):
        found_keys, found_values = np.array(list(kv.keys(layer, 37))), np.array(list(kv.values(layer, 37)))
        assert found_keys.shape == (37, spec.layers[0].n_kv_heads, spec.key_dim)
        assert found_values.shape == (37, spec.layers[0].n_kv_heads, spec.value_dim)
        np.testing.assert_allclose(found_keys.reshape(37, -1), x[:, :keys] + layer, rtol=close, atol=close)
        np.testing.assert_allclose(found_values.reshape(37, -1), x[:, keys:] + layer, rtol=close, atol=close)
    for wrong in ((spec.n_layers, 1), (-1, 1), (0, kv.capacity + 1)):
        with pytest.raises(ConfigError):
            list(kv.keys(*wrong))


def test_a_pool_of_unknown_layout_is_not_read() -> None:
    serving = Serving()
    shape = group_of(serving).shape
    kv = PagedKvCache(CachePool([PagePool(shape, 16)]))
    with pytest.raises(ConfigError, match="pool: expected a KvCachePool, got PagePool"):
        list(kv.keys(0, 0))
    layout = KvLayout(2, 2, 16, 17, "f16")
    other = PagedKvCache(CachePool([KvCachePool(shape, layout, 16)]))
    other.reserve(0, 5)
    with pytest.raises(ConfigError, match="layout: expected pages of 4096 bytes, got 6144"):
        list(other.keys(0, 5))


def test_memory_grows_and_shrinks_with_the_tokens() -> None:
    serving = Serving()
    kv = PagedKvCache(serving.pool)
    assert kv.memory_bytes == kv.capacity == 0
    kv.reserve(0, 1)
    assert kv.capacity == 16
    kv.reserve(1, 16)
    assert len(kv.pages[0]) == 1
    kv.reserve(16, 50)
    assert kv.memory_bytes == 4 * serving.pool.page_stride
    kv.shrink_to_fit(17)
    assert len(kv.pages[0]) == 2
    kv.release()
    serving.pool.check_integrity([])
    serving.pool.shrink_to_fit()
    assert serving.pool.memory_bytes == 0
    kv.reserve(0, 40)  # the same numbers, new memory
    group_of(serving).page(kv.pages[0][0])[:] = 1
    serving.pool.check_integrity([kv.pages])


def test_a_pool_that_shrinks_keeps_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from oxillama.engine.cache import pages as module

    serving = Serving()
    pool = group_of(serving)
    monkeypatch.setattr(module, "SLAB_BYTES", 3 * pool.stride)
    pool = PagePool(pool.shape, 16)
    pages = pool.allocate(10)
    for page in pages:
        pool.page(page)[:] = page
    pool.release(pages[:7])
    pool.shrink_to_fit(keep_bytes=pool.memory_bytes)
    assert pool.n_pages == 12
    pool.shrink_to_fit()
    assert pool.n_pages == 6  # the slabs of the three that are left
    assert sum(not pool.table.has(page) for page in range(12)) == 6
    pool.check_integrity([pages[7:]])
    assert all((pool.page(page) == page).all() for page in pages[7:])
    more = pool.allocate(9)
    assert not set(more) & set(pages[7:])
    assert pool.n_pages == 12
    assert all(map(pool.table.has, more))
    pool.check_integrity([pages[7:], more])


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    serving = Serving(kv_type="f32")
    x = normal(40, 64)
    first = PagedKvCache(serving.pool)
    store(serving, first, 0, x[:20])
    second, kept = first.fork(18)
    assert kept == 18
    assert second.pages == first.pages
    assert second.shortage(18, 19) == serving.pool.page_stride
    assert second.shortage(18, 18) == 0
    store(serving, second, 18, x[30:])
    assert second.pages[0][0] == first.pages[0][0]
    assert second.pages[0][1] != first.pages[0][1]
    np.testing.assert_array_equal(np.array(list(first.keys(0, 20))).reshape(20, -1), x[:20, :32])
    expected = np.concatenate([x[:18, :32], x[30:, :32]])
    np.testing.assert_array_equal(np.array(list(second.keys(0, 28))).reshape(28, -1), expected)
    serving.pool.check_integrity([first.pages, second.pages])


def test_reserving_takes_all_or_nothing() -> None:
    serving = Serving(max_pages=3)
    kv = PagedKvCache(serving.pool)
    kv.reserve(0, 20)
    other, _ = kv.fork(20)
    with pytest.raises(KvCacheFullError):
        other.reserve(20, 40)  # a copy and a page more, one is left
    assert other.pages == kv.pages
    serving.pool.check_integrity([kv.pages, other.pages])
    other.reserve(20, 30)
    serving.pool.check_integrity([kv.pages, other.pages])


def test_a_snapshot_is_put_back() -> None:
    serving = Serving(kv_type="f32")
    x = normal(20, 64)
    kv = PagedKvCache(serving.pool)
    store(serving, kv, 0, x)
    data = kv.snapshot(20)
    store(serving, kv, 0, 0 * x)
    other = PagedKvCache(serving.pool)
    other.reserve(0, 3)
    other.restore(data, 20)
    np.testing.assert_array_equal(np.array(list(other.keys(0, 20))).reshape(20, -1), x[:, :32])
    serving.pool.check_integrity([kv.pages, other.pages])


def test_a_snapshot_without_room_changes_nothing() -> None:
    serving = Serving(kv_type="f32", max_pages=3)
    kv, x = PagedKvCache(serving.pool), normal(20, 64)
    store(serving, kv, 0, x)
    data, pages = kv.snapshot(20), list(kv.pages[0])
    with pytest.raises(KvCacheFullError):
        kv.restore(data, 20)
    assert kv.pages == [pages]
    np.testing.assert_array_equal(np.array(list(kv.keys(0, 20))).reshape(20, -1), x[:, :32])
    serving.pool.check_integrity([kv.pages])


def test_a_contiguous_cache_is_one_page() -> None:
    serving = Serving(kv_type="f32", page_size=64)
    kv, x = KvCache(serving.pool), normal(64, 64)
    store(serving, kv, 0, x[:1])
    store(serving, kv, 1, x[1:])
    assert len(kv.pages[0]) == 1
    assert kv.capacity == 64
    assert kv.memory_bytes == serving.pool.page_stride
    np.testing.assert_array_equal(np.array(list(kv.keys(0, 64))).reshape(64, -1), x[:, :32])
    np.testing.assert_array_equal(np.array(list(kv.values(0, 64))).reshape(64, -1), x[:, 32:])
    with pytest.raises(ConfigError, match="end: expected at most 64 tokens, got 65"):
        kv.reserve(64, 65)


def test_no_page_is_beyond_the_limit() -> None:
    stride = Serving().pool.page_stride
    for extra, n in ((-1, 2), (0, 3), (1, 3), (stride - 1, 3)):
        pool = cache_pool(decoder("llama"), "f16", 16, 3 * stride + extra)
        assert pool.n_available == n
        with pytest.raises(KvCacheFullError):
            pool.allocate([n + 1])
        pool.allocate([n])
        assert pool.memory_bytes == n * stride


def test_a_limit_below_one_page_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_memory_limit"):
        Serving(max_pages=0)
