"""The drafter that runs ahead, with sessions that do as the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from oxillama import Sampler, SamplerConfig
from oxillama.speculation import run_ahead
from oxillama.speculation.run_ahead import RunAheadDrafter
from tests.support.waiting import until

N_VOCAB, END, MOST = 20, 19, 3
PROMPT = [1, 2, 3]


class Script:
    """A session whose model goes on with the number after the last, or as ``following`` says."""

    def __init__(self, following: Callable[[list[int]], int] = lambda text: text[-1] + 1) -> None:
        self.following = following
        self.tokens: list[int] = []
        self.n_run = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.is_waiting = threading.Event()
        self.is_closed = False

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_closed = True

    def rewind(self, n: int) -> None:
        assert n <= len(self.tokens)
        del self.tokens[n:]

    def prefill(self, tokens: list[int]) -> np.ndarray:
        self.is_waiting.set()
        assert self.go_on.wait(60)
        self.tokens += tokens
        self.n_run += len(tokens)
        row = np.zeros(N_VOCAB + 4, np.float32)
        row[self.following(self.tokens)] = 9
        row[N_VOCAB:] = 99  # logits without a token
        return row


class Target:
    """What the drafter knows of the target's tokenizer, its sequence and its sampler."""

    eog_ids, n_vocab = frozenset({END}), N_VOCAB

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def copied(self, tokens: list[int]) -> list[int]:
        return tokens


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunAheadDrafter]]:
    """Makes drafters that wait as long as it takes, and ends them."""
    monkeypatch.setattr(run_ahead, "SHARE", 1e9)
    drafters: list[tuple[RunAheadDrafter, Script]] = []

    def make(script: Script, context: int = 100, **sampling: Any) -> RunAheadDrafter:
        sampler = Sampler(SamplerConfig(temperature=0, **sampling))
        drafter = RunAheadDrafter("script", lambda: script, context, sampler, Target([]), PROMPT, MOST)  # type: ignore
        drafters.append((drafter, script))
        return drafter

    yield make
    for drafter, script in drafters:
        drafter.forget()
        script.go_on.set()
        until(lambda script=script: script.is_closed)  # type: ignore[misc]


def propose(drafter: RunAheadDrafter, tokens: list[int], n: int = MOST) -> list[int]:
    target: Any = Target(tokens)
    (found,) = drafter.propose([target], [target], [n])
    return found


def test_it_is_ahead_before_it_is_asked(made: Callable[..., RunAheadDrafter]) -> None:
    script = Script()
    drafter = made(script)
    until(lambda: len(drafter._ahead) == 2 * MOST + 1)
    assert drafter._ahead == [4, 5, 6, 7, 8, 9, 10]
    assert script.n_run == len(PROMPT) + 2 * MOST  # and waits
    assert propose(drafter, [*PROMPT, 4]) == [5, 6, 7]
    assert propose(drafter, [*PROMPT, 4, 5, 6, 7, 8]) == [9, 10, 11]  # all were right, the bonus too
    until(lambda: len(drafter._ahead) == 2 * MOST + 1)
    assert script.n_run == len(PROMPT) + 5 + 2 * MOST  # each token once


def test_the_text_goes_another_way(made: Callable[..., RunAheadDrafter]) -> None:
    script = Script()
    drafter = made(script)
    assert propose(drafter, [*PROMPT, 4]) == [5, 6, 7]
    assert propose(drafter, [*PROMPT, 4, 5, 11]) == [12, 13, 14]
    assert propose(drafter, [*PROMPT, 9]) == [10, 11, 12]
    assert script.tokens[:4] == [*PROMPT, 9]


def test_what_was_on_its_way_is_dropped(made: Callable[..., RunAheadDrafter]) -> None:
    script = Script()
    script.go_on.clear()
    drafter = made(script)
    assert script.is_waiting.wait(60)  # computes what follows the prompt, as 4
    with drafter._changed:
        drafter._tell([*PROMPT, 9])
    script.go_on.set()
    assert propose(drafter, [*PROMPT, 9]) == [10, 11, 12]


def test_a_slow_drafter_does_not_stop_the_target(
    made: Callable[..., RunAheadDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    script.go_on.clear()
    drafter = made(script)
    monkeypatch.setattr(run_ahead, "SHARE", 0.01)
    assert propose(drafter, [*PROMPT, 4]) == []
    assert not drafter.has_failed
    script.go_on.set()
    monkeypatch.setattr(run_ahead, "SHARE", 1e9)
    assert propose(drafter, [*PROMPT, 4, 5]) == [6, 7, 8]


def test_one_that_fails_proposes_nothing(
    made: Callable[..., RunAheadDrafter], caplog: pytest.LogCaptureFixture
) -> None:
    def following(text: list[int]) -> int:
        if text[-1] == 6:
            raise RuntimeError("out of order")
        return text[-1] + 1

    script = Script(following)
    drafter = made(script)
    until(lambda: drafter.has_failed)
    assert propose(drafter, [*PROMPT, 4]) == []
    assert "script: cannot draft" in caplog.text


def test_what_fails_when_it_is_over_is_no_failure(
    made: Callable[..., RunAheadDrafter], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(Mock(side_effect=RuntimeError("the engine is closed")))
    script.go_on.clear()
    drafter = made(script)
    assert script.is_waiting.wait(60)
    drafter.forget()
    script.go_on.set()
    until(lambda: script.is_closed)
    until(lambda: not [t for t in threading.enumerate() if t.name == "oxillama drafter"])
    assert not drafter.has_failed
    assert not caplog.records


def test_without_a_thread_nothing_is_proposed(
    made: Callable[..., RunAheadDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        drafter = made(script)
    script.is_closed = True
    assert drafter.has_failed
    assert propose(drafter, [*PROMPT, 4]) == []


def test_it_ends_with_an_end_and_with_its_context(made: Callable[..., RunAheadDrafter]) -> None:
    drafter = made(Script(lambda text: END if text[-1] == 5 else text[-1] + 1))
    assert propose(drafter, PROMPT, 9) == [4, 5, END]
    short = made(Script(), context=len(PROMPT) + 2)
    assert propose(short, PROMPT, 9) == [4, 5]


def test_its_sampler_knows_the_text(made: Callable[..., RunAheadDrafter]) -> None:
    """Its penalties and its state follow the text where that goes another way."""
    drafter = made(Script(lambda text: 7), presence_penalty=10.0, repetition_window=2)
    assert propose(drafter, [*PROMPT, 7])[:2] == [0, 1]
    assert propose(drafter, [*PROMPT, 7, 8, 9])[0] == 7
    until(lambda: len(drafter._ahead) == 2 * MOST + 1)
    assert drafter._sampler.history.tolist() == [7, 8, 9, *drafter._ahead]
