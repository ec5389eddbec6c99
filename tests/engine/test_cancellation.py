"""Cancelling and timeouts act between two layers, in the middle of a prefill chunk too."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from oxillama import EngineClosed, SamplerConfig, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.models.layers.layer import Layer
from tests.support.kernels import same_bits
from tests.support.waiting import until

GREEDY = SamplerConfig.greedy()
LONG = "word " * 90


class Gate:
    """Stops passes before a layer until it is opened, and counts the layers that were run."""

    def __init__(self, engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.reached, self.opened, self.n_run = threading.Event(), threading.Event(), 0
        self.layers = engine.model.runner.model.layers
        real = Layer.run

        def run(layer: Layer, *args: Any) -> None:
            if layer in self.layers:
                if self.layers.index(layer) == at and not self.opened.is_set():
                    self.reached.set()
                    assert self.opened.wait(60)
                self.n_run += 1
            real(layer, *args)

        monkeypatch.setattr(Layer, "run", run)


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_prompt_ends_in_the_middle_of_its_chunk(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    expected = engine.generate("Mia", sampler=GREEDY, max_tokens=10)
    gate = Gate(engine, monkeypatch, at=1)
    stream = engine.stream(LONG, sampler=GREEDY, max_tokens=5, timeout=60)
    assert gate.reached.wait(60)
    if how == "cancel":
        stream.cancel()
    else:
        stream._request.deadline = engine.model.loop._deadline = 0.0
    gate.opened.set()
    assert list(stream) == []
    assert stream.finish_reason == ("cancelled" if how == "cancel" else "timeout")
    until(lambda: not engine.model.scheduler.running)
    assert gate.n_run == 2  # layers of one chunk
    assert engine.generate("Mia", sampler=GREEDY, max_tokens=10) == expected
    assert engine.generate(LONG, sampler=GREEDY, max_tokens=5)
    engine.model.check_integrity()


def test_closing_the_engine_gives_up_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    gate = Gate(engine, monkeypatch, at=1)
    stream = engine.stream(LONG, sampler=GREEDY, max_tokens=5)
    assert gate.reached.wait(60)
    closing = threading.Thread(target=engine.close)
    closing.start()
    until(lambda: bool(stream._request.cancelled))
    gate.opened.set()
    closing.join(60)
    assert not closing.is_alive()
    assert gate.n_run == 2
    with pytest.raises(EngineClosed):
        list(stream)


def test_a_session_goes_on_after_a_pass_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    whole = engine.logits([5, 6, 7, 8])
    with engine.session() as session:
        session.prefill([5, 6, 7])
        gate = Gate(engine, monkeypatch, at=1)
        stream = session.stream(sampler=GREEDY, max_tokens=5)
        assert gate.reached.wait(60)
        stream.cancel()
        gate.opened.set()
        assert list(stream) == []
        assert session.tokens == [5, 6, 7]
        assert same_bits(session.forward(8), whole[-1])
        engine.model.check_integrity()


def test_a_small_part_of_a_pass_is_told_at_once_and_the_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    prompts = ["Once upon a time", "The old toad and the fox", LONG]
    expected = [engine.generate(p, sampler=GREEDY, max_tokens=5, salt="alone") for p in prompts]
    gate = Gate(engine, monkeypatch, at=1)
    gate.opened.set()
    first = engine.stream(prompts[0], sampler=GREEDY, max_tokens=400, window=1)
    next(first)
    gate.opened.clear()
    gate.reached.clear()
    others = engine.stream_batch(prompts[1:], sampler=GREEDY, max_tokens=5)
    assert gate.reached.wait(60)
    others[0].cancel()
    before = gate.n_run
    gate.opened.set()
    assert list(others[0]) == []
    assert others[1].result().text == expected[2]
    assert gate.n_run - before >= len(gate.layers) - 1  # the pass that was under way was finished
    first.close()
    engine.model.check_integrity()


def test_streams_beside_a_pass_that_is_given_up_get_their_own_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    expected = engine.generate("Once upon a time", sampler=GREEDY, max_tokens=60)
    stream = engine.stream("Once upon a time", sampler=GREEDY, max_tokens=60)
    text = next(stream)
    gate = Gate(engine, monkeypatch, at=2)
    long = engine.stream(LONG, sampler=GREEDY, max_tokens=5)
    assert gate.reached.wait(60)
    long.cancel()
    gate.opened.set()
    assert text + "".join(stream) == expected
    assert list(long) == []
    engine.model.check_integrity()
