"""Groups of pages: windows give pages back, and no bit depends on it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from oxillama._kernels import best
from oxillama.base.formats import KV_TYPES
from oxillama.engine.cache.kv import NO_PAGE, BlockTable, PagedKvCache
from oxillama.engine.cache.kv_pool import KvCachePool, KvLayout, cache_pool
from oxillama.engine.cache.pages import CachePool, MemoryLimit, PagePool
from oxillama.engine.cache.prefix import PrefixKvCache
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError
from oxillama.models.page_groups import PageGroup, Reach
from tests.engine.cache.test_prefix import KEY, Shape
from tests.support.serving import Serving, check_as_alone, decoder, n_vocab_of
from tests.support.spread import few, pairs
from tests.support.tiny_models import tokens_of

WINDOWED = ["gemma3", "gpt-oss", "cohere2", "llama-windows", "lfm2-windows"]


# --- what is seen -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reach", "positions", "first"),
    [
        (Reach(), (0, 5, 100), (0, 0, 0)),
        (Reach(window=1), (0, 5), (0, 5)),
        (Reach(window=6), (0, 5, 6, 100), (0, 0, 1, 95)),
        (Reach(chunk=8), (0, 7, 8, 23), (0, 0, 8, 16)),
        (Reach(window=4, chunk=8), (7, 8, 10, 14), (4, 8, 8, 11)),
    ],
)
def test_rows_see_as_far_back_as_the_mask_lets_them(
    reach: Reach, positions: tuple[int, ...], first: tuple[int, ...]
) -> None:
    assert tuple(map(reach.first_seen, positions)) == first
    assert reach.is_limited == any(reach)
    if reach.is_limited:
        assert all(position + 1 - reach.first_seen(position) <= reach.most for position in range(50))


def test_layers_of_one_kind_share_pages() -> None:
    groups = decoder("gemma3").page_groups
    assert [group.reach for group in groups] == [Reach(), Reach(window=6)]
    assert sorted(layer for group in groups for layer in group.layers) == list(range(6))
    arrays = decoder("llama-arrays").page_groups  # other numbers of heads in each layer
    assert [group.n_heads for group in arrays] == [2, 4, 1]
    assert decoder("llama").page_groups == (PageGroup((0, 1), 2, 16, 16),)


# --- a block table ------------------------------------------------------------------------------------


def table_of(reach: Reach, n_tokens: int) -> BlockTable:
    """A table with pages of four positions."""
    table = BlockTable(PagePool(Shape(), 4, reach=reach))
    table.take(0, table.pool.allocate(table.missing(0, n_tokens)))
    return table


def test_a_table_frees_pages_out_of_window() -> None:
    table = table_of(Reach(window=6), 22)
    pages = list(table.pages)
    assert not table.free_out_of_window(8)  # position 8 sees 3, in the first page
    assert table.free_out_of_window(14)  # sees 9: pages 0 and 1 are passed
    assert table.pages == [NO_PAGE, NO_PAGE, *pages[2:]]
    assert (table.first, table.held, table.held_bytes) == (2, pages[2:], 4 * 64)
    table.pool.check_integrity([table.held])
    assert table.free_out_of_window(22, keep=1)  # sees 17, in page 4; page 3 is kept
    assert table.first == 3
    assert [table.can_continue(n) for n in (22, 17, 16, 10)] == [True, True, False, False]
    assert table.missing(22, 25) == 1
    assert table.missing(22, 24) == 0


def test_a_table_forks_and_is_cut() -> None:
    table = table_of(Reach(window=6), 22)
    table.free_out_of_window(18)
    assert table.first == 3
    other = table.fork(20)
    assert other.pages == table.pages[:5]
    assert other.first == 3
    table.pool.check_integrity([table.held, other.held])
    assert table.truncate(18)
    assert table.truncate(0)
    table.pool.check_integrity([table.held, other.held])
    assert (table.pages, table.first) == ([], 0)
    other.truncate(4)
    assert (other.pages, other.first) == ([NO_PAGE], 1)
    other.pool.check_integrity([[]])


def test_a_group_with_a_window_needs_no_more_than_it_sees() -> None:
    free, windowed = table_of(Reach(), 8), table_of(Reach(window=6), 8)
    assert free.demand(8, 100, 5) == 23
    most = -(-(6 + 5) // 4) + 1
    assert windowed.demand(8, 100, 5) == most - 2
    assert windowed.demand(8, 9, 5) == 1
    assert windowed.demand(8, 100, 92) == 23


# --- sequences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "page_size"), few(product(WINDOWED, [1, 4, 16]), [(name, 4) for name in WINDOWED])
)
def test_a_text_takes_what_its_windows_see(name: str, page_size: int) -> None:
    """Its bits are those of a sequence that frees no pages, while others overwrite the freed pages."""
    serving = Serving(name, page_size=page_size, chunk=8, cached_pages=0, cached_states=0)
    requests = [serving.submit(tokens_of(90, n_vocab_of(name), seed=i), max_tokens=20) for i in range(3)]
    most = [0] * len(serving.pool.groups)
    while any(request.finish_reason is None for request in requests):
        assert serving.step()
        for request in requests:
            for i, table in enumerate(request.sequence.kv.tables):
                most[i] = max(most[i], len(table.held))
    for group, n_pages in zip(serving.pool.groups, most):
        if group.reach.is_limited:
            assert 1 < n_pages <= group.pages_for(group.reach.window + 8) + 1
        else:
            assert n_pages >= group.pages_for(90)
    check_as_alone(serving, *requests)
    serving.check_empty()


@pytest.mark.parametrize("name", WINDOWED)
def test_a_sequence_is_rewound_as_far_as_its_pages_reach(name: str) -> None:
    """A session keeps pages that its windows have passed; a request begins anew."""
    model, tokens = decoder(name), tokens_of(60, n_vocab_of(name))
    runner = Serving(name).runner
    whole = runner.forward([(Sequence(runner.pool, tokens), 60)], all_logits=True)
    for checkpoints in (6, 0):
        pool = cache_pool(model, "f16", 4)
        sequence = Sequence(pool, tokens, checkpoints=checkpoints)
        runner = type(runner)(model, pool, 1)
        for n in (32, 8, 8, 12):
            runner.forward([(sequence, n)])
        assert sequence.kv.memory_bytes == sum(table.held_bytes for table in sequence.kv.tables) + sum(
            pool.recurrent_states.slot_bytes for _ in sequence.kv.slots if pool.recurrent_states
        )
        sequence.truncate(40)
        assert sequence.cached_len == (40 if checkpoints else 0)
        sequence.tokens += tokens[40:]
        rows = runner.forward([(sequence, sequence.pending)], all_logits=True)
        np.testing.assert_array_equal(rows[-20:], whole[-20:])
        sequence.release()
        pool.check_integrity([])


def test_what_is_kept_for_rewinding_gives_way() -> None:
    pool = cache_pool(decoder("gemma3"), "f16", 4)
    sequence = Sequence(pool, tokens_of(60, n_vocab_of("gemma3")))
    serving = Serving("gemma3")
    runner = type(serving.runner)(decoder("gemma3"), pool, 1)
    runner.forward([(sequence, 60)])
    assert sequence.kv.tables[1].first == 0
    assert sequence.reclaim()
    assert sequence.kv.tables[1].first == (60 + 1 - 6) // 4
    assert not sequence.reclaim()
    assert sequence.cached_len == 60


def test_drafts_free_no_pages_that_certain_tokens_see() -> None:
    sequence = Sequence(cache_pool(decoder("gemma3"), "f16", 1), tokens_of(20, 40), checkpoints=0)
    sequence.schedule(20)
    sequence.commit()
    sequence.draft([1] * 8)
    sequence.schedule(8)
    sequence.commit()
    sequence.free_out_of_window()
    (table,) = [table for table in sequence.kv.tables if table.pool.reach.is_limited]
    assert table.first == table.pool.reach.first_seen(20) > 0
    sequence.keep_drafts()
    sequence.free_out_of_window()
    assert table.first == table.pool.reach.first_seen(28)


def test_a_fork_of_freed_pages_begins_anew() -> None:
    serving = Serving("gemma3", page_size=4)
    sequence = Sequence(serving.pool, tokens_of(60, n_vocab_of("gemma3")), checkpoints=0)
    serving.runner.forward([(sequence, 60)])
    for n, kept in ((60, 60), (59, 59), (40, 0)):
        other = Sequence(serving.pool, sequence.tokens[:n], checkpoints=0)
        other.take_fork(sequence, n)
        assert other.cached_len == kept
        other.release()
    with pytest.raises(ConfigError, match="n_tokens: expected 52 to 60, got 20"):
        list(sequence.kv.keys(0, 20))
    assert len(list(sequence.kv.keys(0, 60))) == 8
    assert len(list(sequence.kv.keys(5, 60))) == 60
    sequence.release()
    serving.pool.check_integrity([])


@pytest.mark.parametrize(
    ("n_layers", "period", "n_heads", "dim", "window"),
    [(26, 6, 1, 256, 512), (34, 6, 4, 256, 1024), (24, 2, 8, 64, 128)],
    ids=["Gemma 3 1B", "Gemma 3 4B", "gpt-oss 20B"],
)
def test_a_long_text_takes_little_more_than_its_windows_need(
    n_layers: int, period: int, n_heads: int, dim: int, window: int
) -> None:
    """16,384 tokens in shapes of real models: a page of each group is all that is rounded up."""
    whole = tuple(i for i in range(n_layers) if i % period == period - 1)
    others = tuple(i for i in range(n_layers) if i not in whole)
    limit, pools, needed, n = MemoryLimit(), [], 0, 16384
    for layers, reach in ((whole, Reach()), (others, Reach(window))):
        layout = KvLayout(len(layers), n_heads, dim, dim, "f16")
        shape = best().attention.KvShape(len(layers), n_heads, dim, dim, KV_TYPES["f16"], KV_TYPES["f16"], 16)
        pools.append(KvCachePool(shape, layout, 16, limit, layers=layers, reach=reach))
        needed += layout.page_bytes(16) // 16 * min(n, reach.window or n)
    kv = PagedKvCache(CachePool(pools))
    for start in range(0, n, 512):
        kv.reserve(start, start + 512)
        kv.free_out_of_window(start + 512)
    assert needed <= kv.memory_bytes <= 1.05 * needed
    assert kv.capacity == n


# --- the prefix cache ---------------------------------------------------------------------------------


class Cache(PrefixKvCache):
    """Pages of four tokens in a group that sees everything and one with a window of six."""

    def __init__(self, room: int = 100, cached: int = 100) -> None:
        limit = MemoryLimit(64 * room)
        groups = [PagePool(Shape(), 4, limit, reach, alone=False) for reach in (Reach(), Reach(window=6))]
        super().__init__(CachePool(groups), 64 * cached)

    def put(self, tokens: range | list[int], freed: int = 0) -> None:
        """As a sequence would that has run these tokens and ends, whose window has passed some pages."""
        n = self.pool.pages_for(len(tokens))
        pages = self.pool.allocate([n, n - freed])
        self.insert(KEY, tokens, [pages[0], [NO_PAGE] * freed + pages[1]])
        for group, numbers in zip(self.pool.groups, pages):
            group.release(numbers)
        self.check()

    def known(self, tokens: range | list[int]) -> int:
        found = self.match(KEY, tokens)
        n = found.n_tokens
        first = Reach(window=6).first_seen(n) // 4
        assert [len(pages) for pages in found.pages] == [self.pool.pages_for(n)] * 2
        assert NO_PAGE not in found.pages[0]
        assert [page == NO_PAGE for page in found.pages[1]] == [i < first for i in range(len(found.pages[1]))]
        for group, pages in zip(self.pool.groups, found.pages):
            group.release(page for page in pages if page != NO_PAGE)
        self.check()
        return n

    def check(self) -> None:
        self.check_integrity()
        self.pool.check_integrity([self.pages()])
        assert self.memory_bytes == 64 * self.n_pages


def test_a_prompt_starts_where_all_that_it_sees_is_there() -> None:
    cache = Cache()
    cache.put(range(40), freed=6)  # pages 6 to 9 of the window: tokens 24 to 39
    assert cache.n_pages == 10 + 4
    # after n tokens a row sees n - 5: from 29 on, page 6 and later ones suffice
    assert [cache.known(range(n)) for n in (40, 36, 33, 32, 30, 29)] == [40, 36, 33, 32, 30, 29]
    assert [cache.known(range(n)) for n in (28, 20, 4)] == [0, 0, 0]
    cache.put(range(20))  # another sequence has run what is missing
    assert [cache.known(range(n)) for n in (28, 20, 4, 40)] == [20, 20, 4, 40]


def test_pages_of_windows_that_nobody_uses_go_first() -> None:
    cache = Cache(cached=10 + 10)
    cache.put(range(40))
    assert cache.known(range(40)) == 40  # the last three pages of the window are in use
    cache.put([70, 71, 72, 73, 74])  # four pages more than there is room for
    assert cache.n_pages == 20
    assert cache.known(range(40)) == 40
    assert cache.known([70, 71, 72, 73, 74]) == 5
    assert cache.known(range(28)) == 16  # the last pages of the same age were evicted
    cache.clear()
    assert cache.n_pages == 0
    assert cache.memory_bytes == 0


def test_a_pinned_prefix_keeps_the_pages_of_its_windows() -> None:
    cache = Cache(room=30, cached=14)
    cache.put(range(16))
    assert cache.pin(KEY, range(17)) is None
    pinned = cache.pin(KEY, range(16))
    assert pinned is not None
    for start in (100, 200, 300):
        cache.put(list(range(start, start + 12)))
        assert cache.known(range(16)) == 16
        assert cache.known(range(15)) == 15
    cache.clear()
    assert cache.known(range(16)) == 16
    pinned.release()
    cache.clear()
    assert cache.n_pages == 0
    cache.put(range(40), freed=6)
    assert cache.pin(KEY, range(24)) is None  # all its tokens are known, but no text can go on from there


def test_pages_in_use_are_not_evicted() -> None:
    cache = Cache(room=8)
    cache.put(range(16))
    held = cache.match(KEY, range(16))
    assert not cache.pool.limit.can_allocate(64 * 3)  # two pages of the window are not in use
    assert cache.pool.limit.can_allocate(64 * 2)
    assert cache.n_pages == 6
    for group, pages in zip(cache.pool.groups, held.pages):
        group.release(page for page in pages if page != NO_PAGE)
    assert cache.pool.limit.can_allocate(64 * 8)
    cache.check()


@pytest.mark.parametrize(("name", "cached_pages"), pairs(WINDOWED, [12, 40, 1000]))
def test_common_beginnings_give_the_same_texts(name: str, cached_pages: int) -> None:
    serving, n_vocab = Serving(name, page_size=4, chunk=20, cached_pages=cached_pages), n_vocab_of(name)
    common = tokens_of(64, n_vocab)
    for i in range(6):
        request = serving.submit(common[: 64 - 9 * (i % 3)] + tokens_of(9, n_vocab, seed=i % 4), max_tokens=6)
        serving.run(request)
        check_as_alone(serving, request)
        serving.prefix.check_integrity()
    assert serving.prefix.hits or cached_pages == 12
    serving.check_empty()
