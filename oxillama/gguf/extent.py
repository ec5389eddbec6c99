"""Bytes of files, read on demand: a file that changes while it is in use is an error.

Files are not mapped: an access to a mapped page that no longer exists (the file was truncated, a network disk
failed) ends the process. A read returns an error instead.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from oxillama.errors import ModelFileError

COPIED_BYTES = 1 << 20
"""Bytes of a read where the system can only return new memory."""

_position = threading.Lock()  # guards seek and read on systems that cannot read at an offset


class FileIdentity(NamedTuple):
    """What the system says of a file; a file whose identity is the same has not been changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _read_at(fd: int, out: memoryview, start: int) -> int:
    """Reads some bytes at an offset: their number, 0 behind the end. Other threads run meanwhile."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [out], start)
    n_bytes = min(len(out), COPIED_BYTES)
    if hasattr(os, "pread"):
        data = os.pread(fd, n_bytes, start)
    else:
        with _position:
            os.lseek(fd, start, os.SEEK_SET)
            data = os.read(fd, n_bytes)
    out[: len(data)] = data
    return len(data)


class OpenFile:
    """A regular file, open for reading as long as the object is referenced.

    It stays readable when it is deleted or replaced.

    Args:
        path: the file. Pipes and devices are refused at once.

    Attributes:
        fd: its descriptor; -1 when it is closed.
        identity: of the file when it was opened.
        size: bytes of the file when it was opened.

    Raises:
        ModelFileError: the file is missing, not a regular file, or may not be read. Reading raises it where
            the system cannot read, or the size or the time of the last change is not that at opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd: int = -1
        try:
            self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            status = os.fstat(self.fd)
            if stat.S_ISDIR(status.st_mode):
                raise ModelFileError(f"{path}: expected a file, got a directory")
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{path}: expected a regular file, got a pipe, socket or device")
        except ModelFileError:
            self.close()
            raise
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be opened: {error.strerror or error}") from error
        except ValueError as error:  # NUL or a lone surrogate in the path
            raise ModelFileError(f"path: expected no NUL and no lone surrogate, got {str(path)!r}") from error
        self.identity: FileIdentity = FileIdentity.of(status)
        self.size: int = status.st_size

    def close(self) -> None:
        """Closes the file now. No other thread may be reading it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def fill(self, start: int, out: np.ndarray) -> None:
        """Fills ``out``, uint8 (n,), with the bytes from ``start`` on; call `check` afterwards."""
        view, done = out.data, 0
        while done < len(view):
            try:
                n_bytes = _read_at(self.fd, view[done:], start + done)
            except OSError as error:
                raise ModelFileError(f"{self.path}: cannot be read: {error.strerror or error}") from error
            if not n_bytes:
                raise self._changed(f"{len(view)} bytes at {start}", str(done))
            done += n_bytes

    def check(self) -> None:
        """Raises ModelFileError if the file has changed since it was opened.

        Called after a read, it covers the read: the system notes the time of a change before its bytes. It
        compares the size and the time of the last change of the content; the time of the last change of the
        inode would change with the number of names, too.
        """
        try:
            status = os.fstat(self.fd)
        except OSError as error:
            raise ModelFileError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if status.st_size != self.size:
            raise self._changed(f"{self.size} bytes", str(status.st_size))
        if status.st_mtime_ns != self.identity.mtime_ns:
            raise self._changed(f"the last change at {self.identity.mtime_ns} ns", str(status.st_mtime_ns))

    def _changed(self, expected: str, got: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: changed while it was in use: expected {expected}, got {got}")


class Extent:
    """Neighbouring bytes of a file, or of an array in memory. It keeps the file open.

    Args:
        holder: the file, or uint8 (n,).
        start, nbytes: where the bytes lie in it.
    """

    __slots__ = ("holder", "nbytes", "start")

    def __init__(self, holder: OpenFile | np.ndarray, start: int, nbytes: int) -> None:
        self.holder: OpenFile | np.ndarray = holder
        self.start: int = start
        self.nbytes: int = nbytes

    def part(self, start: int, nbytes: int) -> Extent:
        """Some of the bytes."""
        return Extent(self.holder, self.start + start, nbytes)

    def read(self, start: int = 0, nbytes: int | None = None, buffer: np.ndarray | None = None) -> np.ndarray:
        """Some of the bytes, or all: uint8 (nbytes,).

        Bytes in memory are a view. Bytes of a file are read into ``buffer``, uint8 (``nbytes`` or
        more,), or into new memory. Raises ModelFileError as `OpenFile`.
        """
        n = self.nbytes - start if nbytes is None else nbytes
        if isinstance(self.holder, np.ndarray):
            return self.holder[self.start + start : self.start + start + n]
        out = np.empty(n, np.uint8) if buffer is None else buffer[:n]
        self.holder.fill(self.start + start, out)
        self.holder.check()
        return out

    def expect(self) -> None:
        """Advises the system to read the bytes ahead; the system may ignore this."""
        if isinstance(self.holder, OpenFile) and hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self.holder.fd, self.start, self.nbytes, os.POSIX_FADV_WILLNEED)

    def read_rows(self, ids: np.ndarray, row_bytes: int) -> np.ndarray:
        """Rows of a table: uint8 (n, row_bytes) in new memory. Neighbouring rows are read together.

        Raises IndexError if an id, int (n,), is no row number, and ModelFileError as `OpenFile`.
        """
        if isinstance(self.holder, np.ndarray):
            found: np.ndarray = self.read().reshape(-1, row_bytes)[ids]
            return found
        wanted, places = (ids, None) if len(ids) < 2 else np.unique(ids, return_inverse=True)
        out = np.empty((len(wanted), row_bytes), np.uint8)
        if not len(wanted):
            return out
        if wanted[0] < 0 or wanted[-1] >= self.nbytes // row_bytes:
            raise IndexError(f"ids: expected rows below {self.nbytes // row_bytes}, got {ids!r:.80}")
        firsts = [0, *(np.flatnonzero(np.diff(wanted) != 1) + 1).tolist(), len(wanted)]
        for first, end in pairwise(firsts):
            start = self.start + int(wanted[first]) * row_bytes
            self.holder.fill(start, out[first:end].reshape(-1))
        self.holder.check()
        return out if places is None else out[places]
