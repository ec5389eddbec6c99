"""Samples of one prompt: each what its seed alone gives, and the prompt run once."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from oxillama import (
    AsyncEngine,
    ConfigError,
    EngineClosed,
    GenerationOptions,
    KvCacheFullError,
    QueueFull,
    SamplerConfig,
    SchedulerConfig,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.features.sample_seeds import best_samples, mean_logprob
from oxillama.engine.sequence import SeqState
from tests.support.serving import ENDS, NAMES, Recorded, Serving, check_as_alone, n_vocab_of
from tests.support.spread import pairs
from tests.support.tiny_models import tokens_of
from tests.support.waiting import check_all_free, idle, run, stopped
from tests.support.zoo import RECURRENT

PROMPT = "Once upon a time there was a little fox who lived by the sea"
EXAMPLES = int(os.environ.get("OXILLAMA_EXAMPLES", "60"))
HOT = SamplerConfig(temperature=1.5, top_k=0, seed=11)
NEVER_ENDS = SamplerConfig(seed=4, banned_tokens=(ENDS,))


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    """Without a prefix cache: nothing but the samples themselves shares the prompt."""
    return InferenceEngine.from_gguf(demo.STORY, num_threads=1, prefix_cache_bytes=0)


@pytest.fixture(autouse=True)
def no_page_is_lost(engine: InferenceEngine) -> Iterator[None]:
    yield
    check_all_free(engine)


# --- what is shared -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "chunk"), pairs(["llama", "gemma3", *RECURRENT[:2], "jamba"], [7, 64]))
def test_the_prompt_is_run_once(name: str, chunk: int) -> None:
    serving = Serving(name, cached_pages=0, cached_states=0, chunk=chunk)
    samples = serving.submit_samples(tokens_of(50, n_vocab_of(name)), 4, HOT)
    serving.run(*samples)
    assert serving.metrics.prefill_tokens == 49 + 4  # the last token of it gives each its logits
    assert [request.n_cached for request in samples] == [0, 49, 49, 49]
    check_as_alone(serving, *samples)
    serving.check_empty()


@pytest.mark.parametrize(("name", "steps"), pairs(["llama", "mamba"], [1, 2, 4, 6]))
def test_who_is_left_goes_on_from_what_a_cancelled_sample_has_run(name: str, steps: int) -> None:
    serving = Serving(name, cached_pages=0, cached_states=0, chunk=16)
    samples = serving.submit_samples(tokens_of(50, n_vocab_of(name)), 4, HOT)
    for _ in range(steps):
        serving.step()
    serving.cancel(samples[0])
    serving.scheduler.check_integrity()
    serving.run(*samples)
    assert samples[0].finish_reason == "cancelled"
    assert serving.metrics.prefill_tokens <= 49 + 4
    check_as_alone(serving, *samples)
    serving.check_empty()


def test_samples_that_wait_longer_than_the_first_lives_begin_with_its_pages() -> None:
    serving = Serving(cached_pages=0, max_sequences=1)
    samples = serving.submit_samples(tokens_of(50, 40), 3, HOT, max_tokens=4)
    serving.run(*samples)
    assert serving.metrics.prefill_tokens == 49 + 3
    serving.check_empty()


def test_samples_that_were_preempted_share_their_prompt_again() -> None:
    serving = Serving(page_size=1, cached_pages=0, max_pages=80)
    samples = serving.submit_samples(tokens_of(50, 40), 3, HOT)
    for _ in range(4):
        serving.step()
    other = serving.submit(tokens_of(70, 40, seed=3), priority=1)
    serving.run(other)
    assert serving.scheduler.queues.preemptions == 3
    before = serving.metrics.prefill_tokens
    serving.run(*samples)
    assert serving.metrics.prefill_tokens - before <= 49 + 3 * 8
    check_as_alone(serving, *samples)
    serving.check_empty()


@pytest.mark.parametrize(("name", "pages"), [("llama", 4), ("mamba", 4)])
def test_where_there_is_room_for_one_alone_each_runs_the_prompt(name: str, pages: int) -> None:
    serving = Serving(name, page_size=16, cached_pages=0, cached_states=0, max_pages=pages, states=2)
    samples = serving.submit_samples(tokens_of(50, n_vocab_of(name)), 3, HOT)
    serving.run(*samples)
    for request in samples:
        assert request.finish_reason in ("stop", "length")
        check_as_alone(serving, request)
    serving.check_empty()


def test_samples_take_more_of_each_other_than_the_cache_has() -> None:
    """The cache has whole pages alone."""
    serving = Serving(page_size=16)
    samples = serving.submit_samples(tokens_of(50, 40), 3, HOT)
    serving.run(*samples)
    assert [request.n_cached for request in samples] == [0, 49, 49]
    assert serving.metrics.prefill_tokens == 49 + 3


def test_a_preempted_sample_goes_on_from_its_own_text() -> None:
    """The cache has that, while the prompt that is kept for the samples ends before it."""
    serving = Serving(page_size=1)
    first, second = serving.submit_samples(tokens_of(50, 40), 2, NEVER_ENDS)
    while len(second.tokens) < 4:
        serving.step()
    serving.scheduler.queues.preempt(second, ScheduledBatch())
    second.window = 0
    serving.run(first)
    before, second.window = serving.metrics.prefill_tokens, 100
    serving.run(second)
    assert serving.metrics.prefill_tokens - before == 1
    check_as_alone(serving, second)


def kept_for_one_that_pauses() -> tuple[Serving, Recorded]:
    """The engine keeps 49 of 80 pages for a sample that does not begin."""
    serving = Serving(page_size=1, cached_pages=0, max_pages=80)
    first, second = serving.submit_samples(tokens_of(50, 40), 2, HOT, max_tokens=4)
    second.window = 0
    serving.run(first)
    assert serving.pool.n_used == 49
    return serving, second


@pytest.mark.parametrize("others", [[(60, 4)], [(10, 30)], [(5, 14), (60, 2)]])
def test_what_is_kept_for_others_gives_way(others: list[tuple[int, int]]) -> None:
    """The kept pages go to a prompt, to a growing stream, and to a prompt beside a stream."""
    serving, second = kept_for_one_that_pauses()
    requests = [serving.submit(tokens_of(n, 40, seed=n), max_tokens=m, sampler=NEVER_ENDS) for n, m in others]
    serving.run(requests[-1])
    assert serving.scheduler.queues.preemptions == 0
    assert len(requests) == 1 or not requests[0].finish_reason
    second.window = 100
    serving.run(second, *requests)
    for request in requests:
        assert request.finish_reason == "length"
    check_as_alone(serving, second)
    serving.check_empty()


def test_a_sample_that_finds_no_room_keeps_its_own_prompt() -> None:
    serving, second = kept_for_one_that_pauses()
    other = serving.submit(tokens_of(29, 40), max_tokens=2, sampler=NEVER_ENDS)
    while not other.tokens:
        serving.step()
    second.window = 100
    serving.step()
    assert second.sequence.state is SeqState.WAITING
    assert serving.scheduler.queues.preemptions == 0
    serving.run(second, other)
    assert second.n_cached == 49
    check_as_alone(serving, second)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    name=st.sampled_from((*NAMES[:4], *RECURRENT)),
    n_prompt=st.sampled_from([1, 2, 15, 16, 17, 33, 60]),
    groups=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 1)), min_size=1, max_size=3
    ),
    cancelled=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 9)), max_size=4),
    paused=st.sets(st.integers(0, 14), max_size=3),
    page_size=st.sampled_from([1, 8, 16]),
    chunk=st.sampled_from([1, 7, 16, 512]),
    tokens_in_memory=st.sampled_from([64, 80, 112, 10**4]),
    states=st.sampled_from([2, 3, 5, 100]),
    cached_pages=st.sampled_from([0, 0, 4, 10**4]),
    max_sequences=st.sampled_from([1, 2, 64]),
    drafts=st.sampled_from([0, 0, 3]),
)
def test_each_sample_is_what_its_seed_alone_gives(
    name: str,
    n_prompt: int,
    groups: list[tuple[int, int, int]],
    cancelled: list[tuple[int, int]],
    paused: set[int],
    page_size: int,
    chunk: int,
    tokens_in_memory: int,
    states: int,
    cached_pages: int,
    max_sequences: int,
    drafts: int,
) -> None:
    serving = Serving(
        name,
        page_size=page_size,
        chunk=chunk,
        max_pages=tokens_in_memory // page_size,
        states=states,
        cached_pages=cached_pages,
        cached_states=min(cached_pages, 3),
        max_sequences=max_sequences,
    )
    requests: list[Recorded] = []
    for now in range(5000):
        for n, step, priority in [group for group in groups if group[1] == now]:
            requests += serving.submit_samples(
                tokens_of(n_prompt, n_vocab_of(name), seed=step), n, HOT, priority=priority, drafts=drafts
            )
        for which, step in cancelled:
            if step == now and which < len(requests):
                serving.cancel(requests[which])
        for which in paused & set(range(len(requests))):
            requests[which].window = 1 if now < 12 else 100
        serving.step()
        if now > 12 and all(request.finish_reason for request in requests):
            break
    for request in requests:
        if request.finish_reason == "error":  # alone it has no room either
            assert isinstance(request.error, KvCacheFullError)
            assert serving.pool.pages_for(n_prompt + 7) + 2 * serving.slot_pages > (
                serving.pool.limit.max_bytes // serving.pool.page_stride
            )
        else:
            assert request.finish_reason in ("stop", "length", "cancelled")
        check_as_alone(serving, request)
    serving.check_empty()


# --- the API ----------------------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop": {"stop": ["her", "the "]},
    "logprobs": {"top_logprobs": 2},
    "grammar": {"grammar": "root ::= [a-z ]+ [.!] root?"},
    "lookup": {"speculate": "lookup"},
    "model": {"speculate": demo.DRAFT},
    "salt": {"salt": "a"},
    "mirostat": {"mirostat": 2},
    "largest seed": {"seed": 2**64 - 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_samples_are_those_of_their_seeds(engine: InferenceEngine, options: dict[str, Any]) -> None:
    fields = {"max_tokens": 24, "temperature": 1.1, "seed": 5, **options}
    seeds = [(fields["seed"] + i) % 2**64 for i in range(3)]
    expected = [engine.stream(PROMPT, **{**fields, "seed": seed}).result() for seed in seeds]
    found = engine.generate_n(PROMPT, n=3, **fields)
    assert [(c.text, c.tokens, c.finish_reason, c.logprobs, c.seed) for c in found] == [
        (c.text, c.tokens, c.finish_reason, c.logprobs, c.seed) for c in expected
    ]
    assert len({c.text for c in found}) > 1
    assert found[1].usage.cached_tokens == found[1].usage.prompt_tokens - 1


def test_samples_without_a_seed_have_new_ones(engine: InferenceEngine) -> None:
    first, second = (engine.generate_n(PROMPT, n=2, max_tokens=2) for _ in range(2))
    assert first[1].seed == (first[0].seed + 1) % 2**64
    assert first[0].seed != second[0].seed
    with InferenceEngine.from_gguf(demo.STORY, seed=7) as seeded:
        assert [c.seed for c in seeded.generate_n(PROMPT, n=2, max_tokens=1)] == [7, 8]


def test_the_best_have_the_highest_mean_logprob(engine: InferenceEngine) -> None:
    fields: dict[str, Any] = {"max_tokens": 20, "temperature": 1.5, "seed": 3}
    everything = engine.generate_n(PROMPT, n=6, logprobs=True, **fields)
    means = {c.seed: sum(t.raw.logprob for t in c.logprobs or ()) / len(c.tokens) for c in everything}
    found = engine.generate_n(PROMPT, n=2, best_of=6, **fields)
    assert [c.seed for c in found] == sorted(means, key=lambda seed: -means[seed])[:2]
    assert [mean_logprob(c) for c in found] == sorted(means.values(), reverse=True)[:2]
    (greedy, *_) = engine.generate_n(PROMPT, n=1, best_of=2, temperature=0, max_tokens=4, seed=3)
    assert greedy.seed == 3  # the first of equal samples
    empty = engine.generate_n(PROMPT, n=1, best_of=2, max_tokens=0, seed=3)
    assert (empty[0].text, mean_logprob(empty[0])) == ("", 0.0)
    with pytest.raises(ConfigError, match="logprobs: expected"):
        best_samples(engine.generate_n(PROMPT, n=1, max_tokens=1), 1)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"n": 0}, "n: expected an integer >= 1 and <= 1024, got 0"),
        ({"n": 2.0}, "n: expected an integer"),
        ({"n": 1025}, "n: expected"),
        ({"n": 3, "best_of": 2}, "best_of: expected an integer >= 3"),
        ({"n": 3, "best_of": True}, "best_of: expected an integer"),
    ],
)
def test_wrong_numbers_are_refused(engine: InferenceEngine, numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.generate_n(PROMPT, **numbers)
    with pytest.raises(ConfigError, match="n: expected an integer"):
        engine.stream_n(PROMPT, n=-1)


def test_streams_of_samples_are_read_and_cancelled_one_by_one(engine: InferenceEngine) -> None:
    options = GenerationOptions(max_tokens=40, sampler=SamplerConfig(seed=1, temperature=1.2))
    expected = [c.text for c in engine.generate_n(PROMPT, options, n=4)]
    samples = engine.stream_n(PROMPT, options, n=4, window=2)
    samples[0].close()
    assert next(samples[2]) == expected[2][: len(samples[2].text)]
    samples[2].cancel()
    del samples[2]
    gc.collect()
    assert [sample.result().text for sample in samples[1:]] == [expected[1], expected[3]]


def test_a_timeout_and_an_error_of_one_prompt(engine: InferenceEngine) -> None:
    found = engine.generate_n(PROMPT, n=3, timeout=0.005, max_tokens=480, ignore_eos=True)
    assert {c.finish_reason for c in found} == {"timeout"}

    calls: list[int] = []

    def stage(ids: Any, logits: Any, history: Any) -> None:
        calls.append(len(history))
        if len(calls) == 4:  # the second token of the first sample
            raise KeyError("a stage of the user's")

    def others() -> int:
        return engine.metrics_snapshot().finished.get("cancelled", 0)

    fields: dict[str, Any] = {"order": (stage, "temperature"), "max_tokens": 480, "ignore_eos": True}
    before = others()
    with pytest.raises(KeyError, match="user's") as caught:
        engine.generate_n(PROMPT, n=3, **fields)
    idle(engine)
    assert others() - before == 2

    async def main() -> None:
        calls.clear()
        with pytest.raises(KeyError, match="user's") as caught:
            await AsyncEngine(engine).generate_n(PROMPT, n=3, **fields)
        idle(engine)
        assert others() - before == 4
        del caught

    run(main)
    del caught  # until now it has held the samples


def test_samples_need_one_place_in_the_queue() -> None:
    config = SchedulerConfig(max_sequences=2, max_waiting=1)
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1, scheduler=config) as small:
        assert len(small.generate_n(PROMPT, n=5, max_tokens=3)) == 5
        with stopped(small):
            kept = small.stream_n(PROMPT, n=5, max_tokens=3)
            with pytest.raises(QueueFull):
                small.stream_n(PROMPT, n=1)
        assert all(sample.result().tokens for sample in kept)
    with pytest.raises(EngineClosed):
        small.generate_n(PROMPT, n=2)


def test_samples_in_asyncio(engine: InferenceEngine) -> None:
    fields: dict[str, Any] = {"max_tokens": 20, "temperature": 1.2, "seed": 9}
    expected = engine.generate_n(PROMPT, n=3, **fields)
    best = engine.generate_n(PROMPT, n=1, best_of=3, **fields)

    async def main() -> None:
        async with AsyncEngine(engine) as many:
            found = await many.generate_n(PROMPT, n=3, **fields)
            assert [c.text for c in found] == [c.text for c in expected]
            chosen = await many.generate_n(PROMPT, n=1, best_of=3, **fields)
            assert [c.seed for c in chosen] == [c.seed for c in best]
            for stream, alone in zip(many.stream_n(PROMPT, n=3, **fields), expected):
                assert "".join([piece async for piece in stream]) == alone.text
            task = asyncio.ensure_future(many.generate_n(PROMPT, n=3, max_tokens=480, ignore_eos=True))
            while not engine.model.scheduler.running:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while engine.model.scheduler.running:
                await asyncio.sleep(0.001)
        with pytest.raises(EngineClosed):
            many.stream_n(PROMPT, n=2)

    run(main)
