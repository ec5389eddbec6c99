"""Aligned memory for packed weights, pages and scratch."""

from __future__ import annotations

import numpy as np

ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector register."""


def aligned_empty(n_bytes: int) -> np.ndarray:
    """Uninitialised uint8 memory of ``n_bytes`` whose address is a multiple of 64."""
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + n_bytes]
