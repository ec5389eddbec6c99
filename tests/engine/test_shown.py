"""What objects say of themselves: one short line, with what they are and how they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from oxillama import EngineConfig, GenerationOptions, SamplerConfig, SchedulerConfig, demo
from oxillama.config.offload import OffloadPolicy
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
    millions, size = r"\d+\.\dM parameters", r"\d+\.\d MB"
    facts = rf"'{name}', llama, {millions}, {size}, context of 400, 2 threads, open"
    assert re.fullmatch(rf"<InferenceEngine: {facts}>", repr(engine)), repr(engine)
    assert repr(engine.model) == repr(engine).replace("InferenceEngine", "LoadedModel")
    assert repr(AsyncEngine(engine)) == repr(engine).replace("InferenceEngine", "AsyncEngine")
    assert repr(InferenceEngine()) == "<InferenceEngine: no model>"
    closed = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    closed.close()
    assert repr(closed).endswith("1 thread, closed>")
    half = InferenceEngine.__new__(InferenceEngine)
    assert repr(half).startswith("<oxillama.engine.engine.InferenceEngine object at ")


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
    n = running.prefill_total
    assert re.fullmatch(
        rf"<Generation: running, (\d of|prompt of) {n} tokens.*, 0 tokens read>", repr(running)
    )
    first = next(running)
    assert f"running, prompt of {n} tokens, 1 token read, {first!r}>" in repr(running)
    running.close()
    assert repr(running).startswith("<Generation: cancelled, ")
    ended = engine.stream("Once upon a time", max_tokens=100, temperature=0, ignore_eos=True)
    done = ended.result()
    assert f"<Generation: length, prompt of {n} tokens, 100 tokens read, '" in repr(ended)
    assert (
        repr(done)
        == f"<Completion: {done.text[:59] + chr(0x2026)!r}, length, 100 tokens, prompt of {n} tokens>"
    )
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
