"""Waiting for other threads, and having an engine wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oxillama import InferenceEngine


def until(ready: Callable[[], bool], seconds: float = 20) -> None:
    """Waits for what another thread is about to do."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


@contextmanager
def stopped(engine: InferenceEngine) -> Iterator[None]:
    """The engine's thread takes no steps and no commands."""
    reached, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        go_on.wait(60)

    caller = threading.Thread(target=lambda: engine.model.call(wait))
    caller.start()
    try:
        assert reached.wait(20)
        yield
    finally:
        go_on.set()
        caller.join(20)
