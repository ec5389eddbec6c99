"""Where pages of keys and values lie in memory, by their numbers.

A `PagedBatch` keeps the addresses that it has found, and `owners` with them. Both are replaced and never changed, so
a batch stays whole when the table takes or gives up memory; and no address comes from anybody but NumPy.
"""

cimport numpy as cnp
from libc.stdint cimport INT32_MAX, uintptr_t

import numpy as np

from oxillama._kernels.arrays cimport check_dimensions, u8_out

cnp.import_array()


cdef class PageTable:
    """Pages of ``page_bytes`` each; a page number has memory, or none yet, or no longer.

    Parameters
    ----------
    page_bytes : bytes of a page
    """

    def __cinit__(self, Py_ssize_t page_bytes):
        if page_bytes < 1:
            raise ValueError(f"page_bytes: expected an integer >= 1, got {page_bytes}")
        self.page_bytes = page_bytes
        self.addresses = np.empty(0, np.uintp)
        self.owners = {}

    def has(self, Py_ssize_t page):
        """Whether a page number has memory."""
        return 0 <= page < cnp.PyArray_SIZE(self.addresses) and self.addresses[page] != 0

    def put(self, Py_ssize_t first, cnp.ndarray memory):
        """Gives the pages from number ``first`` on the rows of ``memory``, and the table numbers up to the last.

        Parameters
        ----------
        memory : uint8 (pages, stride), the stride at least ``page_bytes``; kept until `remove` or another `put`

        Raises
        ------
        ValueError : rows too short, a ``first`` beyond the end, or numbers of which only some had memory together.
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
        """Gives up the memory that `put` was given for pages from number ``first`` on; their numbers stay."""
        if first not in self.owners:
            raise ValueError(f"first: expected the first page of a piece of memory, got {first}")
        owners, addresses = dict(self.owners), self.addresses.copy()
        addresses[first:first + len(owners.pop(first))] = 0
        self.addresses, self.owners = addresses, owners
