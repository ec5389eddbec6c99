"""Addresses of the pages of keys and values, by page number.

A `PagedBatch` keeps the addresses that it has found, and keeps their memory alive through `owners`. The table replaces
both objects instead of changing them, so a batch stays valid when the table gains or loses memory. All addresses come
from NumPy arrays, never from a caller.
"""

cimport numpy as cnp
from libc.stdint cimport INT32_MAX, uintptr_t

import numpy as np

from oxillama._kernels.arrays cimport check_dimensions, u8_out

cnp.import_array()


cdef class PageTable:
    """Addresses of pages of ``page_bytes`` each. A page number may have no memory yet, or none any more.

    Args:
        page_bytes: bytes of a page
    """

    def __cinit__(self, Py_ssize_t page_bytes):
        if page_bytes < 1:
            raise ValueError(f"page_bytes: expected an integer >= 1, got {page_bytes}")
        self.page_bytes = page_bytes
        self.addresses = np.empty(0, np.uintp)
        self.owners = {}

    def has(self, Py_ssize_t page) -> bool:
        """Whether a page number has memory."""
        return 0 <= page < cnp.PyArray_SIZE(self.addresses) and self.addresses[page] != 0

    def put(self, Py_ssize_t first, cnp.ndarray memory):
        """Gives the rows of ``memory`` to the pages from number ``first`` on, and extends the table if it must.

        Args:
            memory: uint8 (pages, stride), the stride at least ``page_bytes``; kept until `remove` or another `put`

        Raises:
            ValueError: rows too short, ``first`` beyond the end of the table, or a page that already has memory.
        """
        check_dimensions(memory, 2, "memory")
        cdef const unsigned char* data = u8_out(memory, 0, "memory")
        cdef Py_ssize_t n = memory.shape[0], size = cnp.PyArray_SIZE(self.addresses)
        if memory.shape[1] < self.page_bytes:
            raise ValueError(f"memory: expected rows of at least {self.page_bytes} bytes, got {memory.shape[1]}")
        if not 0 <= first <= size or n > INT32_MAX - first:
            raise ValueError(f"first: expected 0 to {size}, got {first}")
        fresh = np.zeros(max(size, first + n), np.uintp)
        fresh[:size] = self.addresses
        if fresh[first:first + n].any():
            raise ValueError(f"first: expected pages without memory from {first} to {first + n - 1}, got others")
        fresh[first:first + n] = <uintptr_t>data + memory.shape[1] * np.arange(n, dtype=np.uintp)
        self.addresses, self.owners = fresh, {**self.owners, first: memory}

    def remove(self, Py_ssize_t first):
        """Releases the array that `put` was given with the same ``first``; the page numbers stay in the table."""
        if first not in self.owners:
            raise ValueError(f"first: expected the first page of a piece of memory, got {first}")
        owners, addresses = dict(self.owners), self.addresses.copy()
        addresses[first:first + len(owners.pop(first))] = 0
        self.addresses, self.owners = addresses, owners
