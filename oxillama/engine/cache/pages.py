"""The memory of all sequences: pages of keys and values for each page group, under one limit.

A page holds `page_size` tokens of every layer of its group. Memory comes in slabs of pages, allocated as they
are needed and returned by `shrink_to_fit`; pages are counted by reference.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels.attention.page_table import PageTable
from oxillama._kernels.memory import aligned_empty
from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.models.page_groups import EVERYTHING, Reach

if TYPE_CHECKING:
    from oxillama.engine.cache.recurrent_states import RecurrentStatePool

UNLIMITED = 2**62


class MemoryLimit:
    """Counts the bytes of pools; each pool reports what it takes and gives up.

    Args:
        max_bytes: the limit; None for unlimited memory.

    Attributes:
        used: bytes of pages and slots that somebody holds.
        live: bytes of memory that the pools have, at most `max_bytes`.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes: int = UNLIMITED if max_bytes is None else max_bytes
        self.used = 0
        self.live = 0
        self._shrink: list[Callable[[], Callable[[], object] | None]] = []
        self._reclaim: list[Callable[[], Callable[[int], object] | None]] = []

    @property
    def is_limited(self) -> bool:
        return self.max_bytes < UNLIMITED

    @property
    def available(self) -> int:
        """Bytes that can still be taken, without `reclaim`."""
        return self.max_bytes - self.used

    def can_allocate(self, n_bytes: int) -> bool:
        """Whether so many bytes can be taken, once others have released what they can do without."""
        for reference in self._reclaim:
            reclaim = reference()
            if n_bytes > self.available and reclaim is not None:
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
        """Adds a method that is called, after the others, with the bytes that an allocation lacks.

        The reference is weak: the cache that reclaims refers to the pools.
        """
        self._reclaim.append(weakref.WeakMethod(reclaim))


SLAB_BYTES = 4 << 20  # approximate size of an allocation


@dataclass(eq=False, repr=False)
class _Slab:
    """Pages ``first`` to ``first + n``. Their numbers stay when `shrink_to_fit` returns the memory."""

    first: int
    n: int
    memory: np.ndarray | None  # uint8 (n, stride)


