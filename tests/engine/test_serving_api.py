"""Serving through the engine's public face: batches, shared prefixes, snapshots, metrics."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from oxillama import (
    ConfigError,
    GenerationTimeout,
    KvCacheFullError,
    PromptError,
    QueueFull,
    SamplerConfig,
    SchedulerConfig,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from tests.support.kernels import same_bits
from tests.support.waiting import check_all_free, idle, stopped, until

GREEDY = SamplerConfig.greedy()
PROMPTS = ["Once upon a time", "The old toad", "In the garden", "Mia and the little fox"]


@pytest.fixture(autouse=True)
def no_page_is_lost(engine: InferenceEngine) -> Iterator[None]:
    yield
    engine.reset()
    check_all_free(engine)


def test_a_batch_gives_the_texts_of_its_prompts_alone(engine: InferenceEngine) -> None:
    alone = [engine.generate(p, sampler=GREEDY, max_tokens=30) for p in PROMPTS]
    before = engine.metrics_snapshot().steps
    found: list[object] = []
    asking = threading.Thread(
        target=lambda: found.append(engine.generate_batch(PROMPTS, sampler=GREEDY, max_tokens=30))
    )
    with stopped(engine):  # they arrive together, however long that takes
        asking.start()
        until(lambda: engine.model.thread._inbox.qsize() >= len(PROMPTS))
    asking.join(30)
    assert found == [alone]
    assert engine.metrics_snapshot().steps - before < 100  # alone they would be four times thirty
    assert engine.generate_batch([]) == []


def test_a_batch_may_be_larger_than_the_queue(engine: InferenceEngine) -> None:
    config = SchedulerConfig(max_sequences=2, max_waiting=1)
    small = InferenceEngine.from_gguf(demo.STORY, scheduler=config)
    texts = small.generate_batch(PROMPTS * 2, sampler=GREEDY, max_tokens=5)
    assert texts == engine.generate_batch(PROMPTS * 2, sampler=GREEDY, max_tokens=5)


def test_one_failure_of_a_batch(engine: InferenceEngine) -> None:
    small = InferenceEngine.from_gguf(demo.STORY, kv_memory_limit=6 * engine.model.runner.pool.page_stride)
    prompts = ["One day", "word " * 100, "A boat"]
    with pytest.raises(KvCacheFullError):
        small.generate_batch(prompts, sampler=GREEDY, max_tokens=5)
    idle(small)  # the others were cancelled
    texts = small.generate_batch(prompts, sampler=GREEDY, max_tokens=5, return_exceptions=True)
    assert isinstance(texts[1], KvCacheFullError)
    assert [texts[0], texts[2]] == [engine.generate(p, sampler=GREEDY, max_tokens=5) for p in prompts[::2]]
    with pytest.raises(PromptError):
        small.generate_batch(["One day", ""])
    texts = small.generate_batch(["One day", "", 3, "A boat"], max_tokens=2, return_exceptions=True)
    assert [type(text) for text in texts] == [str, PromptError, PromptError, str]
    small.check_integrity()


def test_memory_stays_under_its_limit(engine: InferenceEngine) -> None:
    limit = 10 * engine.model.runner.pool.page_stride
    small = InferenceEngine.from_gguf(demo.STORY, kv_memory_limit=limit)
    expected = engine.generate_batch(PROMPTS * 2, sampler=GREEDY, max_tokens=40)
    assert small.generate_batch(PROMPTS * 2, sampler=GREEDY, max_tokens=40) == expected
    assert small.model.runner.pool.memory_bytes <= limit
    assert small.metrics_snapshot().preemptions > 0
    with pytest.raises(ConfigError, match="kv_memory_limit"):
        InferenceEngine.from_gguf(demo.STORY, kv_memory_limit=1000)


def test_no_memory_before_it_is_needed() -> None:
    fresh = InferenceEngine.from_gguf(demo.STORY)
    assert fresh.model.runner.pool.memory_bytes == 0


def test_generate_with_logits(engine: InferenceEngine) -> None:
    hot = SamplerConfig(temperature=1.0, seed=3)
    text, logits = engine.generate_with_logits(PROMPTS[0], sampler=hot, max_tokens=12)
    assert text == engine.generate_with_config(PROMPTS[0], hot, max_tokens=12)
    prompt = engine.tokenize(PROMPTS[0])
    tokens = engine.stream(PROMPTS[0], sampler=hot, max_tokens=12).result().tokens
    assert same_bits(logits, engine.logits(prompt + tokens)[len(prompt) - 1 : -1])


def test_a_primed_prefix_is_kept(engine: InferenceEngine) -> None:
    system = "You are a toad who lives by the sea. " * 6
    pinned = engine.prime_with_prefix(system)
    engine.model.prefix_cache.clear()
    before = engine.model.prefix_cache.hit_tokens
    text = engine.generate(system + "What do you see?", sampler=GREEDY, max_tokens=5)
    known = engine.model.prefix_cache.hit_tokens - before
    assert known >= pinned.n_tokens - 2  # the last may join what follows
    pinned.release()
    engine.model.prefix_cache.clear()
    assert engine.generate(system + "What do you see?", sampler=GREEDY, max_tokens=5) == text
    without = InferenceEngine.from_gguf(demo.STORY, prefix_cache_bytes=0)
    assert without.generate(system + "What do you see?", sampler=GREEDY, max_tokens=5) == text
    assert without.model.prefix_cache.hits == 0
    with pytest.raises(KvCacheFullError, match="prefix"):
        without.prime_with_prefix(system)


def test_salted_prompts_share_with_their_own_kind_only(engine: InferenceEngine) -> None:
    prompt = "Mia and the little fox went to the sea. They found a boat"
    cache, known = engine.model.prefix_cache, []
    for salt in ("a", "b", "a", "c", "b"):
        before = cache.hits, cache.misses
        engine.generate(prompt, max_tokens=1, salt=salt)
        known.append((cache.hits - before[0], cache.misses - before[1]))
    assert known == [(0, 1), (0, 1), (1, 0), (0, 1), (1, 0)]


def test_generations_and_the_own_sequence_take_turns(engine: InferenceEngine) -> None:
    tokens = engine.tokenize("Mia and the little fox went to the sea.")
    whole = engine.logits(tokens)
    expected = engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=80)
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: found.append(engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=80))
    )
    thread.start()
    for _ in range(10):
        assert same_bits(engine.logits(tokens), whole)
        engine.reset()
        assert same_bits(engine.prefill(tokens), whole[-1])
    thread.join(30)
    assert found == [expected]


def test_two_threads_share_batches(engine: InferenceEngine) -> None:
    expected = [engine.generate(p, sampler=GREEDY, max_tokens=100) for p in PROMPTS]
    texts: dict[int, str] = {}

    def work(i: int) -> None:
        texts[i] = engine.generate(PROMPTS[i], sampler=GREEDY, max_tokens=100)

    before = engine.metrics_snapshot().steps
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(PROMPTS))]
    with stopped(engine):
        for thread in threads:
            thread.start()
        until(lambda: engine.model.thread._inbox.qsize() >= len(PROMPTS))
    for thread in threads:
        thread.join(60)
    assert [texts[i] for i in range(len(PROMPTS))] == expected
    assert engine.metrics_snapshot().steps - before < 350  # alone they would be four times a hundred


def test_cancelling_from_another_thread_between_chunks() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, prefill_chunk_size=1)
    runner, calls, generations = engine.model.runner, [], []
    real, may_cancel = runner.complete, threading.Event()

    def complete(*args: object) -> list[np.ndarray | None]:
        calls.append(1)
        if len(calls) == 3:
            may_cancel.wait(60)
            generations[0].cancel()
        return real(*args)  # type: ignore[arg-type]

    runner.complete = complete  # type: ignore[method-assign, assignment]
    generations.append(engine.stream("word " * 80, sampler=GREEDY, max_tokens=5))
    may_cancel.set()
    assert list(generations[0]) == []
    assert generations[0].finish_reason == "cancelled"
    assert len(calls) == 3
    engine.model.check_integrity()


def test_a_timeout_gives_what_there_is(engine: InferenceEngine) -> None:
    whole = engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=300)
    generation = engine.stream(PROMPTS[0], sampler=GREEDY, max_tokens=300, timeout=60, window=4)
    next(generation)
    generation._request.deadline = 0.0
    list(generation)
    assert generation.finish_reason == "timeout"
    assert whole.startswith(generation.text)
    assert len(generation.text) < len(whole)
    with pytest.raises(GenerationTimeout) as caught:
        engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=480, timeout=0.005)
    assert whole.startswith(caught.value.text)
    with pytest.raises(TimeoutError):
        engine.generate_batch(PROMPTS, sampler=GREEDY, max_tokens=480, timeout=0.005)


def test_a_full_queue_is_said_to_threads_too() -> None:
    config = SchedulerConfig(max_sequences=1, max_waiting=1)
    engine = InferenceEngine.from_gguf(demo.STORY, scheduler=config)
    streams = [engine.stream(PROMPTS[0], max_tokens=400, window=1)]
    next(streams[0])
    with stopped(engine):
        streams.append(engine.stream(PROMPTS[0]))
        with pytest.raises(QueueFull):
            engine.generate(PROMPTS[1])
    for stream in streams:
        stream.close()
    assert engine.generate(PROMPTS[1], max_tokens=2)


def test_metrics_count_what_happens(engine: InferenceEngine) -> None:
    fresh = InferenceEngine.from_gguf(demo.STORY)
    n = len(fresh.tokenizer.encode(PROMPTS[0]))
    for _ in range(2):
        fresh.generate(PROMPTS[0], sampler=GREEDY, max_tokens=10)
    stream = fresh.stream(PROMPTS[1], sampler=GREEDY, max_tokens=10, window=1)
    next(stream)
    until(lambda: not stream._request.has_room)
    now = fresh.model.call(fresh.metrics_snapshot)
    m = len(stream.prompt_tokens)
    assert now.prompt_tokens == 2 * n + m
    assert now.cached_prompt_tokens >= n - 1
    assert now.prefill_tokens == 2 * n + m - now.cached_prompt_tokens
    assert now.generation_tokens == 20 + stream._request.n_generated
    assert now.finished == {"length": 2}
    assert (now.running, now.waiting) == (1, 0)
    assert now.kv_pages_used > now.kv_pages_cached > 0
    assert 0 < now.kv_usage < 1
    assert now.time_to_first_token.count == now.queue_time.count == 3
    assert now.time_per_output_token.count == now.generation_tokens - 3
    assert now.prefill_tokens_per_second > 0
    assert now.decode_tokens_per_second > 0
    assert now.steps == now.generation_tokens
    stream.close()
    until(lambda: fresh.metrics_snapshot().finished == {"length": 2, "cancelled": 1})
    assert now.finished == {"length": 2}  # a snapshot stays what it was


def test_the_steps_of_a_prompt() -> None:
    fresh = InferenceEngine.from_gguf(demo.STORY, prefill_chunk_size=3)
    generation = fresh.stream(PROMPTS[0], sampler=GREEDY, max_tokens=2)
    generation.result()
    n, steps = generation.prefill_total, generation.prefill_steps
    assert [known for known, _ in steps] == [*range(3, n, 3), n]
    seconds = [spent for _, spent in steps]
    assert seconds == sorted(seconds) and 0 < seconds[0] <= seconds[-1] == generation.timings.prefill
    assert generation.timings.spent >= seconds[-1]
    steps.clear()  # a copy
    assert generation.prefill_steps
    with stopped(fresh):
        waiting = fresh.stream(PROMPTS[0], max_tokens=1)
        assert math.isnan(waiting.timings.spent) and waiting.prefill_steps == []
    waiting.close()


def test_without_the_package_the_prometheus_text_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    fresh = InferenceEngine.from_gguf(demo.STORY)
    with pytest.raises(ConfigError, match="prometheus_client"):
        fresh.metrics.prometheus()
