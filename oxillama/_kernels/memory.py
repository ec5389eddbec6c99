"""Memory as the kernels want it."""

from __future__ import annotations

import numpy as np

ALIGNMENT = 64
"""Bytes of a cache line: packed panels and pages begin at a multiple of it."""


def aligned_empty(n_bytes: int) -> np.ndarray:
    """Uninitialised uint8 (n_bytes,) whose address is a multiple of `ALIGNMENT`."""
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + n_bytes]
