"""Reads that pass by the system's cache of files.

A file that is larger than the memory is evicted from the cache before it is read again. Its way through the
cache then only costs time: pages are found, filled, copied and evicted, by the cores that compute.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref

import numpy as np

from oxillama.gguf.extent import Extent, OpenFile

BLOCK = 4096
"""Bytes of which addresses and lengths are multiples."""

READ_BYTES = 1 << 20
"""Bytes of one read."""

_own = threading.local()  # a thread's memory for one read


def read_cached(extent: Extent, out: np.ndarray) -> None:
    """Fills ``out``, uint8 (n,), with the bytes of an extent. Raises ModelFileError as `OpenFile`."""
    extent.read(buffer=out)


class DirectReads:
    """As `read_cached`, past the cache (Linux: ``O_DIRECT``); through it where that cannot be."""

    def __init__(self) -> None:
        self._fds: weakref.WeakKeyDictionary[OpenFile, int] = weakref.WeakKeyDictionary()
        self._opening = threading.Lock()

    def __call__(self, extent: Extent, out: np.ndarray) -> None:
        """Fills ``out``, uint8 (n,), with the bytes of an extent. Raises ModelFileError as `OpenFile`."""
        file = extent.holder
        assert isinstance(file, OpenFile), "packed files are read from files"
        done = self._fill(file, extent.start, out)
        extent.read(done, len(out) - done, out[done:])  # the rest, and whether the file has changed

    def _fill(self, file: OpenFile, start: int, out: np.ndarray) -> int:
        """Fills the first bytes of ``out``; how many."""
        fd, done = self._fd(file), 0
        if not hasattr(_own, "blocks"):
            _own.blocks = np.frombuffer(mmap.mmap(-1, READ_BYTES), np.uint8)
        blocks: np.ndarray = _own.blocks
        while done < len(out) and fd >= 0:
            skipped = (start + done) % BLOCK
            wanted = min(len(blocks), skipped + len(out) - done)
            whole = -(-wanted // BLOCK) * BLOCK
            try:
                n_bytes = os.preadv(fd, [blocks.data[:whole]], start + done - skipped)
            except OSError:  # a read through the cache says why, if it cannot either
                return done
            found = blocks[skipped : min(n_bytes, wanted)]
            if not len(found):
                return done
            out[done : done + len(found)] = found
            done += len(found)
        return done

    def _fd(self, file: OpenFile) -> int:
        """A descriptor of the same file for such reads; -1 if the system has no such reads."""
        with self._opening:
            if file not in self._fds:
                try:
                    self._fds[file] = os.open(f"/proc/self/fd/{file.fd}", os.O_RDONLY | os.O_DIRECT)
                    weakref.finalize(self, _close, self._fds[file])
                except (AttributeError, OSError):
                    self._fds[file] = -1
            return self._fds[file]


def _close(fd: int) -> None:
    os.close(fd)
