"""Values that take long to make, by key: each is made once, and nobody waits for another's."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from oxillama.locks import ForkedOpen

T = TypeVar("T")
V = TypeVar("V")


class Making(Generic[V]):
    """A value that is there, or that a thread of this process makes: the one that holds the gate.

    The gate is closed before the entry can be found, and whoever closed it opens it, so an interrupt,
    wherever it comes, leaves nothing to wait for.

    Attributes
    ----------
    gate : held by its thread while that makes it, and for a moment by those who waited.
    has_ended : whether that thread makes it no more.
    """

    def __init__(self) -> None:
        self.process: int = os.getpid()
        self.gate = threading.RLock()
        self.has_ended = False
        self.error: Exception | None = None
        self.value: V

    def is_made(self) -> bool:
        return hasattr(self, "value")

    def is_lost(self) -> bool:
        """Whether nobody makes it: its thread was interrupted, or is one of the process that forked this."""
        return not self.is_made() and (self.has_ended or self.process != os.getpid())


class MadeOnce(Generic[V]):
    """Keeps the ``most`` values that were used last. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: OrderedDict[Hashable, Making[V]] = OrderedDict()
        self._lock = ForkedOpen()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, made unless it is there; a thread that makes it is waited for.

        Raises what ``make`` raises, and keeps nothing then.
        """
        while True:
            mine: Making[V] = Making()
            try:  # as in `locked`
                mine.gate.acquire()
                making = self._entered(key, mine)
                if making is mine:
                    return self._made(key, mine, make)
            finally:
                mine.has_ended = True
                mine.gate.release()
            if not making.is_made():
                locked(making.gate, lambda: None)  # waits
            if making.is_made():
                return making.value
            if making.error is not None:
                raise making.error  # else its thread was interrupted, and this one tries

    def _entered(self, key: Hashable, mine: Making[V]) -> Making[V]:
        def enter() -> Making[V]:
            making = self._found.get(key)
            if making is None or making.is_lost():
                making = self._found[key] = mine
            self._found.move_to_end(key)
            return making

        return locked(self._lock.lock, enter)

    def _made(self, key: Hashable, mine: Making[V], make: Callable[[], V]) -> V:
        try:
            mine.value = make()
        except Exception as error:
            mine.error = error
            raise
        finally:
            locked(self._lock.lock, partial(self._forget, key, mine))
        return mine.value

    def _forget(self, key: Hashable, mine: Making[V]) -> None:
        """Drops a value that was not made, and the oldest ones of too many."""
        if not mine.is_made() and self._found.get(key) is mine:
            del self._found[key]
        for old in [key for key, each in self._found.items() if each.is_made() or each.is_lost()]:
            if len(self._found) <= self.most:
                break
            del self._found[old]


def locked(lock: threading.RLock, action: Callable[[], T]) -> T:
    """What an action returns that runs with a lock, which no interrupt leaves locked.

    An interrupt may come after any call, and in Python 3.14 between the lock of a ``with`` and its block. So
    the lock is taken as the first call of the ``try`` and given back as the first one of its ``finally``. An
    interrupt may also end the wait for the lock, which is another thread's then: a RuntimeError says so.
    """
    try:
        lock.acquire()
        return action()
    finally:
        try:  # noqa: SIM105 - `suppress` would be the first call
            lock.release()
        except RuntimeError:
            pass
