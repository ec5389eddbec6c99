"""Values that take long to make, by key: each is made once, and nobody waits for another's."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from oxillama.locks import ForkedOpen, waited

V = TypeVar("V")


class Making(Generic[V]):
    """A value that is there, or that a thread of this process makes."""

    def __init__(self) -> None:
        self.process: int = os.getpid()
        self.done: threading.Event = threading.Event()
        self.error: BaseException | None = None
        self.value: V

    def is_lost(self) -> bool:
        """Whether the thread that makes it is another process's: this one was forked meanwhile."""
        return not self.done.is_set() and self.process != os.getpid()


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
            with self._lock.lock:
                making = self._found.get(key)
                is_ours = making is None or making.is_lost()
                if is_ours:
                    making = self._found[key] = Making()
                assert making is not None
                self._found.move_to_end(key)
            if is_ours:
                return self._made(key, making, make)
            waited(making.done.wait)
            if making.error is None:
                return making.value
            if isinstance(making.error, Exception):
                raise making.error  # else its thread was interrupted, and this one tries

    def _made(self, key: Hashable, making: Making[V], make: Callable[[], V]) -> V:
        try:
            making.value = make()
        except BaseException as error:
            making.error = error
            raise
        finally:
            with self._lock.lock:
                if making.error is not None and self._found.get(key) is making:
                    del self._found[key]
                for old in [key for key, each in self._found.items() if each.done.is_set()]:
                    if len(self._found) <= self.most:
                        break
                    del self._found[old]
            making.done.set()
        return making.value
