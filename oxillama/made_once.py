"""Values that take long to make, by key: each is made once, and nobody waits for another's."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from oxillama.locks import ForkedOpen

V = TypeVar("V")


class Making(Generic[V]):
    """A value that is there, or that a thread of this process makes: the one that holds the gate.

    The gate is closed before the entry can be found, and a ``with`` opens it, so an interrupt, wherever it
    comes, leaves nothing to wait for.
    """

    def __init__(self) -> None:
        self.process: int = os.getpid()
        self.gate: threading.Lock = threading.Lock()
        self.error: Exception | None = None
        self.value: V

    def is_made(self) -> bool:
        return hasattr(self, "value")

    def is_lost(self) -> bool:
        """Whether nobody makes it: its thread was interrupted, or is one of the process that forked this."""
        return not self.is_made() and (not self.gate.locked() or self.process != os.getpid())


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
            with mine.gate:
                making = self._entered(key, mine)
                if making is mine:
                    return self._made(key, mine, make)
            if not making.is_made():
                with making.gate:  # waits
                    pass
            if making.is_made():
                return making.value
            if making.error is not None:
                raise making.error  # else its thread was interrupted, and this one tries

    def _entered(self, key: Hashable, mine: Making[V]) -> Making[V]:
        with self._lock.lock:
            making = self._found.get(key)
            if making is None or making.is_lost():
                making = self._found[key] = mine
            self._found.move_to_end(key)
            return making

    def _made(self, key: Hashable, mine: Making[V], make: Callable[[], V]) -> V:
        try:
            mine.value = make()
        except Exception as error:
            mine.error = error
            raise
        finally:
            with self._lock.lock:
                if not mine.is_made() and self._found.get(key) is mine:
                    del self._found[key]
                for old in [key for key, each in self._found.items() if each.is_made() or each.is_lost()]:
                    if len(self._found) <= self.most:
                        break
                    del self._found[old]
        return mine.value
