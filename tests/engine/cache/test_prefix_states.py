"""The prefix cache of recurrent models: where states are kept and found, what they cost, when they go."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

import numpy as np
import pytest

from oxillama import AsyncEngine, SamplerConfig
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.cache.pages import CachePool, MemoryLimit, PagePool
from oxillama.engine.cache.prefix import PrefixKvCache
from oxillama.engine.cache.radix import walk
from oxillama.engine.cache.recurrent_states import RecurrentStatePool
from oxillama.engine.sequence import SeqState, Sequence as Running
from oxillama.errors import ConfigError, KvCacheFullError
from tests.engine.cache.test_prefix import KEY, Shape, pool_of
from tests.support.paths import SHARED
from tests.support.serving import Serving, check_as_alone, n_vocab_of
from tests.support.spread import pairs
from tests.support.tiny_models import tokens_of
from tests.support.waiting import in_asyncio
from tests.support.zoo import RECURRENT

GREEDY = SamplerConfig.greedy()
MAMBA = SHARED / "parity" / "mamba.gguf"


class Cache(PrefixKvCache):
    """Pages of four tokens, states as large as two pages, or as said."""

    def __init__(self, room: int = 100, cached: int = 100, spacing: int = 8, state: int = 2) -> None:
        limit = MemoryLimit(64 * room)
        self.group = PagePool(Shape(), 4, limit, alone=False)
        self.slots_of = RecurrentStatePool(limit, 16 * state)
        super().__init__(CachePool([self.group], self.slots_of), 64 * cached, spacing)

    def put(self, tokens: Sequence[int]) -> None:
        """As a sequence would that has run these tokens and ends."""
        pages, slot = self.group.allocate(self.pool.pages_for(len(tokens))), self.slots_of.allocate()
        self.slots_of.slot(slot)[:] = sum(tokens)
        self.insert(KEY, tokens, [pages], slot=slot)
        self.group.release(pages)
        self.slots_of.release(slot)
        self.check()

    def known(self, tokens: Sequence[int]) -> int:
        found = self.match(KEY, tokens)
        n = found.n_tokens
        assert (found.slot is None) == (n == 0)
        assert len(found.pages[0]) == self.pool.pages_for(n)
        if found.slot is not None:
            assert self.slots_of.slot(found.slot)[0] == sum(tokens[:n])
            self.slots_of.release(found.slot)
        self.group.release(found.pages[0])
        self.check()
        return n

    def check(self) -> None:
        self.check_integrity()
        self.pool.check_integrity([self.pages()])
        self.slots_of.check_integrity([self.slots()])
        slot_bytes = self.slots_of.slot_bytes
        assert self.memory_bytes == 64 * self.n_pages + slot_bytes * self.n_states <= self.max_bytes

    def cache_points(self, tokens: Sequence[int]) -> list[int]:
        found = self.match(KEY, tokens)
        assert found.slot is None
        assert found.pages == [[]]
        return list(found.cache_points or ())


def test_only_what_has_a_state_is_known() -> None:
    cache = Cache()
    cache.put(range(10))  # pages of 4, 4 and 2; a state after 10
    assert cache.known(range(20)) == 10
    assert cache.known(range(10)) == 10
    assert cache.known(range(9)) == 0
    cache.put(range(8))
    cache.put(range(5))
    assert [cache.known(range(n)) for n in (4, 5, 7, 8, 9, 10, 11)] == [0, 5, 5, 8, 8, 10, 10]
    assert cache.known([0, 1, 2, 3, 4, 77]) == 5


def test_a_page_that_fills_up_keeps_its_states() -> None:
    cache = Cache()
    for n in (9, 10, 12, 13):
        cache.put(range(n))
    assert cache.n_pages == 4
    assert [cache.known(range(n)) for n in (8, 9, 11, 12, 99)] == [0, 9, 10, 12, 13]
    assert cache.known([*range(10), 77, 78]) == 10


def test_states_go_before_the_pages_of_what_is_used_and_with_their_own_page() -> None:
    cache = Cache(cached=2 + 3 * 2)
    cache.put(range(4))
    cache.put(range(8))
    assert cache.known(range(8)) == 8  # the state after 4 is the least recently used now
    cache.put([50, 51])  # a page and a state more: 3 + 3 * 2 is one too many
    assert (cache.n_pages, cache.n_states) == (3, 2)
    assert cache.known(range(7)) == 0
    assert cache.known(range(8)) == 8
    cache.put([60, 61])
    assert cache.known([50, 51]) == 0
    assert cache.known(range(8)) == 8
    assert cache.known([60, 61]) == 2
    cache.clear()
    assert cache.n_pages == cache.n_states == cache.slots_of.n_used == 0


def test_a_state_larger_than_the_cache_takes_nobodys_place() -> None:
    cache = Cache(cached=1)
    cache.put([1, 2, 3])
    assert (cache.n_pages, cache.n_states) == (1, 0)
    assert cache.cache_points(range(100)) == []
    assert PrefixKvCache(cache.pool, 0).match(KEY, range(100)).cache_points == []
    cache = Cache(cached=3, state=4)
    for tokens in ([1, 2, 3], [4, 5, 6]):
        cache.put(tokens)
    assert (cache.n_pages, cache.n_states) == (2, 0)


def test_a_state_that_is_left_again_counts_as_used() -> None:
    cache = Cache(cached=3 * 2)
    for tokens in ([1, 2], [4, 5], [1, 2]):
        cache.put(tokens)
    cache.put([7, 8])
    assert [cache.known(tokens) for tokens in ([1, 2], [4, 5], [7, 8])] == [2, 0, 2]


def test_a_page_that_is_needed_costs_one_state_at_most() -> None:
    cache = Cache(room=1000, cached=1000)
    for n in (4, 8, 12):
        cache.put(range(n))
    cache.put(range(1000, 1400))
    assert cache.reclaim(64) == 2 * 64
    assert cache.n_states == 3


def test_states_and_pages_come_out_of_one_limit() -> None:
    cache = Cache(room=8)
    cache.put(range(8))  # 2 pages, a state: 4 are left
    held = cache.match(KEY, range(8))
    assert held.slot is not None
    taken = cache.slots_of.allocate(), cache.slots_of.allocate()
    with pytest.raises(KvCacheFullError, match="expected 128 free bytes for a recurrent state, got 0"):
        cache.slots_of.allocate()
    with pytest.raises(KvCacheFullError, match="expected 1 free pages of 4 tokens, got 0"):
        cache.group.allocate(1)
    assert cache.pool.memory_bytes == 8 * 64
    cache.slots_of.release(held.slot)
    pages = cache.group.allocate(2)  # the cache's state goes, its pages are in use
    assert (cache.n_pages, cache.n_states) == (2, 0)
    assert cache.pool.memory_bytes == 8 * 64  # the memory of the state has become pages
    cache.group.release([*pages, *held.pages[0]])
    cache.slots_of.allocate()
    assert cache.pool.memory_bytes <= 8 * 64
    cache.pool.check_integrity([cache.pages()])
    assert len(taken) == 2


def test_pinned_states_stay_and_the_one_before_the_last_token_too() -> None:
    cache = Cache(room=12, cached=8)
    cache.put(range(8))
    cache.put(range(10))
    assert cache.pin(KEY, range(9)) is None  # known, but without a state
    pinned = cache.pin(KEY, range(10))
    assert pinned is not None
    assert pinned.n_tokens == 10
    cache.clear()
    cache.reclaim(100 * 64)
    cache.put([70, 71, 72])  # finds room for its page only
    assert [cache.known(range(n)) for n in (9, 10)] == [8, 10]
    pinned.release()
    pinned.release()
    cache.clear()
    assert cache.n_pages == cache.n_states == 0


def test_a_pinned_prefix_keeps_the_state_right_before_its_last_token() -> None:
    cache = Cache(room=12, cached=8)
    cache.put(range(8))
    cache.put(range(9))
    pinned = cache.pin(KEY, range(9))
    assert pinned is not None
    cache.clear()
    assert [cache.known(range(n)) for n in (8, 9)] == [8, 9]
    pinned.release()


def test_marks_are_a_grid_and_the_last_whole_page() -> None:
    cache = Cache()
    assert cache.cache_points(range(7)) == [4]
    assert cache.cache_points(range(3)) == []
    assert cache.cache_points(range(26)) == [8, 16, 24]
    assert cache.cache_points(range(31)) == [8, 16, 24, 28]
    assert Cache(spacing=16).cache_points(range(34)) == [16, 32]
    assert Cache(spacing=32).cache_points(range(39)) == [32]  # 36 would be too near
    assert Cache(cached=8).cache_points(range(101)) == [64, 100]  # of the four that there is room for


def test_a_path_that_is_left_without_a_state_is_marked() -> None:
    cache = Cache(spacing=64)
    cache.put(range(60))
    found = cache.match(KEY, [*range(30), 99, 98, 97])
    assert found.n_tokens == 0
    assert found.cache_points == [28]


@pytest.mark.parametrize("states", [False, True])
def test_a_page_that_others_may_fill_differently_is_not_gone_on_from(states: bool) -> None:
    """A sequence that gave way in the middle of a page goes on in another than its own first."""
    cache = Cache() if states else PrefixKvCache(pool_of(100), 64 * 100)

    def run(tokens: Sequence[int]) -> list[list[int]]:
        return cache.pool.allocate([cache.pool.pages_for(len(tokens))])

    mine, other = [0, 1, 9, 9, 9, 9, 9, 9], list(range(8))
    for first, second in ((other, mine), (mine[:2], other)):
        node = cache.insert(KEY, mine[:2], run(mine[:2]))
        cache.insert(KEY, first, run(first))
        cache.insert(KEY, second, run(second))
        node = cache.insert(KEY, mine[:2], run(mine[:2]), node)
        cache.insert(KEY, mine, run(mine), node)
        for tokens in (mine, other):
            path, n = walk(cache._roots.get(KEY), tokens, 4)
            assert n == 8
            assert [node.tokens for node in path] == [tuple(tokens[:4]), tuple(tokens[4:])]
        cache.clear()


def test_what_two_have_run_is_held_once() -> None:
    cache = Cache()
    first, second = cache.group.allocate(3), cache.group.allocate(3)
    cache.insert(KEY, range(10), [first])
    cache.insert(KEY, range(10), [second])
    assert second[:2] == first[:2]
    assert second[2] != first[2]  # it may still be written
    cache.pool.check_integrity([cache.pages(), [first], [second]])


# --- with an engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "page_size"), pairs(RECURRENT, [8, 32]))
def test_a_common_beginning_is_run_once(name: str, page_size: int) -> None:
    serving = Serving(name, page_size=page_size, chunk=40, spacing=32)
    n_vocab = n_vocab_of(name)
    common = tokens_of(64, n_vocab)
    for i in range(3):
        request = serving.submit(common + tokens_of(5, n_vocab, seed=i + 1), max_tokens=5)
        serving.run(request)
        check_as_alone(serving, request)
        assert request.n_cached == (64 if i else 0)
    assert (serving.prefix.hits, serving.prefix.hit_tokens) == (2, 128)
    serving.check_empty()


@pytest.mark.parametrize("name", ["llama", "mamba2", "jamba", "lfm2", "rwkv7"])
def test_the_next_turn_of_a_chat_runs_what_is_new_only(name: str) -> None:
    serving, n_vocab = Serving(name, spacing=64), n_vocab_of(name)
    history, n_run = tokens_of(50, n_vocab), 0
    for turn in range(4):
        request = serving.submit(history, max_tokens=7)
        serving.run(request)
        check_as_alone(serving, request)
        assert request.n_cached == n_run
        n_run = len(history) + len(request.tokens) - 1  # the last token was never run
        history = history + request.tokens + tokens_of(9, n_vocab, seed=turn)
    serving.check_empty()


def test_the_third_prompt_finds_where_the_second_turned_off() -> None:
    serving, n_vocab = Serving("jamba", page_size=8, spacing=256), n_vocab_of("jamba")
    common = tokens_of(85, n_vocab)
    for known in (0, 0, 80):
        request = serving.submit(common + tokens_of(60, n_vocab, seed=known + serving.prefix.n_pages))
        serving.run(request)
        check_as_alone(serving, request)
        assert request.n_cached == known
    serving.check_empty()


@pytest.mark.parametrize(("name", "chunk"), [("llama", 512), ("mamba", 20), ("mamba", 512)])
def test_requests_that_come_together_run_their_common_prefix_once(name: str, chunk: int) -> None:
    serving, n_vocab = Serving(name, chunk=chunk), n_vocab_of(name)
    common = tokens_of(64, n_vocab)
    requests = [serving.submit(common + tokens_of(5, n_vocab, seed=i + 1), max_tokens=3) for i in range(6)]
    serving.run(*requests)
    assert serving.prefix.hit_tokens == 5 * 64
    check_as_alone(serving, *requests)
    serving.check_empty()


@pytest.mark.parametrize("cached_states", [0, 1, 3])
def test_states_are_within_the_limit_and_nobody_comes_in_to_go_again(cached_states: int) -> None:
    serving = Serving("rwkv7", max_pages=40, states=5, cached_states=cached_states)
    limit, n_vocab = serving.pool.limit.max_bytes, n_vocab_of("rwkv7")
    requests = [serving.submit(tokens_of(30, n_vocab, seed=i), max_tokens=12) for i in range(5)]
    most = 0
    while any(request.finish_reason is None for request in requests):
        assert serving.step()
        assert serving.pool.memory_bytes <= limit
        most = max(most, len(serving.scheduler.running))
    assert most == 4  # a prompt has two states where others can take one over, a stream has one
    assert serving.scheduler.queues.preemptions == 0
    check_as_alone(serving, *requests)
    assert {request.finish_reason for request in requests} <= {"length", "stop"}
    serving.check_empty()


def test_a_higher_priority_takes_the_state_of_a_lower() -> None:
    serving, n_vocab = Serving("mamba2", max_pages=8, states=3), n_vocab_of("mamba2")
    low = serving.submit(tokens_of(20, n_vocab), max_tokens=20)
    serving.step()
    high = serving.submit(tokens_of(20, n_vocab, seed=1), max_tokens=3, priority=1)
    serving.step()
    serving.step()
    assert low.sequence.state is SeqState.PREEMPTED
    assert not low.sequence.kv.slots
    serving.run(high, low)
    check_as_alone(serving, low, high)
    serving.check_empty()


def test_a_request_without_room_for_its_states_is_told_so() -> None:
    serving, n_vocab = Serving("mamba", max_pages=4, states=2), n_vocab_of("mamba")
    own = Running(serving.pool, tokens_of(9, n_vocab))
    serving.runner.forward([(own, 5)])
    serving.runner.forward([(own, 4)])
    request = serving.submit(tokens_of(40, n_vocab), max_tokens=3)
    while request.finish_reason is None:
        serving.loop.step()
    assert isinstance(request.error, KvCacheFullError)
    assert "3 pages of 16 tokens and 2 states of 5120 bytes needed" in str(request.error)
    serving.scheduler.check_integrity([own])
    own.release()
    again = serving.submit(tokens_of(40, n_vocab), max_tokens=3)
    serving.run(again)
    check_as_alone(serving, again)
    with pytest.raises(ConfigError, match=r"kv_memory_limit: expected at least \d+ bytes, for two"):
        Serving("mamba", max_pages=0, states=2)
    serving.check_empty()


def test_earlier_states_of_a_sequence_make_room_for_its_next() -> None:
    serving, n_vocab = Serving("mamba", max_pages=4, states=4, cached_states=0), n_vocab_of("mamba")
    own = Running(serving.pool, tokens_of(30, n_vocab))
    while own.pending:
        serving.runner.forward([(own, 1)])
        assert len(own.kv.slots) <= 4
    own.release()
    serving.check_empty()


def run_in_steps(serving: Serving, n: int, step: int) -> Running:
    """A sequence of ``n`` tokens that is run ``step`` tokens at a time."""
    own = Running(serving.pool, tokens_of(n, n_vocab_of(serving.name)))
    while own.pending:
        serving.runner.forward([(own, step)])
    return own


@pytest.mark.parametrize(("n", "kept"), [(40, 40), (39, 30), (30, 30), (29, 20), (10, 10), (9, 0)])
def test_forks_and_cuts_go_back_to_the_checkpoint_within(n: int, kept: int) -> None:
    serving = Serving("mamba")
    own = run_in_steps(serving, 40, 10)
    fork, length = own.kv.fork(n)
    assert length == kept
    fork.release()
    own.truncate(n)
    assert (own.cached_len, own.total_len) == (kept, n)
    own.release()
    serving.check_empty()


def test_a_pass_that_finds_no_pages_gives_its_slot_back() -> None:
    serving, n_vocab = Serving("mamba", page_size=1, max_pages=1, states=2), n_vocab_of("mamba")
    own = Running(serving.pool, tokens_of(100, n_vocab))
    with pytest.raises(KvCacheFullError, match="expected 100 free pages of 1 tokens"):
        serving.runner.forward([(own, 100)])
    assert own.kv.slots == []
    serving.check_empty()


def test_a_state_that_was_not_committed_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    serving, n_vocab = Serving("mamba", chunk=16, spacing=256), n_vocab_of("mamba")
    prompt = tokens_of(50, n_vocab)
    request = serving.submit(prompt)
    serving.step()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(serving.scheduler, "commit", Mock(side_effect=KeyboardInterrupt))
        serving.loop.step()
    assert request.sequence.cached_len == 16
    serving.cancel(request)
    again = serving.submit(prompt)
    serving.run(again)
    check_as_alone(serving, again)
    serving.check_empty()


@pytest.fixture
def mamba() -> InferenceEngine:
    if not MAMBA.exists():
        pytest.skip("the shared models are not at hand")
    engine = InferenceEngine()
    engine.load_model(MAMBA)
    return engine


def ids(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 250, n)]


def test_a_primed_prefix_is_kept(mamba: InferenceEngine) -> None:
    system = ids(70)
    pinned = mamba.prime_with_prefix(system)
    mamba.model.prefix_cache.clear()
    assert mamba.model.prefix_cache.n_states == 2
    for prompt, known in ((system + ids(5, 1), 70), (system[:69] + ids(5, 2), 64)):
        expected = fresh(mamba, prompt)
        done = mamba.stream(prompt, sampler=GREEDY, max_tokens=5).result()
        assert (done.text, done.usage.cached_tokens) == (expected, known)
    pinned.release()
    mamba.model.prefix_cache.clear()
    mamba.check_integrity()
    assert mamba.model.prefix_cache.memory_bytes == 0
    small = InferenceEngine.from_gguf(MAMBA, prefix_cache_bytes=mamba.model.pool.page_stride)
    with pytest.raises(KvCacheFullError, match="prefix: 70 tokens do not fit"):
        small.prime_with_prefix(system)


def fresh(engine: InferenceEngine, prompt: list[int]) -> str:
    """The text without anything known."""
    salt = f"fresh {engine.metrics_snapshot().steps}"
    return engine.generate(prompt, sampler=GREEDY, max_tokens=5, salt=salt)


def test_all_ways_to_generate_share(mamba: InferenceEngine) -> None:
    common = ids(192)
    prompts = [common + ids(5, seed) for seed in range(1, 4)]
    expected = [fresh(mamba, prompt) for prompt in prompts]
    before = mamba.metrics_snapshot()
    assert mamba.generate_batch(prompts, sampler=GREEDY, max_tokens=5) == expected

    async def both(many: AsyncEngine) -> list[str]:
        return [await many.generate(prompt, sampler=GREEDY, max_tokens=5) for prompt in prompts]

    assert in_asyncio(mamba, both) == expected
    now = mamba.metrics_snapshot()
    assert now.prefix_hits - before.prefix_hits == 2 + 3
    assert now.cached_prompt_tokens - before.cached_prompt_tokens == 5 * 192
    assert now.kv_states_used == now.kv_states_cached == mamba.model.prefix_cache.n_states > 0
    mamba.check_integrity()


@pytest.mark.parametrize("name", ["jamba", "llama"])
def test_a_step_that_is_interrupted_is_run_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serving, n_vocab = Serving(name), n_vocab_of(name)
    request = serving.submit(tokens_of(20, n_vocab), max_tokens=12)
    for _ in range(5):
        serving.step()
    feed_forward = type(serving.runner.model.layers[-1].feed_forward)
    with monkeypatch.context() as patch:
        patch.setattr(feed_forward, "run", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            serving.loop.step()
    steps = 0
    while request.finish_reason is None:
        serving.step()
        steps += 1
    assert steps <= 12  # lost states are made up for in chunks, not token by token
    check_as_alone(serving, request)
    serving.check_empty()
