"""Locks that a forked child finds open, waits that a Ctrl-C ends, and objects that are not copied."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn


class ForkedOpen:
    """A lock that a forked child finds open, unless the thread that forked holds it: no other is there.

    Attributes:
        lock: reentrant. To be used as ``with it.lock``: in an ``__enter__`` of our own, a Ctrl-C could leave
            it locked.
    """

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        _locks.add(self)


_locks: weakref.WeakSet[ForkedOpen] = weakref.WeakSet()


def _open_all() -> None:
    for holder in list(_locks):
        if not holder.lock._is_owned():
            holder.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_all)


def waited(wait: Callable[[], object]) -> None:
    """Calls what waits for another thread: `Thread.start`, `Event.wait`.

    A Ctrl-C in the lock of Python's own `Condition.wait` comes out of that as a RuntimeError; here it comes
    out as itself.
    """
    try:
        wait()
    except RuntimeError as error:
        if error.__context__ is None:
            raise
        raise error.__context__ from None


class NotCopied:
    """A base of objects that belong to one engine in one process."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: cannot be copied or pickled")
