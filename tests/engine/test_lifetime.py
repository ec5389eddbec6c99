"""What is dropped is freed at once, without a garbage collection; what is closed says so."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from oxillama import AsyncEngine, EngineClosed, SamplerConfig, demo
from oxillama.compat.engine import InferenceEngine
from tests.support.waiting import until

GREEDY = SamplerConfig.greedy()
PROMPT = "Once upon a time"


@pytest.fixture(autouse=True)
def without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "oxillama"])


def watched(engine: InferenceEngine) -> list[weakref.ref[object]]:
    """The parts of an engine that hold memory or a thread."""
    model = engine.model
    parts = [
        model, model.runner, model.runner.model, model.pool, model.prefix_cache, model.loop, model.thread,
    ]  # fmt: skip
    return [weakref.ref(part) for part in parts]


@pytest.mark.parametrize("closed", [False, True])
def test_a_dropped_engine_is_freed(closed: bool) -> None:
    before = threads()
    engine = InferenceEngine.from_gguf(demo.STORY)
    engine.generate(PROMPT, max_tokens=4)
    engine.generate_batch([PROMPT] * 3, max_tokens=4)
    engine.prefill(PROMPT)
    parts = watched(engine)
    for _ in range(2 * closed):
        engine.close()
    del engine
    until(lambda: all(part() is None for part in parts))
    until(lambda: threads() <= before)


def test_a_dropped_async_engine_is_freed() -> None:
    before = threads()

    async def main() -> list[weakref.ref[object]]:
        engine = AsyncEngine.from_gguf(demo.STORY)
        await engine.generate(PROMPT, max_tokens=4)
        return watched(engine.engine)

    parts = asyncio.run(main())
    until(lambda: all(part() is None for part in parts))
    until(lambda: threads() <= before)


def test_a_stream_and_a_session_keep_what_they_need() -> None:
    expected = InferenceEngine.from_gguf(demo.STORY).generate(PROMPT, sampler=GREEDY, max_tokens=30)
    stream = InferenceEngine.from_gguf(demo.STORY).stream(PROMPT, sampler=GREEDY, max_tokens=30, window=1)
    assert "".join(stream) == expected
    session = InferenceEngine.from_gguf(demo.STORY).session()
    session.prefill(PROMPT)
    assert session.generate(sampler=GREEDY, max_tokens=30) == expected


def test_a_dropped_session_is_freed() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY)
    session = engine.session()
    session.prefill(PROMPT)
    session.generate(sampler=GREEDY, max_tokens=3)
    list(session.stream(sampler=GREEDY, max_tokens=3))
    assert engine.model.loop.held
    del session
    until(lambda: not engine.model.loop.held)
    session = engine.session()
    session.prefill(PROMPT)
    stream = session.stream(sampler=GREEDY, max_tokens=300, window=2)
    next(stream)
    del session, stream
    until(lambda: not engine.model.loop.held and not engine.model.scheduler.running)
    engine.model.check_integrity()


def test_a_closed_engine_says_so() -> None:
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        stream = engine.stream(PROMPT, sampler=GREEDY, ignore_eos=True, max_tokens=400)
        session = engine.session()
        next(stream)
    with pytest.raises(EngineClosed, match="engine: is closed"):
        list(stream)
    assert stream.finish_reason == "cancelled"
    for call in (
        lambda: engine.generate(PROMPT),
        lambda: engine.embed(PROMPT),
        lambda: engine.prefill(PROMPT),
        lambda: session.prefill(PROMPT),
        engine.check_integrity,
    ):
        with pytest.raises(EngineClosed, match="engine: is closed"):
            call()
    engine.close()
    session.close()


def test_another_model_lets_running_streams_end() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY)
    expected = engine.generate(PROMPT, sampler=GREEDY, max_tokens=60)
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=60, window=2)
    parts = watched(engine)
    next(stream)
    engine.load_model(demo.DRAFT)
    assert engine.generate(PROMPT, sampler=GREEDY, max_tokens=5)
    assert stream.result().text == expected
    del stream
    until(lambda: all(part() is None for part in parts))


def test_a_failed_load_frees_what_it_began() -> None:
    before = threads()
    with pytest.raises(OSError, match="nowhere"):
        InferenceEngine.from_gguf("nowhere.gguf")
    until(lambda: threads() <= before)
