"""One pool of pages for the keys and values of all sequences.

A page holds `page_size` tokens of every layer. Memory comes in slabs of pages, allocated as they are
needed and given back by `shrink_to_fit`; a page belongs to whoever holds a reference to it. The states of
recurrent layers (`SsmStatePool`) share the pool's limit: a state in use takes the room of so many pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama.errors import KvCacheFullError

if TYPE_CHECKING:
    from oxillama.cache.recurrent import SsmStatePool

SLAB_BYTES = 4 << 20  # about what is allocated at a time, where there are no states


@dataclass
class _Slab:
    """Pages ``first`` to ``first + n``; their numbers outlive the memory, which may come back."""

    first: int
    n: int
    memory: np.ndarray | None


class PagePool:
    """Pages of keys and values, handed out by number.

    Parameters
    ----------
    shape : `KvShape` of the kernels.
    page_size : tokens per page, as in ``shape``.
    max_pages : the pool never grows beyond this, or its states beyond as much memory.

    Attributes
    ----------
    addresses : int64 (page numbers,), where each page lies in memory; 0 for one that has none.
    reclaim : asked, with a number of pages, to release as many where `allocate` would otherwise fail;
        None where nobody can.
    states : of recurrent layers, where the model has such; None where it has not.
    """

    def __init__(self, shape: Any, page_size: int, max_pages: int) -> None:
        self.shape = shape
        self.page_size = page_size
        self.max_pages = max_pages
        self.page_bytes: int = shape.page_bytes
        self.stride: int = -(-self.page_bytes // 64) * 64
        self.addresses = np.empty(0, np.int64)
        self.reclaim: Callable[[int], object] | None = None
        self.states: SsmStatePool | None = None
        self._slabs: list[_Slab] = []
        self._references: list[int] = []
        self._free: list[int] = []
        self._live = 0

    @property
    def n_pages(self) -> int:
        """Pages that have memory."""
        return self._live

    @property
    def n_available(self) -> int:
        """Pages that can still be allocated, without anything being reclaimed."""
        states = 0 if self.states is None else self.states.n_used * self.states.slot_pages
        return self.max_pages - self.n_used - states

    @property
    def n_used(self) -> int:
        """Pages that somebody holds."""
        return self._live - len(self._free)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the pool and its states hold."""
        return self._live * self.stride + (0 if self.states is None else self.states.memory_bytes)

    def pages_for(self, n_tokens: int) -> int:
        """Pages that ``n_tokens`` tokens fill."""
        return -(-n_tokens // self.page_size)

    def can_allocate(self, n: int) -> bool:
        """Whether ``n`` pages are there to be taken, once others have released what they can spare."""
        if n > self.n_available and self.reclaim is not None:
            self.reclaim(n - self.n_available)
        return n <= self.n_available

    def allocate(self, n: int) -> list[int]:
        """Takes ``n`` pages, each with one reference.

        Raises
        ------
        KvCacheFullError : fewer are available; then none is taken.
        """
        if not self.can_allocate(n):
            raise KvCacheFullError(
                f"{n} pages of {self.page_size} tokens needed, {self.n_available} available"
            )
        while len(self._free) < n:
            self._grow()
        taken = [self._free.pop() for _ in range(n)]
        for page in taken:
            self._references[page] = 1
        return taken

    def references(self, page: int) -> int:
        """How many hold a page."""
        return self._references[page]

    def retain(self, pages: Iterable[int]) -> None:
        """Adds a reference to each page."""
        for page in pages:
            assert self._references[page] > 0, "only a page in use can be shared"
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drops a reference to each page; one that has none left is free again."""
        for page in pages:
            assert self._references[page] > 0, "a page is released as often as it was taken"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def page(self, number: int) -> np.ndarray:
        """uint8 (page_bytes,): the memory of a page in use, all layers."""
        slab = self._slab_of(number)
        assert slab.memory is not None
        start = (number - slab.first) * self.stride
        return slab.memory[start : start + self.page_bytes]

    def copy(self, page: int) -> int:
        """A new page with the bytes of another. Raises KvCacheFullError."""
        fresh = self.allocate(1)[0]
        self.page(fresh)[:] = self.page(page)
        return fresh

    def shrink_to_fit(self, keep_bytes: int = 0) -> None:
        """Gives back to the system the slabs of which no page is in use, but for ``keep_bytes``."""
        free = set(self._free)
        given = []
        for slab in reversed(self._slabs):
            spare = (self._live - slab.n) * self.stride
            if slab.memory is not None and spare >= keep_bytes and free.issuperset(self._numbers(slab)):
                slab.memory = None
                self._live -= slab.n
                given.append(slab)
        for slab in given:
            free.difference_update(self._numbers(slab))
            self.addresses[slab.first : slab.first + slab.n] = 0
        if self.states is not None:
            self.states.shrink_to_fit()
        if given:
            self._free = [page for page in self._free if page in free]

    def make_way(self, n: int) -> None:
        """Gives back what is free if ``n`` pages more of memory would pass the limit."""
        states = 0 if self.states is None else self.states.n_live * self.states.slot_pages
        if self._live + states + n > self.max_pages:
            self.shrink_to_fit()

    def check_integrity(self, holders: Iterable[Iterable[int]] | None = None) -> None:
        """Asserts that every page is either free or referenced, and free only once.

        With ``holders``, the page numbers that each holder has, also that the references are theirs:
        free + held = all.
        """
        assert len(self._free) == len(set(self._free)), "a page is free twice"
        bare = {page for slab in self._slabs if slab.memory is None for page in self._numbers(slab)}
        unused = {p for p, n in enumerate(self._references) if n == 0}
        assert unused == set(self._free) | bare, "a page is lost"
        assert not bare & set(self._free), "a page without memory is free"
        assert len(self.addresses) == len(self._references) == self._live + len(bare)
        assert self.memory_bytes <= self.max_pages * self.stride
        if self.states is not None:
            self.states.check_integrity()
        if holders is not None:
            held = Counter(page for pages in holders for page in pages)
            counted = {p: n for p, n in enumerate(self._references) if n}
            assert held == counted, f"pages held and counted differ: {held - Counter(counted)}, {counted}"

    @staticmethod
    def _numbers(slab: _Slab) -> range:
        return range(slab.first, slab.first + slab.n)

    def _slab_of(self, number: int) -> _Slab:
        """Slabs but the last are of one size, so the place follows from the number."""
        return self._slabs[number // self._slabs[0].n]

    def _grow(self) -> None:
        slab = next((s for s in self._slabs if s.memory is None), None) or self._new_slab()
        self.make_way(slab.n)
        try:
            slab.memory = aligned_empty(slab.n * self.stride)
        except MemoryError as error:
            raise KvCacheFullError(f"no memory for {slab.n} more pages of {self.page_bytes} bytes") from error
        self._live += slab.n
        self._free += reversed(self._numbers(slab))
        fresh = slab.memory.ctypes.data + self.stride * np.arange(slab.n, dtype=np.int64)
        self.addresses[slab.first : slab.first + slab.n] = fresh

    def _new_slab(self) -> _Slab:
        """Numbers for a slab more, which has no memory yet."""
        first = len(self._references)
        # beside states pages come one by one, so that what pages leave free a state can always have
        most = 1 if self.states is not None else max(1, SLAB_BYTES // self.stride)
        slab = _Slab(first, min(most, self.max_pages - first), None)
        self._slabs.append(slab)
        self._references += [0] * slab.n
        self.addresses = np.concatenate([self.addresses, np.zeros(slab.n, np.int64)])
        return slab
