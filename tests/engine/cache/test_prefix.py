"""The prefix cache: the longest known beginning, shared pages, the least recently used given up first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from oxillama.engine.cache.pages import CachePool, MemoryLimit, PagePool
from oxillama.engine.cache.prefix import PrefixKvCache, prefix_key
from oxillama.engine.cache.radix import common_length
from oxillama.engine.prefixes import NODE, CachedPrefixes
from oxillama.engine.sequence import SeqState
from tests.support.serving import Serving, check_as_alone
from tests.support.tiny_models import tokens_of

KEY = b"k"


class Shape:
    """A `KvShape` with the attribute that a pool reads."""

    page_bytes = 64


def pool_of(max_pages: int, page_size: int = 4) -> CachePool:
    """One group of pages of 64 bytes."""
    return CachePool([PagePool(Shape(), page_size, MemoryLimit(64 * max_pages))])


def cache_of(max_pages: int = 100, cached_pages: int = 100, page_size: int = 4) -> PrefixKvCache:
    return PrefixKvCache(pool_of(max_pages, page_size), 64 * cached_pages)


def put(cache: PrefixKvCache, tokens: Sequence[int], key: bytes = KEY, held: Sequence[int] = ()) -> None:
    """As a sequence would that has run these tokens and ends."""
    (group,) = cache.pool.groups
    pages = group.allocate(group.pages_for(len(tokens)))
    cache.insert(key, tokens, [pages])
    group.release(pages)
    check(cache, held)


def known(cache: PrefixKvCache, tokens: Sequence[int], key: bytes = KEY, held: Sequence[int] = ()) -> int:
    found = cache.match(key, tokens)
    (pages,) = found.pages
    assert len(pages) == cache.pool.pages_for(found.n_tokens)
    cache.pool.groups[0].release(pages)
    check(cache, held)
    return found.n_tokens


def check(cache: PrefixKvCache, held: Sequence[int] = ()) -> None:
    cache.check_integrity()
    cache.pool.check_integrity([cache.pages(), [held]])


def test_the_longest_beginning_is_found_even_inside_a_page() -> None:
    cache = cache_of()
    put(cache, range(10))  # pages of 4, 4 and 2
    assert known(cache, range(20)) == 10
    assert known(cache, [0, 1, 2, 3, 4, 5, 99]) == 6
    assert known(cache, [0, 1, 99]) == 2
    assert known(cache, [7]) == 0
    assert known(cache, []) == 0
    assert cache.n_pages == 3


def test_a_leaf_that_is_continued_is_replaced_and_one_that_differs_stands_beside() -> None:
    cache = cache_of()
    put(cache, range(10))
    put(cache, range(13))
    assert cache.n_pages == 4
    put(cache, range(9))
    assert cache.n_pages == 4
    put(cache, [*range(9), 77])
    assert cache.n_pages == 5
    assert known(cache, range(13)) == 13
    assert known(cache, [*range(9), 77, 78]) == 10


def test_pages_that_begin_alike_are_found_in_whatever_order_they_came_and_grew() -> None:
    cache = cache_of()
    put(cache, [1, 2])
    put(cache, [1, 3, 1])
    put(cache, [1, 3, 0, 5])
    put(cache, [1, 3, 1, 7])
    put(cache, [1, 2, 9])  # grows from [1, 2]
    put(cache, [1, 2, 4, 4])
    put(cache, [1, 2, 9, 0])
    for tokens in ([1, 2, 4, 4], [1, 2, 9, 0], [1, 3, 0, 5], [1, 3, 1, 7]):
        assert known(cache, tokens) == 4
    assert cache.n_pages == 4


def test_shared_pages_are_not_copied() -> None:
    cache = cache_of()
    put(cache, range(8))
    found = cache.match(KEY, range(12))
    assert found.n_tokens == 8
    (pages,) = found.pages
    assert [cache.pool.groups[0].references(page) for page in pages] == [2, 2]
    assert set(pages) == set(cache.pages()[0])


def test_keys_keep_trees_apart() -> None:
    parts = [
        (b"model", (), ""), (b"other", (), ""), (b"model", (b"adapter",), ""),
        (b"model", (b"adapter", b"second"), ""), (b"model", (b"second", b"adapter"), ""),
        (b"model", (b"adaptersecond",), ""), (b"model", (), "tenant"), (b"modeltenant", (), ""),
    ]  # fmt: skip
    keys = [prefix_key(model, adapters, salt) for model, adapters, salt in parts]
    assert len(set(keys)) == len(parts)
    assert keys[0] == prefix_key(b"model")
    cache = cache_of()
    put(cache, range(8), keys[0])
    assert [known(cache, range(8), key) for key in keys] == [8] + [0] * (len(keys) - 1)


def test_the_least_recently_used_goes_first() -> None:
    cache = cache_of(cached_pages=4)
    put(cache, [1, 1, 1, 1, 2, 2, 2, 2])
    put(cache, [5, 5, 5, 5])
    put(cache, [6, 6, 6, 6])
    assert known(cache, [1, 1, 1, 1, 2, 2, 2, 2]) == 8
    put(cache, [7, 7, 7, 7])
    assert known(cache, [5, 5, 5, 5]) == 0
    assert known(cache, [6, 6, 6, 6]) == 4
    assert known(cache, [1, 1, 1, 1, 2, 2, 2, 2]) == 8
    assert cache.memory_bytes == 4 * 64
    assert cache.evicted_pages == 1


def test_a_pool_that_runs_out_gets_pages_back_but_none_in_use() -> None:
    cache = cache_of(max_pages=4)
    put(cache, range(8))
    put(cache, range(50, 58))
    (group,) = cache.pool.groups
    (held,) = cache.match(KEY, range(8)).pages
    taken = group.allocate(2)
    assert known(cache, range(50, 58), held=[*held, *taken]) == 0
    assert known(cache, range(8), held=[*held, *taken]) == 8
    assert not cache.pool.limit.can_allocate(64)
    group.release(held)
    taken += group.allocate(2)
    check(cache, taken)


def test_pinned_prefixes_stay_until_they_are_released() -> None:
    cache = cache_of(max_pages=4, cached_pages=2)
    put(cache, range(6))
    pinned = cache.pin(KEY, range(6))
    assert pinned is not None
    assert pinned.n_tokens == 6
    assert cache.pin(KEY, range(7)) is None
    assert cache.pin(b"other", range(6)) is None
    put(cache, range(50, 54))  # finds no room
    cache.clear()
    assert known(cache, range(6)) == 6
    assert not cache.pool.limit.can_allocate(3 * 64)
    pinned.release()
    pinned.release()
    cache.clear()
    assert cache.n_pages == 0
    assert not cache._roots


def test_a_cache_of_nothing_keeps_nothing() -> None:
    cache = cache_of(cached_pages=0)
    put(cache, range(10))
    assert known(cache, range(10)) == 0


def test_going_on_from_a_node_equals_beginning_anew() -> None:
    cache = cache_of(cached_pages=6)
    tokens = list(range(16))
    pages = cache.pool.groups[0].allocate(4)
    node = cache.insert(KEY, tokens[:8], [pages[:2]])
    assert node is not None
    node = cache.insert(KEY, tokens[:12], [pages[:3]], node)
    assert node is not None
    assert node.end == 12
    for other in range(5):  # evicts what is not in use: everything, for nobody looks it up
        put(cache, [100 * other + 50] * 8, held=pages)
    assert known(cache, tokens, held=pages) == 0
    cache.insert(KEY, tokens, [pages], node)
    assert known(cache, tokens, held=pages) == 16


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(
        st.tuples(st.sampled_from("pmc"), st.lists(st.integers(0, 2), min_size=1, max_size=14)), max_size=40
    ),
)
def test_random_histories_against_a_list_of_all_that_was_put(
    cached_pages: int, history: list[tuple[str, list[int]]]
) -> None:
    """What is found was put, whole pages of it are the longest there are as long as nothing was evicted."""
    cache, all_put = cache_of(cached_pages=cached_pages), set[tuple[int, ...]]()
    for verb, tokens in history:
        if verb == "p":
            put(cache, tokens)
            all_put.add(tuple(tokens))
        elif verb == "c":
            cache.clear()
            assert cache.n_pages == 0
            all_put.clear()
        n = known(cache, tokens)
        longest = max((common_length(tuple(tokens), other) for other in all_put), default=0)
        assert n <= longest
        if not cache.evicted_pages and cache.n_pages < cached_pages:
            assert n == longest
        assert cache.n_pages <= cached_pages


# --- with an engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("n_prompt", [1, 15, 16, 17, 33, 64, 65])
def test_the_same_prompt_again_runs_one_token_and_gets_the_same_bits(page_size: int, n_prompt: int) -> None:
    serving = Serving(page_size=page_size)
    prompt = tokens_of(n_prompt, 40)
    for again in (False, True):
        request = serving.submit(prompt, max_tokens=6)
        serving.step()
        if again:
            assert serving.prefix.hit_tokens == n_prompt - 1
        serving.run(request)
        check_as_alone(serving, request)
    serving.check_empty()


def test_who_has_run_the_same_goes_on_with_the_pages_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving(chunk=512)
    serving.run(*(serving.submit(tokens_of(70, 40, seed=i), max_tokens=2) for i in range(2, 6)))
    serving.prefix.clear()
    monkeypatch.setattr(serving.scheduler.queues.prefixes, "is_coming", lambda *_: False)
    references = [serving.submit(tokens_of(40, 40), max_tokens=6) for _ in range(2)]
    serving.step()
    assert references[0].sequence.pages[0][:2] == references[1].sequence.pages[0][:2]
    other = serving.submit(tokens_of(60, 40, seed=1), max_tokens=6)  # gets the pages that were given up
    serving.run(*references, other)
    check_as_alone(serving, *references, other)
    serving.check_empty()


def test_a_prompt_that_fits_only_without_the_copy_of_a_cached_page_still_runs() -> None:
    serving = Serving(max_pages=2)
    prompt = tokens_of(30, 40)
    for _ in range(2):
        request = serving.submit(prompt, max_tokens=1)
        serving.run(request)
        assert request.sequence.state is SeqState.FINISHED
        assert request.error is None
        check_as_alone(serving, request)
    serving.check_empty()


def test_a_request_that_waits_again_forgets_its_place_in_the_tree() -> None:
    """What it had put there may be gone when it runs again."""
    request = Serving("llama").submit([5], max_tokens=1)
    request.parts[NODE] = object()
    CachedPrefixes(None).wait(request)
    assert NODE not in request.parts
