"""What the engine does is logged; nothing is printed unless somebody listens."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from oxillama import (
    ConfigError,
    GenerationOptions,
    GrammarError,
    QueueFull,
    SamplerConfig,
    SchedulerConfig,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from tests.support.waiting import stopped


def test_loading_and_requests_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "oxillama"):
        engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
        engine.generate("Once upon a time", max_tokens=2, request_id="http-7")
        engine.generate("Once upon a time", max_tokens=2)
    assert "loaded a model of architecture llama" in caplog.messages[0]
    n = len(engine.tokenize("Once upon a time"))
    assert f"request 1: {n} tokens, priority 0" in caplog.messages
    ended = [line for line in caplog.messages if "ended with length" in line]
    assert [line.partition(",")[0] for line in ended] == [f"request {i}: ended with length" for i in (1, 2)]
    assert f"{n} + 2 tokens (0 known)" in ended[0]
    about = [r for r in caplog.records if r.getMessage().startswith("request ")]
    names = {r.getMessage().partition(":")[0]: r.__dict__["request_id"] for r in about}
    assert names == {"request 1": "http-7", "request 2": "2"}
    assert [r.levelname for r in about if "ended" in r.getMessage()] == ["INFO", "INFO"]


def test_a_log_at_info_has_nothing_of_the_users(caplog: pytest.LogCaptureFixture) -> None:
    def secret_stage(ids: object, logits: object, history: object) -> None:
        raise ValueError("SECRET in a stage")

    with caplog.at_level(logging.DEBUG, "oxillama"):
        engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
        text = engine.generate("SECRET upon a time", max_tokens=9, stop="SECRET", regex="SECRET|toad")
        with pytest.raises(ValueError, match="SECRET"):
            engine.generate("Once", sampler=SamplerConfig(order=("temperature", secret_stage)))
        with pytest.raises(GrammarError):
            engine.generate("Once", grammar='root ::= "SECRET" unknown')
    assert text in ("", "toad")
    shown = [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO]
    assert not [line for line in shown if "SECRET" in line or "toad" in line]
    assert "request 2: ValueError" in shown
    assert "request 2: SECRET in a stage" in caplog.messages  # only at DEBUG


def test_a_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = SchedulerConfig(max_waiting=1)
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, scheduler=config)
    with stopped(engine):
        first = engine.stream("Once", max_tokens=2)
        with pytest.raises(QueueFull):
            engine.stream("Once", max_tokens=2)
    first.result()
    assert [(r.levelname, r.getMessage()) for r in caplog.records if "refused" in r.getMessage()] == [
        ("WARNING", "the queue is full: requests refused: 1")
    ]
    assert engine.metrics_snapshot().refused == 1


@pytest.mark.parametrize("name", ["", "x" * 201, "two\nlines", "\x1b[31m", 7, "\ud800"])
def test_a_name_of_a_request_stays_on_its_line(name: object) -> None:
    with pytest.raises(ConfigError, match="request_id: expected"):
        GenerationOptions(request_id=name)  # type: ignore[arg-type]


def test_nobody_is_disturbed() -> None:
    program = "from oxillama import InferenceEngine as E, demo; E(demo.STORY).generate('Once', max_tokens=2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
