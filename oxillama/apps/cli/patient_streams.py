"""Streams of text whose readers may stop reading: a server must not wait for whoever reads its log."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

MOST_CHARS = 1 << 20
"""Characters that may wait for a reader."""

LAST_SECONDS = 1.0
"""Seconds that the end of the process waits for a reader."""


class PatientStream(io.TextIOBase):
    """A text stream whose writers never wait: a thread writes, and lines beyond `MOST_CHARS` are dropped.

    A line says how many were dropped, once there is room again.

    Args:
        stream: of a file, a pipe or a terminal; has a descriptor.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._fd: int = stream.fileno()
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._n_chars = self._n_dropped = 0
        self._is_writing = False
        stream.flush()
        threading.Thread(target=self._work, name="log", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self._stream.encoding)

    @property
    def errors(self) -> str:  # type: ignore[override]
        return str(self._stream.errors)

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Adds a text to those that wait to be written."""
        with self._changed:
            if self._n_chars + len(text) > MOST_CHARS:
                self._n_dropped += max(1, text.count("\n"))
            else:
                self._waiting.append(text)
                self._n_chars += len(text)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Nothing: the thread writes at once."""

    def drain(self, seconds: float) -> bool:
        """Waits until all is written; returns whether it is."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._waiting or self._is_writing:
                if not self._changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    return False
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                text = "".join(self._waiting)
                self._waiting.clear()
                self._is_writing = True
            with suppress(OSError):  # nobody reads any more
                self._write_all(text.encode(self.encoding, self.errors))
            with self._changed:
                self._n_chars -= len(text)
                self._is_writing = False
                if self._n_dropped:
                    note = f"{self._n_dropped} lines of the log were dropped: nobody read them in time\n"
                    self._waiting.append(note)
                    self._n_chars += len(note)
                    self._n_dropped = 0
                self._changed.notify_all()

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]


@contextmanager
def patient_streams() -> Iterator[None]:
    """Inside the block stdout and stderr are patient. A stream whose reader has stopped remains so."""
    made: dict[str, tuple[Any, PatientStream]] = {}
    for name in ("stdout", "stderr"):
        with suppress(OSError, ValueError, AttributeError):  # the stream has no descriptor
            before = getattr(sys, name)
            made[name] = before, PatientStream(before)
            setattr(sys, name, made[name][1])
    try:
        yield
    finally:
        for name, (before, stream) in made.items():
            if stream.drain(LAST_SECONDS) and getattr(sys, name) is stream:
                setattr(sys, name, before)
