"""One pool of pages for the keys and values of all sequences.

A page holds `page_size` tokens of every layer. Memory comes in slabs of pages, allocated as they are
needed; a page belongs to whoever holds a reference to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.errors import KvCacheFullError
from oxillama.tensor import aligned_empty

SLAB_BYTES = 4 << 20  # about what is allocated at a time


class PagePool:
    """Pages of keys and values, handed out by number.

    Parameters
    ----------
    shape : `KvShape` of the kernels.
    page_size : tokens per page, as in ``shape``.
    max_pages : the pool never grows beyond this.

    Attributes
    ----------
    addresses : int64 (pages,), where each page lies in memory.
    """

    def __init__(self, shape: Any, page_size: int, max_pages: int) -> None:
        self.shape = shape
        self.page_size = page_size
        self.max_pages = max_pages
        self.addresses = np.empty(0, np.int64)
        self._slabs: list[np.ndarray] = []
        self._references: list[int] = []
        self._free: list[int] = []

    @property
    def n_pages(self) -> int:
        """Pages that have memory."""
        return len(self._references)

    @property
    def n_available(self) -> int:
        """Pages that can still be allocated."""
        return len(self._free) + self.max_pages - self.n_pages

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory the pool holds."""
        return sum(slab.nbytes for slab in self._slabs)

    def allocate(self, n: int) -> list[int]:
        """Takes ``n`` pages, each with one reference.

        Raises
        ------
        KvCacheFullError : fewer are available; then none is taken.
        """
        if n > self.n_available:
            raise KvCacheFullError(
                f"{n} pages of {self.page_size} tokens needed, {self.n_available} available"
            )
        while len(self._free) < n:
            self._grow()
        taken = [self._free.pop() for _ in range(n)]
        for page in taken:
            self._references[page] = 1
        return taken

    def retain(self, pages: list[int]) -> None:
        """Adds a reference to each page."""
        for page in pages:
            assert self._references[page] > 0, "only a page in use can be shared"
            self._references[page] += 1

    def release(self, pages: list[int]) -> None:
        """Drops a reference to each page; one that has none left is free again."""
        for page in pages:
            assert self._references[page] > 0, "a page is released as often as it was taken"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def check_integrity(self) -> None:
        """Asserts that every page is either free or referenced, and free only once."""
        assert len(self._free) == len(set(self._free)), "a page is free twice"
        assert {p for p, n in enumerate(self._references) if n == 0} == set(self._free), "a page is lost"
        assert len(self.addresses) == self.n_pages <= self.max_pages

    def _grow(self) -> None:
        page_bytes: int = self.shape.page_bytes
        stride = -(-page_bytes // 64) * 64
        n = min(max(1, SLAB_BYTES // stride), self.max_pages - self.n_pages)
        try:
            slab = aligned_empty(n * stride)
        except MemoryError as error:
            raise KvCacheFullError(f"no memory for {n} more pages of {page_bytes} bytes") from error
        first = self.n_pages
        self._slabs.append(slab)
        self._references += [0] * n
        self._free += range(first + n - 1, first - 1, -1)
        fresh = slab.ctypes.data + stride * np.arange(n, dtype=np.int64)
        self.addresses = np.concatenate([self.addresses, fresh])
