"""Threads that enter OpenMP, so that forks are safe.

libgomp keeps its worker threads with the thread that entered a parallel region. A forked child inherits that
thread without its workers, and would wait for them for ever. So no thread of a caller enters OpenMP, only the
engine's thread, and one thread of this module for all other work. A child starts new threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

_local = threading.local()
_executor: ThreadPoolExecutor | None = None
_starting = threading.Lock()


def may_enter_openmp() -> None:
    """Marks the calling thread as one that may enter OpenMP, because it does not survive a fork."""
    _local.may_enter = True


def in_openmp_thread(work: Callable[[], T]) -> T:
    """Runs ``work`` in the calling thread if it may enter OpenMP, else in this module's thread."""
    global _executor
    if getattr(_local, "may_enter", False):
        return work()
    from concurrent.futures import ThreadPoolExecutor  # lazy import

    with _starting:
        if _executor is None:
            _executor = ThreadPoolExecutor(1, "oxillama-openmp", initializer=may_enter_openmp)
    return _executor.submit(work).result()


def _forget() -> None:
    global _executor, _starting
    _executor, _starting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
