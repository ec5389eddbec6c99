"""Waiting for other threads."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(ready: Callable[[], bool], seconds: float = 20) -> None:
    """Waits for what another thread is about to do."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)
