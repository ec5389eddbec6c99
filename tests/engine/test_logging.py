"""What the engine does is logged; nothing is printed unless somebody listens."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from oxillama import InferenceEngine, demo
from tests.support.waiting import until


def test_loading_and_requests_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "oxillama"):
        engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
        engine.generate("Once upon a time", max_tokens=2)
        until(lambda: any("ended with length" in line for line in caplog.messages))
    assert "loaded a model of architecture llama" in caplog.messages[0]
    n = len(engine.tokenize("Once upon a time"))
    assert f"request 1: {n} tokens, priority 0" in caplog.messages
    assert "request 1: ended with length" in caplog.messages


def test_nobody_is_disturbed() -> None:
    program = "from oxillama import InferenceEngine as E, demo; E(demo.STORY).generate('Once', max_tokens=2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
