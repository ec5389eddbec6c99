"""Faults on purpose: the n-th call of the system fails, for every n until a run has fewer calls.

A call counts if it is about a file in one folder, by its path or by a descriptor. Calls of Python code are
seen: those of `os`, `open`, `mmap` and `fcntl`, also by libraries in Python; not those of compiled libraries.
"""

from __future__ import annotations

import builtins
import errno
import faulthandler
import gc
import io
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oxillama import OxiLlamaError

FAULTS: dict[str, tuple[int, ...]] = {
    "open": (errno.EMFILE, errno.EIO),
    "read": (errno.EIO,),
    "write": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO, errno.ENOSPC),
    "close": (errno.EIO,),  # closing a file that was open for writing
    "rename": (errno.EIO, errno.ENOSPC),
    "link": (errno.ENOSPC, errno.EIO, errno.EPERM),
    "unlink": (errno.EIO,),
    "truncate": (errno.EIO,),
    "stat": (errno.EIO,),
    "list": (errno.EMFILE, errno.EIO),
    "mkdir": (errno.ENOSPC,),
    "change": (errno.EIO,),
    "lock": (errno.EIO, errno.ENOLCK),
    "map": (errno.ENOMEM,),
}
"""The errors of each operation that is tried."""

CHANGING = ("open", "write", "fsync", "close", "rename", "link", "unlink", "truncate")
OTHERS = tuple(operation for operation in FAULTS if operation not in CHANGING)

BY_PATH = {
    "open": ("open",), "rename": ("rename", "replace"), "link": ("link", "symlink"),
    "unlink": ("unlink", "remove", "rmdir"), "truncate": ("truncate",), "stat": ("stat", "lstat"),
    "list": ("scandir", "listdir"), "mkdir": ("mkdir",), "change": ("chmod", "utime"),
}  # fmt: skip
"""Functions of `os` that take a path, or a descriptor in its place, by their operation."""

BY_DESCRIPTOR = {
    "read": ("read", "pread", "preadv"),
    "write": ("write", "pwrite"),
    "fsync": ("fsync",),
    "truncate": ("ftruncate",),
    "stat": ("fstat",),
    "change": ("fchmod",),
}

HANG_SECONDS = 120


class Calls:
    """The calls about files of a folder. The n-th of one operation fails.

    Args:
        folder: of the files.
        operation: of `FAULTS`.
        n: which call fails, from 1 on.
        code: with which error.

    Attributes:
        has_failed: whether there was an n-th call.
        open: descriptors of the folder's files that are not closed yet, with the paths.
    """

    def __init__(self, folder: Path, operation: str = "", n: int = 0, code: int = 0) -> None:
        self.operation, self.n, self.code = operation, n, code
        self.has_failed = False
        self.open: dict[int, str] = {}
        self._folder = os.path.realpath(folder)
        self._writable: set[int] = set()
        self._lock = threading.Lock()

    def step(self, operation: str, path: Any = None) -> None:
        """Counts a call; raises the error if it is the n-th."""
        with self._lock:
            if operation != self.operation:
                return
            self.n -= 1
            if self.n:
                return
            self.has_failed = True
        raise OSError(self.code, os.strerror(self.code), path)

    def has(self, place: Any) -> bool:
        """Whether a path, or a descriptor, is that of a file in the folder."""
        if isinstance(place, int):
            return place in self.open
        try:
            path = os.path.abspath(os.fsdecode(place))
        except (TypeError, ValueError):
            return False
        return path == self._folder or path.startswith(self._folder + os.sep)

    def opened(self, fd: int, path: Any, *, writable: bool) -> None:
        with self._lock:
            self.open[fd] = str(path)
            if writable:
                self._writable.add(fd)

    def closed(self, fd: int) -> None:
        """A descriptor was closed. The error of a close comes when this is done, and only after writing."""
        with self._lock:
            self.open.pop(fd, None)
            was_writable = fd in self._writable
            self._writable.discard(fd)
        if was_writable:
            self.step("close")