class PagePool:
    """Pages of keys and values, handed out by number.

    Args:
        shape: `KvShape` of the kernels.
        page_size: tokens per page, as in ``shape``.
        limit: of memory, perhaps shared with other pools; None for unlimited memory.
        reach: how far back the rows of the group's layers see.
        alone: whether nobody shares a limit; otherwise memory comes page by page, so that every free page can
            be given up for what others need.
        page_bytes: of a page in all stages of a pipeline together; None if all of it is here.

    Attributes:
        has_window: whether those rows do not see all positions before them.
        stride: bytes of memory a page takes, counted against the limit.
        table: where the pages lie, for the kernels.
        place: called with the memory of each new slab, uint8 (pages, bytes), before it is written; or None.
    """

    def __init__(
        self,
        shape: Any,
        page_size: int,
        limit: MemoryLimit | None = None,
        reach: Reach = EVERYTHING,
        *,
        alone: bool = True,
        page_bytes: int | None = None,
    ) -> None:
        self.shape = shape
        self.page_size = page_size
        self.limit: MemoryLimit = MemoryLimit() if limit is None else limit
        self.reach = reach
        self.has_window: bool = reach.is_limited
        self.page_bytes: int = shape.page_bytes if page_bytes is None else page_bytes
        self.stride: int = -(-self.page_bytes // 64) * 64
        self._own_bytes: int = shape.page_bytes
        self._own_stride = -(-self._own_bytes // 64) * 64
        self.table: PageTable = PageTable(self._own_bytes)
        self._slab_pages = max(1, SLAB_BYTES // self.stride) if alone or not self.limit.is_limited else 1
        self.place: Callable[[np.ndarray], object] | None = None
        self._slabs: list[_Slab] = []
        self.reference_counts: list[int] = []
        self._free: list[int] = []
        self._live = 0
        self.limit.share_with(self.shrink_to_fit)

    @property
    def n_pages(self) -> int:
        """Pages that have memory."""
        return self._live

    @property
    def n_available(self) -> int:
        """Pages that can still be allocated, without reclaiming any."""
        return self.limit.available // self.stride

    @property
    def n_used(self) -> int:
        """Pages with a reference."""
        return self._live - len(self._free)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pages that have memory."""
        return self._live * self.stride

    def pages_for(self, n_tokens: int) -> int:
        """Pages for ``n_tokens`` tokens: ceil(n_tokens / page_size)."""
        return -(-n_tokens // self.page_size)

    def allocate(self, n: int) -> list[int]:
        """Allocates ``n`` pages, each with one reference.

        Raises:
            KvCacheFullError: fewer are available; then none is taken.
        """
        if not self.limit.can_allocate(n * self.stride):
            raise KvCacheFullError(
                f"kv cache: expected {n} free pages of {self.page_size} tokens, got {self.n_available}"
            )
        while len(self._free) < n:
            self._grow()
        taken = [self._free.pop() for _ in range(n)]
        for page in taken:
            self.reference_counts[page] = 1
        self.limit.used += n * self.stride
        return taken

    def references(self, page: int) -> int:
        """References of a page."""
        return self.reference_counts[page]

    def retain(self, pages: Iterable[int]) -> None:
        """Adds a reference to each page."""
        for page in pages:
            assert self.reference_counts[page] > 0, "only a page in use can be shared"
            self.reference_counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drops a reference to each page; a page without references is free again."""
        for page in pages:
            assert self.reference_counts[page] > 0, "a page is released more often than it was retained"
            self.reference_counts[page] -= 1
            if self.reference_counts[page] == 0:
                self._free.append(page)
                self.limit.used -= self.stride

    def page(self, number: int) -> np.ndarray:
        """uint8 (bytes,): the memory of a page in use, of all layers that are here."""
        slab = self._slab_of(number)
        assert slab.memory is not None
        page: np.ndarray = slab.memory[number - slab.first, : self._own_bytes]
        return page

    def copy_page(self, to: int, source: int) -> None:
        """Copies a page onto another one."""
        self.page(to)[:] = self.page(source)

    def read_pages(self, pages: Sequence[int]) -> np.ndarray:
        """uint8 (pages, page_bytes): copies of pages, all layers."""
        copies = np.array([self.page(page) for page in pages], np.uint8)
        return copies.reshape(-1, self.page_bytes)

    def write_pages(self, pages: Sequence[int], data: np.ndarray) -> None:
        """Writes what `read_pages` returned."""
        for page, source in zip(pages, data):
            self.page(page)[:] = source

    def shrink_to_fit(self, keep_bytes: int = 0) -> None:
        """Returns slabs without a used page to the system, but keeps about ``keep_bytes`` of memory."""
        free = set(self._free)
        freed = []
        for slab in reversed(self._slabs):
            unused = (self._live - slab.n) * self.stride
            if slab.memory is not None and unused >= keep_bytes and free.issuperset(self._numbers(slab)):
                slab.memory = None
                self._live -= slab.n
                self.limit.live -= slab.n * self.stride
                freed.append(slab)
        for slab in freed:
            free.difference_update(self._numbers(slab))
            self.table.remove(slab.first)
        if freed:
            self._free = [page for page in self._free if page in free]

    def check_integrity(self, holders: Iterable[Iterable[int]] | None = None) -> None:
        """Asserts that every page is either free or referenced, and free only once.

        With ``holders``, the page numbers that each holder has, also that the references are theirs:
        free + held = all.
        """
        assert len(self._free) == len(set(self._free)), "a page is free twice"
        bare = {page for slab in self._slabs if slab.memory is None for page in self._numbers(slab)}
        unused = {p for p, n in enumerate(self.reference_counts) if n == 0}
        assert unused == set(self._free) | bare, "a page is lost"
        assert not bare & set(self._free), "a page without memory is free"
        assert len(self.reference_counts) == self._live + len(bare)
        assert set(filterfalse(self.table.has, range(len(self.reference_counts)))) == bare
        assert self.limit.used <= self.limit.live <= self.limit.max_bytes
        if holders is not None:
            held = Counter(page for pages in holders for page in pages)
            counted = {p: n for p, n in enumerate(self.reference_counts) if n}
            assert held == counted, f"pages held and counted differ: {held - Counter(counted)}, {counted}"

    @staticmethod
    def _numbers(slab: _Slab) -> range:
        return range(slab.first, slab.first + slab.n)

    def _slab_of(self, number: int) -> _Slab:
        """The slab of a page. All slabs but the last have the same size."""
        return self._slabs[number // self._slabs[0].n]

    def _grow(self) -> None:
        slab = next((s for s in self._slabs if s.memory is None), None) or self._new_slab()
        self.limit.make_room(slab.n * self.stride)
        try:
            memory = aligned_empty(slab.n * self._own_stride).reshape(slab.n, self._own_stride)
            if self.place is not None:
                self.place(memory)
            self.table.put(slab.first, memory)
        except MemoryError as error:
            message = f"kv cache: expected memory for {slab.n} pages of {self.page_bytes} bytes, got none"
            raise KvCacheFullError(message) from error
        slab.memory = memory
        self._live += slab.n
        self.limit.live += slab.n * self.stride
        self._free += reversed(self._numbers(slab))

    def _new_slab(self) -> _Slab:
        """Numbers for a slab more, which has no memory yet."""
        first = len(self.reference_counts)
        most = self.limit.max_bytes // self.stride - first if self._slab_pages > 1 else 1
        slab = _Slab(first, max(1, min(self._slab_pages, most)), None)
        self._slabs.append(slab)
        self.reference_counts += [0] * slab.n
        return slab


class CachePool:
    """Pools of pages, one for each page group, and the slots of a recurrent model.

    Args:
        groups: the pools of pages, which share a limit and a page size.
        states: slots of recurrent states under the same limit; None for a model without recurrent layers.

    Raises:
        ConfigError: the limit is less than a page of each group and two states, so no sequence could run.

    Attributes:
        limit: of memory.
        page_size: tokens per page.
        has_windows: whether rows of some groups do not see all positions before them.
    """

    def __init__(self, groups: Sequence[PagePool], states: RecurrentStatePool | None = None) -> None:
        self.groups: tuple[PagePool, ...] = tuple(groups)
        self.recurrent_states = states
        self.limit: MemoryLimit = groups[0].limit
        self.page_size: int = groups[0].page_size
        self.has_windows: bool = any(group.has_window for group in groups)
        assert all(group.limit is self.limit and group.page_size == self.page_size for group in groups)
        needed, what = self.page_stride, f"a page of {self.page_size} tokens"
        if states is not None:
            needed += 2 * states.slot_bytes
            what = "two recurrent states and a page of a sequence"
        if needed > self.limit.max_bytes:
            raise ConfigError(
                f"kv_memory_limit: expected at least {needed} bytes, for {what}, got {self.limit.max_bytes}"
            )

    @property
    def page_stride(self) -> int:
        """Bytes of a page of each group."""
        return sum(group.stride for group in self.groups)

    @property
    def n_available(self) -> int:
        """Pages of each group that can still be allocated, without reclaiming any."""
        return self.limit.available // self.page_stride

    @property
    def n_used(self) -> int:
        """Pages of all groups with a reference."""
        return sum(group.n_used for group in self.groups)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pages and slots that have memory."""
        return self.limit.live

    def pages_for(self, n_tokens: int) -> int:
        """Pages of each group for ``n_tokens`` tokens: ceil(n_tokens / page_size)."""
        return -(-n_tokens // self.page_size)

    def allocate(self, counts: Iterable[int]) -> list[list[int]]:
        """Allocates so many pages of each group, each with one reference.

        Raises:
            KvCacheFullError: fewer are available; then none is taken.
        """
        taken: list[list[int]] = []
        try:
            for group, n in zip(self.groups, counts):
                taken.append(group.allocate(n) if n else [])
        except BaseException:
            for group, pages in zip(self.groups, taken):
                group.release(pages)
            raise
        return taken

    def shrink_to_fit(self, keep_bytes: int = 0) -> None:
        """Returns unused memory to the system, but keeps about ``keep_bytes`` of each group's."""
        for group in self.groups:
            group.shrink_to_fit(keep_bytes)
        if self.recurrent_states is not None:
            self.recurrent_states.shrink_to_fit()
            self.recurrent_states.records.shrink_to_fit()

    def check_integrity(self, holders: Iterable[Sequence[Iterable[int]]] | None = None) -> None:
        """Asserts that every page is either free or referenced, and free only once.

        With ``holders``, the page numbers that each holder has of each group, also that the references are
        theirs.
        """
        held = None if holders is None else list(holders)
        for number, group in enumerate(self.groups):
            group.check_integrity(None if held is None else [pages[number] for pages in held])
        if self.recurrent_states is not None:
            self.recurrent_states.check_integrity()
            self.recurrent_states.records.check_integrity()
