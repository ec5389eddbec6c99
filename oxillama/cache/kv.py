"""Keys and values of one sequence, in pages of a pool.

`PagedKvCache` is a block table: pages in order of position, some perhaps shared with other sequences or with
the prefix cache. A shared page is copied whole before a position in it is written. Memory behind the last
position is never read. `KvCache` is the contiguous case: one page as long as the context.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oxillama.cache.kv_pool import KvCachePool
from oxillama.cache.pages import PagePool
from oxillama.errors import ConfigError


class PagedKvCache:
    """The block table of one sequence.

    Attributes
    ----------
    pages : page numbers in order of position.
    version : goes up whenever ``pages`` changes.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.pages: list[int] = []
        self.version = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit in its pages."""
        return len(self.pages) * self.pool.page_size

    @property
    def memory_bytes(self) -> int:
        """Bytes of its pages, shared ones included."""
        return len(self.pages) * self.pool.stride

    @property
    def slots(self) -> list[int]:
        """Slots of recurrent states with a reference of this sequence: none."""
        return []

    @property
    def all_records(self) -> list[int]:
        """Records for recurrent states with a reference of this sequence: none."""
        return []

    def settled_of(self, n_tokens: int) -> int:
        """How many of the ``n_tokens`` tokens that have run others can go on from: all."""
        return n_tokens

    def state_after(self, n_tokens: int) -> int | None:
        """The slot of the recurrent state after ``n_tokens`` tokens: none."""
        return None

    def _is_shared(self, start: int) -> bool:
        """Whether the page of position ``start`` has other owners, too."""
        at = start // self.pool.page_size
        return at < len(self.pages) and self.pool.references(self.pages[at]) > 1

    def _missing(self, start: int, end: int) -> int:
        """Pages to allocate before the positions ``start`` to ``end`` can be written."""
        missing = max(0, self.pool.pages_for(end) - len(self.pages))
        return missing + int(start < end and self._is_shared(start))

    def shortage(self, start: int, end: int, n_open: int = 0) -> int:
        """Pages that `reserve` would allocate."""
        return self._missing(start, end)

    def demand(self, start: int, end: int, shared: bool) -> int:
        """Pages to allocate until the positions ``start`` to ``end`` have run, in any number of passes.

        ``shared``: other sequences take over a recurrent state in between.
        """
        return self._missing(start, end)

    def drop_checkpoints(self) -> bool:
        """Frees recurrent states that only `truncate` needs; whether there were any: none."""
        return False

    def reserve(self, start: int, end: int, n_open: int = 0) -> None:
        """Makes the positions ``start`` to ``end`` writable; positions from ``start`` on hold nothing yet.

        The last ``n_open`` tokens may be taken back, which pages always allow.

        Raises KvCacheFullError; then nothing has changed.
        """
        needed = self._missing(start, end)
        if not needed:
            return
        taken = self.pool.allocate(needed)
        at = start // self.pool.page_size
        if self._is_shared(start):
            fresh, old = taken.pop(), self.pages[at]
            self.pool.page(fresh)[:] = self.pool.page(old)
            self.pages[at] = fresh
            self.pool.release([old])
        self.pages += taken
        self.version += 1

    def adopt(self, pages: list[int], n_tokens: int, slot: int | None = None) -> None:
        """Takes over the pages of ``n_tokens`` tokens and their references. The cache must be empty."""
        assert not self.pages and len(pages) == self.pool.pages_for(n_tokens)
        self.pages = list(pages)
        self.version += 1

    def truncate(self, n_tokens: int) -> int:
        """Frees the pages behind the first ``n_tokens`` tokens; returns ``n_tokens``."""
        kept = self.pool.pages_for(n_tokens)
        if kept < len(self.pages):
            self.pool.release(self.pages[kept:])
            del self.pages[kept:]
            self.version += 1
        return n_tokens

    def shrink_to_fit(self, n_tokens: int) -> None:
        """As `truncate`: there are no spare pages."""
        self.truncate(n_tokens)

    def fork(self, n_tokens: int) -> tuple[PagedKvCache, int]:
        """A second cache that shares the pages of the first ``n_tokens`` tokens, and its tokens."""
        other = PagedKvCache(self.pool)
        other.pages = self.pages[: self.pool.pages_for(n_tokens)]
        self.pool.retain(other.pages)
        return other, n_tokens

    def snapshot(self, n_tokens: int) -> np.ndarray:
        """uint8 (pages, page_bytes): copies of the pages of the first ``n_tokens`` tokens."""
        pages = self.pages[: self.pool.pages_for(n_tokens)]
        return np.array([self.pool.page(page) for page in pages], np.uint8).reshape(-1, self.pool.page_bytes)

    def restore(self, data: np.ndarray, n_tokens: int) -> None:
        """Replaces its pages by copies of a `snapshot`. Raises ConfigError, KvCacheFullError."""
        expected = (self.pool.pages_for(n_tokens), self.pool.page_bytes)
        if data.dtype != np.uint8 or data.shape != expected:
            raise ConfigError(
                f"snapshot: expected uint8 {expected} for {n_tokens} tokens, got {data.dtype} {data.shape}"
            )
        fresh = self.pool.allocate(len(data))
        for page, source in zip(fresh, data):
            self.pool.page(page)[:] = source
        self.release()
        self.pages = fresh
        self.version += 1

    def release(self) -> None:
        """Frees everything."""
        self.truncate(0)

    def keys(self, layer: int, n_tokens: int) -> Iterator[np.ndarray]:
        """float32 (heads, key_dim) of each of the first ``n_tokens`` tokens. Raises ConfigError."""
        return self._rows(layer, n_tokens, 0)

    def values(self, layer: int, n_tokens: int) -> Iterator[np.ndarray]:
        """float32 (heads, value_dim) of each of the first ``n_tokens`` tokens. Raises ConfigError."""
        return self._rows(layer, n_tokens, 1)

    def _rows(self, layer: int, n_tokens: int, which: int) -> Iterator[np.ndarray]:
        if not isinstance(self.pool, KvCachePool):
            raise ConfigError(f"pool: expected a KvCachePool, got {type(self.pool).__name__}")
        n_layers = self.pool.layout.n_layers
        if not 0 <= layer < n_layers:
            raise ConfigError(f"layer: expected 0 to {n_layers - 1}, got {layer}")
        if not 0 <= n_tokens <= self.capacity:
            raise ConfigError(f"n_tokens: expected 0 to {self.capacity}, got {n_tokens}")
        size = self.pool.page_size
        for i, page in enumerate(self.pages[: self.pool.pages_for(n_tokens)]):
            yield from self.pool.read(page, layer)[which][: n_tokens - i * size]


class KvCache(PagedKvCache):
    """A contiguous cache: one page, so the context is the pool's ``page_size`` (a power of two)."""

    def reserve(self, start: int, end: int, n_open: int = 0) -> None:
        """As `PagedKvCache.reserve`. Raises ConfigError beyond the one page, KvCacheFullError."""
        if end > self.pool.page_size:
            raise ConfigError(f"end: expected at most {self.pool.page_size} tokens, got {end}")
        super().reserve(start, end)
