"""Turns: whatever else wants the engine gets it after the step that is running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from oxillama import ConfigError, GrammarError, InferenceEngine, SamplerConfig, demo
from tests.support.waiting import until

GREEDY = SamplerConfig(temperature=0, ignore_eos=True)
PROMPT = "Once upon a time"


@pytest.fixture
def engine() -> InferenceEngine:
    return InferenceEngine.from_gguf(demo.STORY, num_threads=1)


def slowed(engine: InferenceEngine, seconds: float) -> list[int]:
    """Makes each pass of an engine take a while; the list grows with each."""
    runner, passes = engine.model.runner, []
    real = runner.run

    def run(*args: object) -> list[np.ndarray | None]:
        passes.append(1)
        time.sleep(seconds)
        return real(*args)  # type: ignore[arg-type]

    runner.run = run  # type: ignore[method-assign, assignment]
    return passes


@pytest.mark.parametrize(
    "job",
    [
        lambda engine: engine.check_integrity(),
        lambda engine: engine.logits("Mia"),
        lambda engine: engine.embed("Mia"),
        lambda engine: engine.kv_snapshot(),
        lambda engine: engine.session().close(),
    ],
    ids=["check_integrity", "logits", "embed", "kv_snapshot", "session"],
)
def test_a_job_waits_for_a_step_and_not_for_a_generation(
    engine: InferenceEngine, job: Callable[[InferenceEngine], object]
) -> None:
    engine.prefill("Mia")
    passes = slowed(engine, 0.02)
    streams = [engine.stream(PROMPT, sampler=GREEDY, max_tokens=400, window=None) for _ in range(3)]
    until(lambda: len(passes) > 2)
    before = len(passes)
    job(engine)
    assert len(passes) - before <= 6  # a few steps, and not the hundreds that the streams still have
    for stream in streams:
        stream.close()


def test_twenty_threads_get_their_turns(engine: InferenceEngine) -> None:
    """Each job of each thread waits for about a step, beside streams that never pause."""
    passes = slowed(engine, 0.002)
    streams = [engine.stream(PROMPT, sampler=GREEDY, max_tokens=450, window=None) for _ in range(4)]
    until(lambda: len(passes) > 2)
    worst: list[int] = []

    def work() -> None:
        for _ in range(5):
            before = len(passes)
            engine.check_integrity()
            worst.append(len(passes) - before)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(worst) == 100
    assert max(worst) <= 25, worst  # at most one step for each thread before it
    assert any(stream._request.finish_reason is None for stream in streams)
    for stream in streams:
        stream.close()


def test_closing_a_stream_that_another_thread_reads(engine: InferenceEngine) -> None:
    passes = slowed(engine, 0.005)
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=450)
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    until(lambda: len(passes) > 3)
    before = len(passes)
    stream.cancel()
    reader.join(20)
    assert not reader.is_alive()
    assert len(passes) - before <= 2
    assert stream.finish_reason == "cancelled"


def test_a_call_from_inside_a_step_is_an_error_and_no_wait_for_ever(engine: InferenceEngine) -> None:
    caught: list[BaseException] = []

    def stage(ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        for call in (lambda: engine.generate("Mia", max_tokens=1), engine.check_integrity):
            try:
                call()
            except ConfigError as error:
                caught.append(error)

    text = engine.generate(PROMPT, sampler=SamplerConfig(order=("top_k", stage, "temperature")), max_tokens=1)
    assert text
    assert [str(error).partition(",")[0] for error in caught] == [
        "engine: is called from inside its own step"
    ] * 2


def test_what_nobody_reads_is_not_run(engine: InferenceEngine) -> None:
    """A stream runs ahead of its reader by its window; others' steps don't carry it on."""
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=400, window=3)
    until(lambda: not stream._request.wanted)
    engine.generate("The old toad", sampler=GREEDY, max_tokens=50)
    assert stream._request.n_events == 3
    assert stream.tokens == []
    next(stream)
    until(lambda: stream._request.n_events == 4)
    engine.generate("The old toad", sampler=GREEDY, max_tokens=20)
    assert stream._request.n_events == 4
    assert len(stream.result().tokens) == 400


def test_a_grammar_beyond_its_budget_ends_its_request_alone() -> None:
    """A mask that would hold up the shared step is given up; the texts beside it are what they are alone."""
    stalling = "\n".join([f"r{i} ::= r{i + 1} r{i + 1}" for i in range(45)]) + '\nr45 ::= "a"?\nroot ::= r0'
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        alone = engine.generate("Once upon a time", max_tokens=12, temperature=0)
        other = engine.stream("Once upon a time", max_tokens=12, temperature=0)
        with pytest.raises(GrammarError, match="units of work for a mask"):
            engine.generate("Once upon a time", grammar=stalling, max_tokens=4)
        assert other.result().text == alone
