"""Freed memory goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import threading
from pathlib import Path
from oxillama.base.memory import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

last = []

def fill():
    parts = [bytearray(2000) for _ in range(30_000)]
    last.append(parts[-1])  # the end of the heap is in use, so that free alone returns nothing

thread = threading.Thread(target=fill)
thread.start()
thread.join()
before = resident()
print(return_freed_memory(), before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory so")
def test_free_pages_of_a_threads_heap_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    found, n_bytes = done.stdout.split()
    assert found == "True" and int(n_bytes) > 40_000_000
