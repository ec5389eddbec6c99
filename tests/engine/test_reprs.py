"""The text of objects (`repr`): one short line, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oxillama import EngineConfig, GenerationOptions, SamplerConfig, SchedulerConfig, demo
from oxillama.base.config.offload import OffloadPolicy
from oxillama.engine.async_engine import AsyncEngine
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation

MOST = 300


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=2, context_size=400) as made:
        yield made


def test_an_engine(engine: InferenceEngine) -> None:
    name = engine.model.file.metadata["general.name"]
    assert repr(engine.model) == f"<LoadedModel: {name!r}, context of 400, open>"
    assert repr(engine) == f"<InferenceEngine: {engine.model!r}>"
    assert repr(AsyncEngine(engine)) == f"<AsyncEngine: {engine!r}>"
    assert repr(InferenceEngine()) == repr(InferenceEngine.__new__(InferenceEngine))
    assert repr(InferenceEngine()) == "<InferenceEngine: None>"
    closed = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    closed.close()
    assert repr(closed).endswith(", closed>>")


def test_options_say_what_is_not_as_usual() -> None:
    assert repr(GenerationOptions()) == "GenerationOptions()"
    assert repr(EngineConfig(num_threads=3, kv_type="q8_0")) == "EngineConfig(num_threads=3, kv_type='q8_0')"
    assert repr(SamplerConfig(top_k=7, seed=5)) in (
        "SamplerConfig(seed=5, top_k=7)", "SamplerConfig(top_k=7, seed=5)"
    )  # fmt: skip
    assert repr(SchedulerConfig(max_waiting=9)) == "SchedulerConfig(max_waiting=9)"
    assert "OffloadPolicy(" in repr(OffloadPolicy())
    long = repr(GenerationOptions(stop=["x" * 10**6], max_tokens=5))
    assert long.startswith("GenerationOptions(") and "max_tokens=5" in long and len(long) < MOST
    assert eval(repr(SamplerConfig(temperature=0.5))) == SamplerConfig(temperature=0.5)


def test_a_generation_and_its_completion(engine: InferenceEngine) -> None:
    running = engine.stream("Once upon a time", max_tokens=200, temperature=0, window=1)
    assert repr(running) == "<Generation: running, 0 tokens read, ''>"
    first = next(running)
    assert repr(running) == f"<Generation: running, 1 tokens read, {first!r}>"
    running.close()
    assert repr(running).startswith("<Generation: cancelled, ")
    ended = engine.stream("Once upon a time", max_tokens=100, temperature=0, ignore_eos=True)
    done = ended.result()
    assert repr(ended).startswith("<Generation: length, 100 tokens read, '")
    assert repr(done).startswith("<Completion: 100 tokens, length, '")
    assert max(len(repr(ended)), len(repr(done))) < MOST
    unread = engine.stream("Once", max_tokens=3, temperature=0)
    while unread.is_running:
        pass
    assert repr(unread).startswith("<Generation: not read to its end, ") and isinstance(unread, Generation)


def test_a_session(engine: InferenceEngine) -> None:
    with engine.session() as session:
        assert repr(session) == "<Session: 0 tokens, 0 of them run, open>"
        session.prefill("Once upon a time")
        n = len(session)
        assert repr(session) == f"<Session: {n} tokens, {n} of them run, open>"
    assert repr(session).endswith(" closed>")
