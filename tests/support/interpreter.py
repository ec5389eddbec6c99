"""What differs between interpreters."""

import sys

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
"""Threads run at the same time; the next garbage collection frees what several of them have used."""

COUNTS_TOGETHER = sys.version_info < (3, 12)
"""Calls in C count towards Python's limit of recursion; later versions have a limit for each."""

COUNTS_CALLS = sys.version_info < (3, 14)
"""Recursion in C ends at a number of calls; later versions look at the stack that is left."""
