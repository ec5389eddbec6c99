"""Arguments and calls that no honest program makes get an error of ours or a TypeError, and harm nobody."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from oxillama import (
    AsyncEngine,
    AsyncSpecConfig,
    BeamSearchConfig,
    ConfigError,
    EngineClosed,
    EngineConfig,
    GenerationOptions,
    OxiLlamaError,
    PromptError,
    SamplerConfig,
    SchedulerConfig,
    TokenizerError,
    demo,
    pool_hidden_states,
)
from oxillama.base.locks import ForkedOpen
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.request import Piece
from oxillama.engine.sampling import breakers
from tests.support.waiting import together, until

GREEDY = SamplerConfig.greedy()
PROMPT = "Once upon a time"
HUGE = 10**5000  # more digits than Python writes


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        (EngineConfig, "num_threads", [0, -2, 10**6, 1.0]),
        (EngineConfig, "context_size", [0, 10**7]),
        (EngineConfig, "prefill_chunk_size", [0]),
        (EngineConfig, "page_size", [0, 48]),
        (EngineConfig, "kv_type", ["q4_k", "q8_0:", "q8_0:q8_0:f16", ":f16"]),
        (EngineConfig, "kv_memory_limit", [0, 1.5]),
        (EngineConfig, "prefix_cache_bytes", [-1, True]),
        (EngineConfig, "seed", [-1]),
        (EngineConfig, "sampler", [{"top_k": 3}]),
        (EngineConfig, "scheduler", [{"max_waiting": 3}]),
        (SchedulerConfig, "max_sequences", [0, 1.5]),
        (SchedulerConfig, "max_waiting", [True]),
        (SchedulerConfig, "max_decode_wait_ms", [0, math.nan]),
        (SchedulerConfig, "promote_seconds", ["1"]),
        (GenerationOptions, "max_tokens", [-1, 1.5, True]),
        (GenerationOptions, "stop", [[""], [3]]),
        (GenerationOptions, "priority", [0.5]),
        (GenerationOptions, "timeout", [0, "1", math.nan]),
        (GenerationOptions, "logprobs", [3]),
        (GenerationOptions, "top_logprobs", [-1, True, 1.5]),
        (BeamSearchConfig, "beam_width", [0]),
        (BeamSearchConfig, "max_new_tokens", [0]),
        (BeamSearchConfig, "length_penalty", [-1.0]),
        (BeamSearchConfig, "early_stopping", [1]),
        (AsyncSpecConfig, "spec_k", [0, 65]),
        (AsyncSpecConfig, "max_tokens", [-1]),
        (AsyncSpecConfig, "force_n1", [1]),
        (AsyncSpecConfig, "draft_sampler", [None]),
    ],
)
def test_options_have_ranges(kind: type, field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=field):
            kind(**{field: value})


@pytest.mark.parametrize(
    "make",
    [
        lambda: GenerationOptions(max_tokens=-HUGE),
        lambda: GenerationOptions(priority=10**400),
        lambda: GenerationOptions(priority=-HUGE),
        lambda: GenerationOptions(salt="\ud800"),
        lambda: SamplerConfig(seed=HUGE),
        lambda: SamplerConfig(logit_bias={HUGE: 1.0}),
        lambda: SamplerConfig(logit_bias={1: np.array([1, 2])}),  # type: ignore[dict-item]
        lambda: SamplerConfig(grammar=np.array([1, 2])),
        lambda: SamplerConfig(json_schema=np.array([1, 2])),
        lambda: SamplerConfig(json_schema=np.int64(3)),
        lambda: SamplerConfig(dry_sequence_breakers=("\ud800",)),
        lambda: EngineConfig(page_size=2**70),
        lambda: EngineConfig(context_size=HUGE),
        lambda: InferenceEngine(np.zeros((2, 0))),  # type: ignore[arg-type]
        lambda: AsyncEngine(None),  # type: ignore[arg-type]
        lambda: pool_hidden_states(np.zeros((2, 3), np.float32), "x"),
        lambda: pool_hidden_states(np.zeros((0, 3), np.float32), "last"),
    ],
)
def test_a_value_out_of_range_is_named(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        make()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e: e.generate("\ud800"), TokenizerError),
        (lambda e: e.generate([HUGE]), PromptError),
        (lambda e: e.generate([None]), PromptError),
        (lambda e: e.generate(range(10**12)), PromptError),
        (lambda e: e.generate(range(10**30)), PromptError),
        (lambda e: e.generate([5], banned_tokens=range(10**30)), ConfigError),
        (lambda e: e.detokenize(range(10**12)), TokenizerError),
        (lambda e: e.chat(range(10**30)), ConfigError),
        (lambda e: e.chat(None), ConfigError),
        (lambda e: e.generate_batch(range(10**12)), ConfigError),
        (lambda e: e.generate(PROMPT, callback=5), ConfigError),
        (lambda e: e.embed(PROMPT, normalize=np.array([1, 2])), ConfigError),
        (lambda e: e.embed(PROMPT, pooling=HUGE), ConfigError),
        (lambda e: e.detokenize("abc"), TokenizerError),
        (lambda e: e.detokenize([-1]), TokenizerError),
        (lambda e: e.generate(PROMPT, dry_multiplier=1, dry_sequence_breakers=((2**31 - 1,),)), ConfigError),
        (lambda e: e.metrics.prometheus({"a": "\ud800"}), ConfigError),
        (lambda e: e.metrics.prometheus({1: "a"}), ConfigError),
    ],
)
def test_an_argument_that_fits_nothing_is_named(
    call: Callable[[InferenceEngine], object], error: type[Exception], engine: InferenceEngine
) -> None:
    with pytest.raises(error, match="expected"):
        call(engine)


@pytest.mark.parametrize("timeout", [1e30, 3e38, 10**38])
def test_a_timeout_beyond_the_clock_harms_no_one(timeout: float, engine: InferenceEngine) -> None:
    expected = engine.generate(PROMPT, sampler=GREEDY, max_tokens=20)
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=20, window=1, timeout=timeout)
    first = next(stream)
    until(lambda: not stream._request.has_room)
    engine.model.check_integrity()  # the engine thread waits for the deadline now
    assert first + "".join(stream) == expected


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, GeneratorExit])
def test_a_callback_cannot_end_a_text_in_silence(error: type[BaseException], engine: InferenceEngine) -> None:
    def callback(text: str) -> None:
        raise error

    with pytest.raises(ConfigError, match="callback: raised"):
        engine.generate(PROMPT, max_tokens=20, callback=callback)

    async def main() -> None:
        with pytest.raises(ConfigError, match="callback: raised"):
            await engine.stream(PROMPT, max_tokens=20, callback=callback)

    asyncio.run(main())
    engine.model.check_integrity()


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": None},
        {"tokens": ["a"] * 6},
        {"tokens": [10**6] * 6},
        {"tokens": [1] * 20},
        {"tokens": range(10**12)},
        {"data": None},
        {"data": "x"},
        {"data": np.zeros((1, 1))},
        {"fingerprint": None},
        {"kv_type": None},
        {"data": np.zeros(6, np.uint8)},
    ],
)
def test_a_forged_snapshot_is_refused(change: dict[str, Any], engine: InferenceEngine) -> None:
    with engine.session() as session:
        session.prefill([5, 6, 7])
        before = session.kv_snapshot()
        with pytest.raises((ConfigError, PromptError)):
            session.kv_restore(dataclasses.replace(before, **change))
        assert session.tokens == [5, 6, 7]
        assert np.array_equal(session.kv_snapshot().data, before.data)


def test_what_belongs_to_an_engine_is_not_copied(engine: InferenceEngine) -> None:
    pin = engine.prime_with_prefix(PROMPT)
    with engine.session() as session, engine.stream(PROMPT, max_tokens=2) as stream:
        for thing in (engine, session, stream, AsyncEngine(engine), engine.model, pin):
            for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match=f"{type(thing).__name__}: cannot be copied or pickled"):
                    copied(thing)  # type: ignore[operator]
        assert stream.result().finish_reason == "length"
    pin.release()
    for plain in (GenerationOptions(stop="x"), SamplerConfig(seed=3), EngineConfig(page_size=4)):
        assert pickle.loads(pickle.dumps(plain)) == copy.deepcopy(plain) == plain


@pytest.mark.parametrize("window", [1, 16])
def test_two_readers_of_a_text_both_get_its_end(window: int, engine: InferenceEngine) -> None:
    expected = engine.generate(PROMPT, sampler=GREEDY, max_tokens=60)
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=60, window=window)
    assert together(3, lambda: stream.result().text) == [expected] * 3


def test_two_tasks_await_a_text(engine: InferenceEngine) -> None:
    async def main() -> None:
        stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=40)
        tasks = [asyncio.ensure_future(stream._result()) for _ in range(3)]
        for found in await asyncio.wait_for(asyncio.gather(*tasks), 30):
            assert found.text == expected

    expected = engine.generate(PROMPT, sampler=GREEDY, max_tokens=40)
    asyncio.run(main())


def test_a_closed_text_is_not_called_whole(engine: InferenceEngine) -> None:
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=10, window=None, ignore_eos=True)
    until(lambda: stream._request.is_published)
    next(stream)
    stream.close()
    assert stream.finish_reason == "cancelled"
    assert stream.result().finish_reason == "cancelled"


def test_an_end_that_was_not_delivered_is_found(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oxillama.engine.request import TextRequest

    real = TextRequest.emit

    def put(self: TextRequest, event: Any) -> None:
        if not isinstance(event, Piece):
            raise MemoryError
        real(self, event)

    expected = engine.generate(PROMPT, sampler=GREEDY, max_tokens=5)
    with monkeypatch.context() as patch:
        patch.setattr(TextRequest, "emit", put)
        assert engine.generate(PROMPT, sampler=GREEDY, max_tokens=5) == expected
        with pytest.raises(OxiLlamaError):
            engine.generate(PROMPT, max_tokens=5, regex="Z", banned_tokens=tuple(range(1000)))


def test_a_finalizer_may_close_a_thread_that_takes_a_request(engine: InferenceEngine) -> None:
    """The garbage collector runs finalizers at any place, also where the lock is held."""
    with engine.model.thread._starting.lock:
        closing = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1).model.thread
        with closing._starting.lock:
            closing.close(wait=False)


def test_each_reader_gets_an_error_of_its_own(engine: InferenceEngine) -> None:
    closed = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    streams = closed.stream_batch([PROMPT] * 3, max_tokens=400, window=1, ignore_eos=True)
    closed.close()
    raised = []
    for stream in streams:
        with pytest.raises(EngineClosed) as caught:
            stream.result()
        raised.append(caught.value)
    assert len({id(error) for error in raised}) == 3


def test_a_session_closes_beside_its_engine() -> None:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    session = engine.session()
    session.prefill([5, 6])
    real = engine.model.call

    def call(job: Callable[[], Any]) -> Any:
        engine.close()  # another thread was faster
        return real(job)

    engine.model.call = call  # type: ignore[method-assign]
    session.close()
    with pytest.raises(ConfigError, match="session: is closed"):
        session.prefill([5])


def test_metrics_are_read_while_the_cache_changes(engine: InferenceEngine) -> None:
    engine.generate_batch([[n, n + 1] for n in range(5, 700)], max_tokens=1)
    wrong: list[BaseException] = []
    done = threading.Event()

    def look() -> None:
        try:
            while not done.is_set():
                engine.metrics_snapshot()
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    looking = threading.Thread(target=look)
    looking.start()
    try:
        engine.generate_batch([[n, n + 1] for n in range(700, 900)], max_tokens=1)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        looking.join(60)
    assert not wrong


def test_tables_of_breakers_are_not_kept_for_ever(engine: InferenceEngine) -> None:
    for i in range(3 * breakers.MOST_KNOWN):
        breakers.breaker_tables(((i + 1,),), engine.tokenizer)
    assert len(breakers._known[engine.tokenizer]) <= breakers.MOST_KNOWN


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_finds_locks_open() -> None:
    mine, others = ForkedOpen(), ForkedOpen()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with others.lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    with mine.lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if others.lock.acquire(blocking=False) else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_is_published_of_a_request_that_was_on_its_way(engine: InferenceEngine) -> None:
    thread = engine.model.thread
    stream = engine.stream(PROMPT, max_tokens=2)
    stream.result()
    request = stream._request
    request.is_published, request.finish_reason = False, None
    thread._coming.add(request)  # as if the inbox still held it
    child = os.fork()
    if child == 0:
        os._exit(0 if request.finish_reason == "error" else 1)
    thread._coming.discard(request)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
