"""Values that take long to make, by key: each is made once, and nobody waits for the value of another key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from oxillama.base.deadline import DeadlineExceeded
from oxillama.base.locks import ForkedOpen

V = TypeVar("V")


class Entry(Generic[V]):
    """A value, or the error that making it raised, or neither as long as the value is not made.

    Attributes:
        gate: held by the thread that makes the value.
    """

    def __init__(self) -> None:
        self.gate: ForkedOpen = ForkedOpen()
        self.error: Exception | None = None
        self.value: V


class SingleFlight(Generic[V]):
    """Keeps the ``most`` values that were used last. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: OrderedDict[Hashable, Entry[V]] = OrderedDict()
        self._lock = ForkedOpen()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, made unless it is kept; waits for a thread that makes it.

        Raises what ``make`` raises, in all threads that wait for the value, and keeps nothing then. After an
        interrupt or a passed deadline of the thread that makes the value, the next thread makes it.
        """
        with self._lock.lock:
            entry = self._entries.setdefault(key, Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self.most:
                self._entries.popitem(last=False)
        with entry.gate.lock:
            if entry.error is not None:
                raise entry.error
            if not hasattr(entry, "value"):
                try:
                    entry.value = make()
                except DeadlineExceeded:
                    raise
                except Exception as error:
                    entry.error = error
                    self._forget(key, entry)
                    raise
            return entry.value

    def trim(self, size: Callable[[V], int], most: int) -> None:
        """Forgets values, the least recently used first, until their sizes are at most ``most`` together.

        The one used last stays.
        """
        with self._lock.lock:
            sizes = [
                (key, size(entry.value)) for key, entry in self._entries.items() if hasattr(entry, "value")
            ]
            total = sum(n for _, n in sizes)
            for key, n in sizes[:-1]:
                if total <= most:
                    return
                total -= n
                del self._entries[key]

    def _forget(self, key: Hashable, entry: Entry[V]) -> None:
        with self._lock.lock:
            if self._entries.get(key) is entry:
                del self._entries[key]
