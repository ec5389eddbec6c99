"""Memory that the process has freed."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> bool:
    """Has the C library return freed memory to the system; False where it has no such function.

    glibc gives threads heaps of their own, up to 8 a processor, and keeps the largest size of each.
    `malloc_trim` (malloc_trim(3)) returns the free pages of all of them.
    """
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and trim(0) == 1
