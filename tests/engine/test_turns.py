"""Turns: whatever else wants the engine gets it after the step that is running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxillama import (
    ConfigError,
    EngineClosed,
    Generation,
    GrammarError,
    QueueFull,
    SamplerConfig,
    SchedulerConfig,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.handle import Handle
from oxillama.engine.request import Piece, Request
from oxillama.engine.thread import EngineThread
from tests.support.kernels import same_bits
from tests.support.waiting import stopped, together, until

GREEDY = SamplerConfig(temperature=0, ignore_eos=True)
PROMPT = "Once upon a time"


@pytest.fixture
def engine() -> InferenceEngine:
    return InferenceEngine.from_gguf(demo.STORY, num_threads=1)


def slowed(engine: InferenceEngine, seconds: float) -> list[int]:
    """Makes each pass of an engine take a while; the list grows with each."""
    runner, passes = engine.model.runner, []
    real = runner.complete

    def complete(*args: object) -> list[np.ndarray | None]:
        passes.append(1)
        time.sleep(seconds)
        return real(*args)  # type: ignore[arg-type]

    runner.complete = complete  # type: ignore[method-assign, assignment]
    return passes


class StampedInbox(SimpleQueue[Any]):
    """An inbox that notes of each command how many passes began while it lay there."""

    def __init__(self, passes: list[int]) -> None:
        self.waits: list[int] = []
        self._passes = passes

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put((len(self._passes), item))

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return self._taken(*super().get(block, timeout))

    def get_nowait(self) -> Any:
        return self._taken(*super().get_nowait())

    def _taken(self, at: int, command: Any) -> Any:
        if command is not None:
            self.waits.append(len(self._passes) - at)
        return command


def stamped(engine: InferenceEngine, passes: list[int]) -> list[int]:
    """For each command from now on, the passes that began before it had its turn."""
    inbox: Any = StampedInbox(passes)
    engine.model.call(lambda: setattr(engine.model.thread, "_inbox", inbox))
    return inbox.waits  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "job",
    [
        lambda engine: engine.model.check_integrity(),
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
    waits = stamped(engine, passes)
    streams = [engine.stream(PROMPT, sampler=GREEDY, max_tokens=400, window=None) for _ in range(3)]
    until(lambda: len(passes) > 2)
    waits.clear()
    job(engine)
    assert 0 < len(waits) <= 6
    assert max(waits) <= 1  # the step under way, and not the hundreds that the streams still have
    for stream in streams:
        stream.close()


def test_twenty_threads_get_their_turns(engine: InferenceEngine) -> None:
    """Each job of each thread waits for about a step, beside streams that never pause."""
    passes = slowed(engine, 0.002)
    waits = stamped(engine, passes)
    streams = [engine.stream(PROMPT, sampler=GREEDY, max_tokens=450, window=None) for _ in range(4)]
    until(lambda: len(passes) > 2)
    waits.clear()

    together(20, lambda: [engine.model.check_integrity() for _ in range(5)])
    assert len(waits) == 100
    assert max(waits) <= 1, waits
    for stream in streams:
        stream.close()


def test_closing_a_stream_that_another_thread_reads(engine: InferenceEngine) -> None:
    passes = slowed(engine, 0.005)
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=450)
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    until(lambda: len(passes) > 3)
    stream.cancel()
    before = len(passes)
    reader.join(60)
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
    until(lambda: not stream._request.has_room)
    engine.generate("The old toad", sampler=GREEDY, max_tokens=50)
    assert stream._request.n_events == 3
    assert stream.tokens == []
    next(stream)
    until(lambda: stream._request.n_events == 4)
    engine.generate("The old toad", sampler=GREEDY, max_tokens=20)
    assert stream._request.n_events == 4
    assert len(stream.result().tokens) == 400


class FilledMeanwhile(Request):
    """A request whose window the engine thread fills just before its consumer has counted an event."""

    def __init__(self) -> None:
        self.window, self.n_events, self.finish_reason = 2, 1, "length"
        self._n_read = 0

    @property
    def n_read(self) -> int:
        return self._n_read

    @n_read.setter
    def n_read(self, n: int) -> None:
        self.n_events, self._n_read = 2, n


def test_a_request_that_pauses_while_an_event_is_counted_goes_on() -> None:
    wakes: list[None] = []
    thread: Any = SimpleNamespace(wake=lambda: wakes.append(None))
    request = FilledMeanwhile()
    handle = Handle(thread, request)
    handle._note(Piece("a"))
    assert request.n_events - request.n_read == 1
    assert wakes


def test_a_grammar_beyond_its_budget_ends_its_request_alone() -> None:
    """A mask that would hold up the shared step is given up; the texts beside it are what they are alone."""
    stalling = "\n".join([f"r{i} ::= r{i + 1} r{i + 1}" for i in range(45)]) + '\nr45 ::= "a"?\nroot ::= r0'
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        alone = engine.generate("Once upon a time", max_tokens=12, temperature=0)
        other = engine.stream("Once upon a time", max_tokens=12, temperature=0)
        with pytest.raises(GrammarError, match="units of work for a mask"):
            engine.generate("Once upon a time", grammar=stalling, max_tokens=4)
        assert other.result().text == alone


@pytest.mark.parametrize("which", ["waits", "pauses"])
def test_a_timeout_comes_though_nothing_runs(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for pages, or for its reader; the engine has nothing to do but to end it in time."""
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    timeout = None if which == "waits" else 0.2
    paused = engine.stream(PROMPT, sampler=GREEDY, max_tokens=400, window=1, timeout=timeout)
    until(lambda: not paused._request.has_room or paused._request.finish_reason is not None)
    if which == "pauses":
        until(lambda: paused._request.finish_reason is not None)
        assert paused._request.finish_reason == "timeout"
        return
    with monkeypatch.context() as patch:
        patch.setattr(engine.model.scheduler.admission, "admit", lambda *args: False)
        waiting = engine.stream("The old toad", sampler=GREEDY, max_tokens=5, timeout=0.2)
        until(lambda: waiting._request.finish_reason is not None)
    assert waiting.finish_reason is None
    assert list(waiting) == []
    assert waiting.finish_reason == "timeout"
    paused.close()


