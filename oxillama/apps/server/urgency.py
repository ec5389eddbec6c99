"""Priorities at Python's lock: the event loop and the engines come before heavy work.

A thread that waits for the lock asks its holder for it after the switch interval of the process. A thread of
an engine waits for it after each matrix product, some hundred times for a token: with Python's 5 ms a token
takes ten times as long while another thread parses a large body. The interval of a server is therefore short.
Threads that do heavy work do not ask as often, since their timers are late (Linux: timer slack): they have
the lock when others leave it, or after `PATIENCE`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

PR_SET_TIMERSLACK = 29
"""Of Linux's <linux/prctl.h>: nanoseconds by which the timers of a thread may be late."""

AT_ONCE = 1
"""Nanoseconds, for the event loop and engines."""

PATIENCE = 5_000_000
"""Nanoseconds, for heavy work: Python's own interval."""

INTERVAL = 2e-5
"""Seconds until a thread that waits for the lock asks for it, where heavy work can be told to wait longer."""

ELSEWHERE = 5e-4
"""The same on other systems, where each asks as often."""


@lru_cache(None)
def _prctl() -> Any:
    """The function of Linux; None on other systems."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "prctl", None)


def be_urgent() -> None:
    """Lets this thread, and threads that it starts, get the lock at once."""
    _set_slack(AT_ONCE)


def be_patient() -> None:
    """Lets this thread wait for the lock, up to `PATIENCE`, while others want it."""
    _set_slack(PATIENCE)


def _set_slack(nanoseconds: int) -> None:
    prctl = _prctl()
    if prctl is not None:
        prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds), 0, 0, 0)


@contextmanager
def short_turns() -> Iterator[None]:
    """Inside the block the switch interval of the process is short."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(ELSEWHERE if _prctl() is None else INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
