"""The limit in bytes that pages of all groups and recurrent states share."""

from __future__ import annotations

import weakref
from collections.abc import Callable

UNLIMITED = 2**62


class MemoryLimit:
    """Counts the bytes of pools; each pool reports what it takes and gives up.

    Parameters
    ----------
    max_bytes : the limit; None for none.

    Attributes
    ----------
    used : bytes of pages and slots that somebody holds.
    live : bytes of memory that the pools have, at most `max_bytes`.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = UNLIMITED if max_bytes is None else max_bytes
        self.used = 0
        self.live = 0
        self._shrink: list[Callable[[], Callable[[], object] | None]] = []
        self._reclaim: Callable[[], Callable[[int], object] | None] = lambda: None

    @property
    def is_limited(self) -> bool:
        return self.max_bytes < UNLIMITED

    @property
    def available(self) -> int:
        """Bytes that can still be taken, without `reclaim`."""
        return self.max_bytes - self.used

    def can_allocate(self, n_bytes: int) -> bool:
        """Whether so many bytes can be taken, once others have released what they can spare."""
        if n_bytes > self.available:
            reclaim = self._reclaim()
            if reclaim is not None:
                reclaim(n_bytes - self.available)
        return n_bytes <= self.available

    def make_room(self, n_bytes: int) -> None:
        """Returns unused memory to the system if so many bytes more would exceed the limit."""
        if self.live + n_bytes > self.max_bytes:
            self.shrink_to_fit()

    def shrink_to_fit(self) -> None:
        """Makes every pool return its unused memory to the system."""
        for reference in self._shrink:
            shrink = reference()
            if shrink is not None:
                shrink()

    def share_with(self, shrink: Callable[[], object]) -> None:
        """Adds a pool: ``shrink``, a method, returns its unused memory. The reference is weak."""
        self._shrink.append(weakref.WeakMethod(shrink))

    def reclaim_from(self, reclaim: Callable[[int], object]) -> None:
        """Sets ``reclaim``, a method that is called with the bytes to release before an allocation fails.

        The reference is weak: the cache that reclaims refers to the pools.
        """
        self._reclaim = weakref.WeakMethod(reclaim)
