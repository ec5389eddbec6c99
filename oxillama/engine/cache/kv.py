"""Keys and values of one sequence, in pages of a pool.

`PagedKvCache` has a block table for each page group: pages in order of position, some perhaps shared with
other sequences or with the prefix cache. A shared page is copied whole before a position in it is written.
Memory behind the last position is never read. Pages that are out of the window of all later rows are freed.
`contiguous` has the case of one page as long as the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from oxillama.base.lazy_import import lazy
from oxillama.engine.cache.kv_pool import KvCachePool
from oxillama.engine.cache.pages import CachePool, PagePool
from oxillama.errors import ConfigError

NO_PAGE = -1
"""In the place of the number of a page that was freed."""


def held(pages: Iterable[int]) -> list[int]:
    """The numbers of the pages that are not freed."""
    return [page for page in pages if page != NO_PAGE]


class BlockTable:
    """Pages in order of position, of which the first may have been freed.

    Attributes:
        pages: page numbers; `NO_PAGE` for those before `first`.
        first: number of freed pages at the beginning, which are out of the window of all later rows.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.pages: list[int] = []
        self.first: int = 0

    @property
    def held(self) -> list[int]:
        """The pages that it holds a reference to."""
        return self.pages[self.first :] if self.first else self.pages

    @property
    def held_bytes(self) -> int:
        """Bytes of those pages, shared ones included."""
        return (len(self.pages) - self.first) * self.pool.stride

    def is_shared(self, start: int) -> bool:
        """Whether the page of position ``start`` has other owners, too."""
        at = start // self.pool.page_size
        return self.first <= at < len(self.pages) and self.pool.references(self.pages[at]) > 1

    def missing(self, start: int, end: int) -> int:
        """Pages to allocate before the positions ``start`` to ``end`` can be written."""
        pool, pages = self.pool, self.pages  # asked in every step for every sequence: no further calls
        missing, at = -(-end // pool.page_size) - len(pages), start // pool.page_size
        is_shared = self.first <= at < len(pages) and pool.reference_counts[pages[at]] > 1
        return (missing if missing > 0 else 0) + (is_shared and start < end)

    def demand(self, start: int, end: int, rows: int) -> int:
        """Pages to allocate until the positions ``start`` to ``end`` have run, ``rows`` at a time at most."""
        missing = self.missing(start, end)
        if not self.pool.has_window:
            return missing
        # from the middle of a page to the middle of another
        most = self.pool.pages_for(self.pool.reach.most + rows) + 1
        return min(missing, max(0, most - (len(self.pages) - self.first)))

    def take(self, start: int, pages: list[int]) -> None:
        """Makes positions from ``start`` on writable with newly allocated pages, see `missing`."""
        if self.is_shared(start):
            at = start // self.pool.page_size
            fresh, old = pages.pop(), self.pages[at]
            self.pool.copy_page(fresh, old)
            self.pages[at] = fresh
            self.pool.release([old])
        self.pages += pages

    def adopt(self, pages: Iterable[int]) -> None:
        """Takes over pages and their references; the table must be empty."""
        assert not self.pages
        self.pages = list(pages)
        self.first = next((i for i, page in enumerate(self.pages) if page != NO_PAGE), len(self.pages))

    def can_continue(self, n_tokens: int) -> bool:
        """Whether it has all pages that the rows from position ``n_tokens`` on see."""
        return not self.first or self.pool.reach.first_seen(n_tokens) // self.pool.page_size >= self.first

    def free_out_of_window(self, n_tokens: int, keep: int = 0) -> bool:
        """Frees the pages that no row from position ``n_tokens`` on sees, except the last ``keep`` of them.

        Returns whether any were freed.
        """
        end = min(self.pool.reach.first_seen(n_tokens) // self.pool.page_size, len(self.pages)) - keep
        if end <= self.first:
            return False
        self.pool.release(self.pages[self.first : end])
        self.pages[self.first : end] = [NO_PAGE] * (end - self.first)
        self.first = end
        return True

    def truncate(self, n_tokens: int) -> bool:
        """Frees the pages behind the first ``n_tokens`` tokens; returns whether any were freed."""
        kept = self.pool.pages_for(n_tokens)
        if kept >= len(self.pages):
            return False
        self.pool.release(self.pages[max(kept, self.first) :])
        del self.pages[kept:]
        self.first = min(self.first, kept)
        return True

    def fork(self, n_tokens: int) -> BlockTable:
        """A second table that shares the pages of the first ``n_tokens`` tokens."""
        other = BlockTable(self.pool)
        other.pages = self.pages[: self.pool.pages_for(n_tokens)]
        other.first = min(self.first, len(other.pages))
        self.pool.retain(other.held)
        return other


REWIND_BYTES = 32 << 20
"""Maximum bytes of pages out of window that a sequence keeps for `truncate`."""


class PagedKvCache:
    """The block tables of one sequence.

    Args:
        keeps_more: whether it keeps pages that a window has passed, within `REWIND_BYTES`, for `truncate`.

    Attributes:
        tables: one for each group of the pool.
        version: is incremented whenever their pages change.
    """

    def __init__(self, pool: CachePool, keeps_more: bool = False) -> None:
        self.pool = pool
        self.keeps_more = keeps_more
        self.tables: list[BlockTable] = [BlockTable(group) for group in pool.groups]
        self.version: int = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit in its pages."""
        return len(self.tables[0].pages) * self.pool.page_size

    @property
    def memory_bytes(self) -> int:
        """Bytes of its pages, shared ones included."""
        return sum(table.held_bytes for table in self.tables)

    @property
    def pages(self) -> list[list[int]]:
        """The numbers of the pages that it holds a reference to, by group."""
        return [table.held for table in self.tables]

    @property
    def slots(self) -> list[int]:
        """Slots of recurrent states with a reference of this sequence: none."""
        return []

    @property
    def all_records(self) -> list[int]:
        """Records for recurrent states with a reference of this sequence: none."""
        return []

    def settled_of(self, n_tokens: int) -> int:
        """After how many of the ``n_tokens`` tokens that have run others can continue: all."""
        return n_tokens

    def state_after(self, n_tokens: int) -> int | None:
        """The slot of the recurrent state after ``n_tokens`` tokens: none."""
        return None

    def shortage(self, start: int, end: int, n_open: int = 0) -> int:
        """Bytes that `reserve` would allocate."""
        needed = 0
        for table in self.tables:
            needed += table.missing(start, end) * table.pool.stride
        return needed

    def demand(self, start: int, end: int, rows: int, shared: bool) -> int:
        """Bytes of memory to run the positions ``start`` to ``end``, in passes of at most ``rows`` rows.

        ``shared``: other sequences take over a recurrent state in between.
        """
        return sum(table.demand(start, end, rows) * table.pool.stride for table in self.tables)

    def free_out_of_window(self, n_tokens: int) -> None:
        """Frees the pages that no row from position ``n_tokens`` on sees."""
        for table in self.tables:
            if table.pool.has_window:
                keep = REWIND_BYTES // table.pool.stride if self.keeps_more else 0
                self.version += table.free_out_of_window(n_tokens, keep)

    def drop_checkpoints(self, n_tokens: int) -> bool:
        """Frees what only `truncate` to less than ``n_tokens`` tokens needs; whether there was any."""
        freed = [table.free_out_of_window(n_tokens) for table in self.tables]
        self.version += any(freed)
        return any(freed)

    def reserve(self, start: int, end: int, n_open: int = 0) -> None:
        """Makes the positions ``start`` to ``end`` writable; positions from ``start`` on hold nothing yet.

        The last ``n_open`` tokens may be truncated later, which pages always allow.

        Raises KvCacheFullError; then nothing has changed.
        """
        if not PagedKvCache.shortage(self, start, end):
            return
        missing = [table.missing(start, end) for table in self.tables]
        for table, pages in zip(self.tables, self.pool.allocate(missing)):
            table.take(start, pages)
        self.version += 1

    def adopt(self, pages: Sequence[list[int]], n_tokens: int, slot: int | None = None) -> None:
        """Takes over the pages of ``n_tokens`` tokens and their references. The cache must be empty."""
        for table, numbers in zip(self.tables, pages):
            assert len(numbers) == self.pool.pages_for(n_tokens)
            table.adopt(numbers)
        assert self._can_continue(n_tokens)
        self.version += 1

    def _can_continue(self, n_tokens: int) -> bool:
        """Whether a row at position ``n_tokens`` finds all pages that it sees."""
        return all(table.can_continue(n_tokens) for table in self.tables)

    def truncate(self, n_tokens: int) -> int:
        """Frees the pages behind the first ``n_tokens`` tokens; returns the number of tokens that are left.

        It is ``n_tokens``, or 0 if pages that the next row would see were freed.
        """
        kept = n_tokens if self._can_continue(n_tokens) else 0
        freed = [table.truncate(kept) for table in self.tables]
        self.version += any(freed)
        return kept

    def shrink_to_fit(self, n_tokens: int) -> None:
        """As `truncate`: there are no spare pages."""
        self.truncate(n_tokens)

    def fork(self, n_tokens: int) -> tuple[PagedKvCache, int]:
        """A second cache that shares the pages of the first ``n_tokens`` tokens, and its number of tokens.

        It is ``n_tokens``, or 0 if pages that the next row would see were freed.
        """
        other = PagedKvCache(self.pool, self.keeps_more)
        return other, other._share(self, n_tokens)

    def _share(self, other: PagedKvCache, n_tokens: int) -> int:
        """Shares the pages of ``other``; returns the number of their tokens."""
        kept = n_tokens if other._can_continue(n_tokens) else 0
        self.tables = [table.fork(kept) for table in other.tables]
        return kept

    def snapshot(self, n_tokens: int) -> list[np.ndarray]:
        """Copies of the pages that rows from ``n_tokens`` on see: uint8 (pages, bytes) for each group."""
        found = []
        for table in self.tables:
            group = table.pool
            seen = group.reach.first_seen(n_tokens) // group.page_size
            pages = table.pages[seen : group.pages_for(n_tokens)]
            found.append(group.read_pages(pages))
        return found

    def restore(self, data: Sequence[np.ndarray], n_tokens: int) -> None:
        """Replaces its pages by copies of a `snapshot`. Raises KvCacheFullError."""
        fresh = self.pool.allocate(len(pages) for pages in data)
        for group, numbers, pages in zip(self.pool.groups, fresh, data):
            group.write_pages(numbers, pages)
        self.release()
        for table, numbers in zip(self.tables, fresh):
            passed = self.pool.pages_for(n_tokens) - len(numbers)
            table.adopt([NO_PAGE] * passed + numbers)
        self.version += 1

    def release(self) -> None:
        """Frees everything."""
        self.truncate(0)

    def keys(self, layer: int, n_tokens: int) -> Iterator[np.ndarray]:
        """float32 (heads, key_dim) of each of the first ``n_tokens`` tokens. Raises ConfigError.

        Tokens whose pages were freed are left out.
        """
        return self._rows(layer, n_tokens, 0)

    def values(self, layer: int, n_tokens: int) -> Iterator[np.ndarray]:
        """float32 (heads, value_dim) of the same tokens. Raises ConfigError."""
        return self._rows(layer, n_tokens, 1)

    def _rows(self, layer: int, n_tokens: int, which: int) -> Iterator[np.ndarray]:
        table, index = self._place(layer)
        size, pool = self.pool.page_size, table.pool
        least = table.first * size
        if not (n_tokens == 0 or least < n_tokens <= self.capacity):
            raise ConfigError(f"n_tokens: expected {least} to {self.capacity}, got {n_tokens}")
        assert isinstance(pool, KvCachePool)
        for i, page in enumerate(table.pages[: pool.pages_for(n_tokens)]):
            if i >= table.first:
                yield from pool.read(page, index)[which][: n_tokens - i * size]

    def _place(self, layer: int) -> tuple[BlockTable, int]:
        """The table of a layer and its index in the pages. Raises ConfigError."""
        known = 0
        for table in self.tables:
            if not isinstance(table.pool, KvCachePool):
                raise ConfigError(f"pool: expected a KvCachePool, got {type(table.pool).__name__}")
            if layer in table.pool.layers:
                return table, table.pool.layers.index(layer)
            known = max((known, *table.pool.layers))
        raise ConfigError(f"layer: expected 0 to {known}, got {layer}")


new_recurrent_cache: Callable[..., Any] = lazy("oxillama.engine.cache.recurrent:RecurrentCache")

CHECKPOINTS = 6
"""Earlier states of a recurrent model that a sequence keeps at most."""


def new_cache(pool: CachePool, checkpoints: int) -> PagedKvCache:
    """An empty cache for one sequence, with at most so many checkpoints if the model is recurrent.

    Without checkpoints, it keeps no pages either that windows have passed.
    """
    states = pool.recurrent_states
    if states is None:
        return PagedKvCache(pool, checkpoints > 0)
    cache: PagedKvCache = new_recurrent_cache(pool, states, checkpoints)
    return cache
