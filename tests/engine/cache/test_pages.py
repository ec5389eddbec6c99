"""The page pool: every page is free or held, whatever is asked of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama.engine.cache import pages as module
from oxillama.engine.cache.pages import MemoryLimit, PagePool
from oxillama.errors import KvCacheFullError


class Shape:
    """The one thing a pool asks of a `KvShape`."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes


def pool_of(max_pages: int, page_bytes: int = 100) -> PagePool:
    return PagePool(Shape(page_bytes), 16, MemoryLimit(max_pages * (-(-page_bytes // 64) * 64)))


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLAB_BYTES", 400)  # so that a pool grows in several steps


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.lists(st.tuples(st.sampled_from("arf"), st.integers(0, 12)), max_size=60))
def test_random_histories_keep_the_pool_sound(max_pages: int, history: list[tuple[str, int]]) -> None:
    """Allocate, retain, free; against a count of references kept on the side."""
    pool, held = pool_of(max_pages), Counter[int]()
    holdings: list[list[int]] = []
    for verb, n in history:
        in_use = sum(1 for count in held.values() if count)
        if verb == "a":
            if n > max_pages - in_use:
                with pytest.raises(
                    KvCacheFullError, match=f"expected {n} free pages .* got {max_pages - in_use}"
                ):
                    pool.allocate(n)
            else:
                taken = pool.allocate(n)
                assert len(set(taken)) == n
                assert not any(held[page] for page in taken), "a page in use was handed out"
                held.update(taken)
                holdings.append(taken)
        elif holdings and verb == "r":
            pool.retain(holdings[n % len(holdings)])
            held.update(holdings[n % len(holdings)])
            holdings.append(list(holdings[n % len(holdings)]))
        elif holdings:
            freed = holdings.pop(n % len(holdings))
            pool.release(freed)
            held.subtract(freed)
        pool.check_integrity()
        assert pool.n_available == max_pages - sum(1 for count in held.values() if count)
        assert pool.n_pages <= max_pages
    for pages in holdings:
        pool.release(pages)
    pool.check_integrity()
    assert pool.n_available == max_pages


def test_pages_are_apart_aligned_and_inside_the_memory() -> None:
    pool = pool_of(50, page_bytes=100)
    pages = pool.allocate(50)
    places = np.sort([pool.page(page).ctypes.data for page in pages])
    assert (np.diff(places) >= 100).all()
    assert (places % 64 == 0).all()
    assert pool.memory_bytes == 50 * 128
    for slab in pool._slabs:
        memory = slab.memory
        assert memory is not None
        inside = (places >= memory.ctypes.data) & (places + 100 <= memory.ctypes.data + memory.nbytes)
        places = places[~inside]
    assert not len(places)


def test_memory_is_taken_as_it_is_needed() -> None:
    pool = pool_of(10**9)
    assert pool.memory_bytes == pool.n_pages == 0
    pool.allocate(1)
    assert pool.n_pages == 3  # pages of 128 bytes in a slab of 400
    assert pool.n_available == 10**9 - 1
    pool.allocate(3)
    assert pool.n_pages == 6


def test_a_page_larger_than_a_slab_has_one_to_itself() -> None:
    pool = pool_of(5, page_bytes=1000)
    pool.allocate(2)
    assert pool.memory_bytes == 2 * 1024


def test_exhaustion_takes_nothing() -> None:
    pool = pool_of(5)
    first = pool.allocate(3)
    with pytest.raises(KvCacheFullError, match="kv cache: expected 3 free pages of 16 tokens, got 2"):
        pool.allocate(3)
    assert issubclass(KvCacheFullError, MemoryError)
    assert pool.n_available == 2
    pool.check_integrity()
    second = pool.allocate(2)
    assert not set(first) & set(second)
    with pytest.raises(KvCacheFullError):
        pool.allocate(1)
    pool.release(first[:1])
    assert pool.allocate(1) == first[:1]


class Spare:
    """Holds pages that it can do without."""

    def __init__(self, pool: PagePool, n: int) -> None:
        self.pool, self.pages, self.asked = pool, pool.allocate(n), list[int]()

    def reclaim(self, n_bytes: int) -> None:
        self.asked.append(n_bytes)
        self.pool.release([self.pages.pop() for _ in range(min(len(self.pages), n_bytes // 128))])


def test_others_are_asked_for_what_is_short_and_no_more() -> None:
    pool = pool_of(10)
    spare = Spare(pool, 6)
    pool.limit.reclaim_from(spare.reclaim)
    pool.allocate(4)
    assert spare.asked == []
    pool.release(pool.allocate(2))
    assert pool.limit.can_allocate(3 * 128)
    assert pool.allocate(3)
    assert spare.asked == [2 * 128, 128]
    pool.check_integrity()


def test_others_are_asked_in_their_order_for_what_is_still_short() -> None:
    pool = pool_of(10)
    first, second = Spare(pool, 3), Spare(pool, 4)
    for spare in (first, second):
        pool.limit.reclaim_from(spare.reclaim)
    assert pool.allocate(5) and (first.asked, second.asked) == ([2 * 128], [])
    assert pool.allocate(3) and (first.asked, second.asked) == ([2 * 128, 3 * 128], [2 * 128])
    assert not pool.limit.can_allocate(3 * 128)
    pool.check_integrity()


def test_releasing_or_sharing_a_free_page_is_a_mistake_of_ours() -> None:
    pool = pool_of(5)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(AssertionError, match="more often than it was retained"):
        pool.release(pages)
    with pytest.raises(AssertionError, match="in use"):
        pool.retain(pages)


@pytest.mark.parametrize("break_it", ["free twice", "lost", "free and held", "too many"])
def test_check_integrity_finds_what_is_wrong(break_it: str) -> None:
    pool = pool_of(5)
    pages = pool.allocate(2)
    pool.check_integrity()
    if break_it == "free twice":
        pool._free.append(pool._free[0])
    elif break_it == "lost":
        pool._free.pop()
    elif break_it == "free and held":
        pool._free.append(pages[0])
    else:
        pool.limit.max_bytes = 128
    with pytest.raises(AssertionError):
        pool.check_integrity()