def test_closing_finishes_those_that_wait_too() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, scheduler=SchedulerConfig(max_sequences=1))
    expected = engine.generate(PROMPT, sampler=GREEDY, max_tokens=20)
    closing = threading.Thread(target=lambda: engine.close(finish=True), daemon=True)
    with stopped(engine):
        streams = engine.stream_batch([PROMPT] * 3, sampler=GREEDY, max_tokens=20, window=2)
        closing.start()
        until(lambda: not engine.model.thread.is_open)
    closing.join(60)
    assert not closing.is_alive()
    assert ["".join(stream) for stream in streams] == [expected] * 3


def let_others_run() -> None:
    for _ in range(100):
        time.sleep(0)


def test_threads_that_submit_together_do_not_overfill_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InferenceEngine.from_gguf(
        demo.STORY, num_threads=1, scheduler=SchedulerConfig(max_sequences=1, max_waiting=3)
    )
    loop = engine.model.loop
    real = loop.check_room

    def check_room(*arguments: Any) -> None:
        real(*arguments)
        let_others_run()

    monkeypatch.setattr(loop, "check_room", check_room)
    with stopped(engine):
        found = together(8, lambda: engine.stream(PROMPT, sampler=GREEDY, max_tokens=2))
    taken = [stream for stream in found if isinstance(stream, Generation)]
    assert len(taken) == 3
    assert sum(isinstance(error, QueueFull) for error in found) == 5
    assert all(stream.result().finish_reason == "length" for stream in taken)


def test_what_is_taken_while_the_engine_closes_is_cancelled_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    closing, real = threading.Thread(target=engine.close), engine.model.scheduler.clock

    def clock() -> float:
        if threading.current_thread() is threading.main_thread() and closing.ident is None:
            closing.start()
            let_others_run()
        return real()

    monkeypatch.setattr(engine.model.scheduler, "clock", clock)
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=400, window=None)
    with pytest.raises(EngineClosed):
        list(stream)
    closing.join(60)
    assert not closing.is_alive()


def test_threads_that_call_first_together_start_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[threading.Thread] = []
    real = threading.Thread.__init__

    def init(thread: threading.Thread, *args: Any, **kwargs: Any) -> None:
        real(thread, *args, **kwargs)
        if thread.name == "oxillama":
            made.append(thread)
            let_others_run()

    monkeypatch.setattr(threading.Thread, "__init__", init)
    thread = EngineThread()
    assert set(together(6, lambda: thread.call(threading.get_ident))) == {made[0].ident}
    assert len(made) == 1
    thread.close()


def test_threads_that_prefill_a_session_together_take_turns(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.model.call

    def call(job: Callable[[], Any]) -> Any:
        found = real(job)
        let_others_run()
        return found

    engine.model.config = replace(engine.model.config, prefill_chunk_size=1)
    monkeypatch.setattr(engine.model, "call", call)
    numbers = iter(range(5, 9))
    with engine.session() as session:
        assert not [
            e for e in together(4, lambda: session.prefill([next(numbers)] * 6)) if isinstance(e, Exception)
        ]
        runs = [session.tokens[i : i + 6] for i in range(0, 24, 6)]
        assert all(len(set(run)) == 1 for run in runs)
        assert len({run[0] for run in runs}) == 4
        assert same_bits(session.forward(5), engine.logits(session.tokens)[-1])


def test_a_thread_with_the_number_of_an_engines_thread_that_has_ended_is_outside() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    engine.generate("Once", max_tokens=1)
    engine.close()
    ended = engine.model.thread._thread
    assert ended is not None
    ended._ident = threading.get_ident()  # type: ignore[attr-defined]  # numbers are given again
    with pytest.raises(EngineClosed):
        engine.model.call(int)
