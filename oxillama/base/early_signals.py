"""Signals of a process that serves, before its server handles them.

A service manager may send SIGHUP ("read the keys again") at any moment. Its default action ends the process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130
"""The exit code after SIGINT."""

PENDING: set[int] = set()
"""The numbers of signals that came and were not handled yet."""


class Terminated(BaseException):
    """SIGTERM has come."""


def hold() -> None:
    """Notes SIGHUP, ignores SIGUSR1 and SIGUSR2, and has SIGINT end the process without a traceback.

    Children have the default actions: these are functions, which no new program inherits.
    """
    set_handler("SIGHUP", lambda number, frame: PENDING.add(number))
    for name in ("SIGUSR1", "SIGUSR2"):
        set_handler(name, lambda number, frame: None)
    set_handler("SIGINT", lambda number, frame: os._exit(INTERRUPTED))


@contextmanager
def handled() -> Iterator[None]:
    """Inside the block SIGINT raises KeyboardInterrupt, and SIGTERM unwinds the block and ends the process.

    Other signals are as `hold` has it. Outside of the main thread the block changes nothing.
    """
    try:
        before = {name: signal.getsignal(getattr(signal, name)) for name in NAMES if hasattr(signal, name)}
        hold()
        set_handler("SIGINT", signal.default_int_handler)
        set_handler("SIGTERM", _terminate)
    except ValueError:  # not the main thread
        before = {}
    is_terminated = False
    try:
        yield
    except Terminated:
        is_terminated = True
    finally:
        for name, handler in before.items():
            set_handler(name, handler)
    if is_terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)


NAMES = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGTERM")


def set_handler(name: str, handler: Any) -> None:
    """Sets the handler of a signal that the system has. Raises ValueError outside of the main thread."""
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), handler)


def _terminate(number: int, frame: object) -> None:
    raise Terminated
