"""A file of events in Chrome's trace event format, which Perfetto and chrome://tracing show.

The format is a JSON array with an object for each event (Trace Event Format, Google, 2016). Its end may be
missing, so that the file of a process that was killed can be shown too: whole events are written at a time.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import IO, Any

from oxillama.base.config import checks
from oxillama.base.faults import note
from oxillama.base.locks import ForkedOpen, NotCopied
from oxillama.errors import ConfigError

log: logging.Logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.25
"""Seconds after which events are written, at the end of the step that is running."""

MOST_EVENTS = 100_000
"""Events that may wait for being written; more are dropped, and the file says how many."""

MOST_BYTES = 1 << 30
"""Bytes of a file; what comes then is dropped."""

_quoted = functools.lru_cache(1024)(json.dumps)
"""A text as JSON has it."""

Event = tuple[str, str, float, float, str, Mapping[str, Any]]
"""Kind, name, seconds of its start, seconds that it took, id of its track, what else is known."""


class Trace(NotCopied):
    """Takes events from any thread, and writes them when it is flushed. `open_trace` makes it.

    Times are seconds of `time.perf_counter`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.users: int = 0
        self._pid = os.getpid()
        self._lock = ForkedOpen()
        self._events: list[tuple[int, Event]] = []
        self._threads: dict[int, str] = {}
        self._n_dropped = 0
        self._n_bytes = 0
        self._flushed_at = time.perf_counter()
        try:
            self._file: IO[bytes] | None = open(path, "wb", buffering=0)  # noqa: SIM115
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"trace: {path}: cannot be written: {reason}") from error
        self._write("[\n" + self._line(0, ("M", "process_name", 0.0, 0.0, "", {"name": "oxillama"})))

    # --- events -------------------------------------------------------------------------------------

    def span(self, name: str, start: float, end: float, **facts: Any) -> None:
        """The calling thread did something from ``start`` to ``end``."""
        self._add(("X", name, start, end - start, "", facts))

    def begin(self, track: str, name: str, at: float, **facts: Any) -> None:
        """A phase of the track begins; phases of one track lie inside each other."""
        self._add(("b", name, at, 0.0, track, facts))

    def end(self, track: str, name: str, at: float, **facts: Any) -> None:
        """The phase ends that began last."""
        self._add(("e", name, at, 0.0, track, facts))

    def count(self, name: str, **values: float) -> None:
        """Numbers have these values from now on."""
        self._add(("C", name, time.perf_counter(), 0.0, "", values))

    def name_thread(self, name: str) -> None:
        """What the calling thread is called in the file."""
        number = threading.get_native_id()
        if self._threads.get(number) != name:
            self._threads[number] = name
            self._add(("M", "thread_name", 0.0, 0.0, "", {"name": name}))

    def _add(self, event: Event) -> None:
        if len(self._events) < MOST_EVENTS:
            self._events.append((threading.get_native_id(), event))
        else:
            self._n_dropped += 1

    # --- the file -----------------------------------------------------------------------------------

    def flush(self, *, now: bool = False) -> None:
        """Writes what there is, ``now`` or if `FLUSH_SECONDS` have passed since it was last done."""
        if not self._events or not (now or time.perf_counter() - self._flushed_at >= FLUSH_SECONDS):
            return
        with self._lock.lock:
            events, self._events = self._events, []
            self._flushed_at = time.perf_counter()
            if self._n_dropped:
                dropped, self._n_dropped = self._n_dropped, 0
                events.append((0, ("I", "events dropped", self._flushed_at, 0.0, "", {"n": dropped})))
            self._write("".join(",\n" + self._line(*event) for event in events))

    def _line(self, thread: int, event: Event) -> str:
        kind, name, start, seconds, track, facts = event
        text = f'{{"ph":"{kind}","name":{_quoted(name)},"ts":{start * 1e6:.3f}'
        text += f',"pid":{self._pid},"tid":{thread}'
        if kind == "X":
            text += f',"dur":{seconds * 1e6:.3f}'
        elif track:
            text += f',"cat":"request","id":{_quoted(track)}'
        if not facts:
            return text + "}"
        # most are integers, and `json.dumps` would take longer than all the rest
        values = [f'"{key}":{n if type(n) is int else json.dumps(n)}' for key, n in facts.items()]
        return f'{text},"args":{{{",".join(values)}}}}}'

    def _write(self, text: str) -> None:
        data, file = text.encode(), self._file
        if file is None or os.getpid() != self._pid:  # a forked child shares the file's position
            return
        self._n_bytes += len(data)
        try:
            if self._n_bytes > MOST_BYTES:
                raise OSError(f"expected at most {MOST_BYTES} bytes, got more")
            while data:
                data = data[file.write(data) :]
        except OSError as error:
            note(log, logging.ERROR, "trace: %s: is given up: %s", self.path, error)
            self._file = None
            file.close()

    def close(self) -> None:
        """Removes a user; the last user's removal ends the file."""
        with _opening.lock:
            self.users -= 1
            if self.users:
                return
            _open.pop(self.path, None)
        self.flush(now=True)
        self._write("\n]\n")
        if self._file is not None:
            self._file.close()
            self._file = None


_open: weakref.WeakValueDictionary[str, Trace] = weakref.WeakValueDictionary()
_opening = ForkedOpen()


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """A new file of events, or the one of that path that is open in this process.

    Raises ConfigError if it cannot be written.
    """
    try:
        name = os.path.realpath(os.fsdecode(path))
    except ValueError as error:
        raise checks.refuse("trace", "the path of a file", path) from error
    with _opening.lock:
        trace = _open.get(name)
        if trace is None:
            trace = _open[name] = Trace(name)
        trace.users += 1
        return trace
