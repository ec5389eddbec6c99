"""Memory that is returned to the system as soon as it is dropped."""

from __future__ import annotations

import mmap

import numpy as np

LARGE_PAGE = 2 << 20
"""Bytes of a large page of the usual systems."""


def mapped(n_bytes: int) -> np.ndarray:
    """New zeroed memory, uint8 (n_bytes,), aligned to a page.

    The allocator may keep freed memory, so this memory is mapped. The mapping is private: a forked child has
    its own copy. Raises MemoryError if the system has no memory.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        memory = mmap.mmap(-1, max(n_bytes, 1), **private)
    except OSError as error:
        raise MemoryError(f"{n_bytes} bytes for matrices: {error.strerror or error}") from error
    if n_bytes >= LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:n_bytes]
