"""What differs between interpreters."""

import sys

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
"""Threads run at the same time; the next garbage collection frees what several of them have used."""

COUNTS_FRAMES = sys.version_info < (3, 14)
"""Recursion in C ends at a number of calls; later versions look at the stack that is left."""