class FaultyFile(io.FileIO):
    """A file without a buffer whose calls are counted."""

    def __init__(self, calls: Calls, file: Any, mode: str, closefd: bool, opener: Any) -> None:
        self._calls = calls
        self._owned = closefd
        super().__init__(file, mode, closefd, opener)
        if closefd:
            calls.opened(self.fileno(), file, writable=self.writable())

    def read(self, size: int | None = -1) -> bytes | None:  # type: ignore[override]
        self._calls.step("read")
        return super().read(-1 if size is None else size)

    def readall(self) -> bytes | None:  # type: ignore[override]
        self._calls.step("read")
        return super().readall()

    def readinto(self, buffer: Any) -> int | None:  # type: ignore[override]
        self._calls.step("read")
        return super().readinto(buffer)

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        self._calls.step("write")
        view = memoryview(data).cast("B")
        is_last = self._calls.operation == "write" and self._calls.n == 1
        return super().write(view[: len(view) // 2 or 1] if is_last else view)  # a disk is full in the middle

    def truncate(self, size: int | None = None) -> int:
        self._calls.step("truncate")
        return super().truncate(size)

    def close(self) -> None:
        if self.closed:
            return
        fd = self.fileno()
        super().close()
        if self._owned:
            self._calls.closed(fd)


@contextmanager
def failing(calls: Calls) -> Iterator[Calls]:
    """Counts calls inside the block, and lets one fail."""
    reals = {name: getattr(os, name) for name in _names() if hasattr(os, name)}
    real_open = io.open

    def by_path(operation: str, name: str) -> Callable[..., Any]:
        def call(*places: Any, **how: Any) -> Any:
            if any(calls.has(place) for place in places[:2]):
                calls.step(operation, places[0])
            found = reals[name](*places, **how)
            if operation == "open" and calls.has(places[0]):
                flags = places[1] if len(places) > 1 else how["flags"]
                calls.opened(found, places[0], writable=bool(flags & (os.O_WRONLY | os.O_RDWR)))
            return found

        return call

    def by_descriptor(operation: str, name: str) -> Callable[..., Any]:
        def call(fd: int, *arguments: Any, **how: Any) -> Any:
            if calls.has(fd):
                calls.step(operation)
                if operation == "fsync":
                    return None  # a disk takes longer than all the rest
            return reals[name](fd, *arguments, **how)

        return call

    def close(fd: int) -> None:
        ours = calls.has(fd)
        reals["close"](fd)
        if ours:
            calls.closed(fd)

    def opened(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        if not calls.has(file):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            calls.step("open", file)
        raw = FaultyFile(calls, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        kind = (
            io.BufferedRandom if "+" in mode else io.BufferedReader if raw.readable() else io.BufferedWriter
        )
        buffer = kind(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)

    class Mapped(mmap.mmap):
        def __new__(cls, fd: int, *arguments: Any, **how: Any) -> Any:
            if calls.has(fd):
                calls.step("map")
            return super().__new__(cls, fd, *arguments, **how)

    with pytest.MonkeyPatch.context() as patched:
        for kinds, made in ((BY_PATH, by_path), (BY_DESCRIPTOR, by_descriptor)):
            for operation, names in kinds.items():
                for name in names:
                    if name in reals:
                        patched.setattr(os, name, made(operation, name))
        patched.setattr(os, "close", close)
        patched.setattr(io, "open", opened)
        patched.setattr(builtins, "open", opened)
        patched.setattr(mmap, "mmap", Mapped)
        with pytest.MonkeyPatch.context() as locks:
            _patch_locks(locks, calls)
            yield calls


def _names() -> set[str]:
    return {
        "close",
        *(name for kinds in (BY_PATH, BY_DESCRIPTOR) for names in kinds.values() for name in names),
    }


def _patch_locks(patched: pytest.MonkeyPatch, calls: Calls) -> None:
    try:
        import fcntl
    except ImportError:
        return
    real = fcntl.flock

    def flock(fd: Any, operation: int) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        if calls.has(number):
            calls.step("lock")
        real(fd, operation)

    patched.setattr(fcntl, "flock", flock)


def every_fault(
    room: str,
    folder: Path,
    before: Callable[[], object],
    work: Callable[[], object],
    after: Callable[[OxiLlamaError | None], object],
    operations: tuple[str, ...] = tuple(FAULTS),
    *,
    closes: bool = True,
) -> dict[str, int]:
    """Lets each call of some work fail in turn, and checks that no descriptor is left.

    Args:
        room: what the work is called in the table that is printed.
        folder: of the files whose calls fail.
        before: prepares the folder; no call of it fails.
        work: may raise errors of the library only.
        after: checks the folder, given the error that came of the fault; no call of it fails.
        closes: whether the work closes all files; False for a command, whose process would end.

    Returns:
        The number of calls that failed, by operation.
    """
    counts: dict[str, int] = {}
    for operation in operations:
        for code in FAULTS[operation]:
            n = 0
            while True:
                n += 1
                before()
                calls = Calls(folder, operation, n, code)
                error = _run(work, calls)
                where = f"{room}: {operation} {n} failed with {errno.errorcode[code]}"
                assert not (closes and calls.open), f"{where}: left open: {calls.open}"
                assert calls.has_failed or error is None, f"{where}: {error!r}"
                if not calls.has_failed:
                    break
                try:
                    after(error)
                except BaseException as problem:
                    problem.add_note(f"{where}: {error!r}") if hasattr(problem, "add_note") else print(where)
                    raise
            if n > 1:
                counts[operation] = max(n - 1, counts.get(operation, 0))
                print(f"| {room} | {operation} | {errno.errorcode[code]} | {n - 1} |")
    return counts


def _run(work: Callable[[], object], calls: Calls) -> OxiLlamaError | None:
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    found = None
    try:
        with failing(calls):
            try:
                work()
            except OxiLlamaError as error:
                found = _without_frames(error)
            gc.collect()  # which closes files
    except BaseException as error:
        if hasattr(error, "add_note"):
            error.add_note(f"{calls.operation} failed with {errno.errorcode.get(calls.code)}")
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()
    return found


def _without_frames(error: OxiLlamaError) -> OxiLlamaError:
    """The error without tracebacks, whose frames hold files."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__context__
    return error
