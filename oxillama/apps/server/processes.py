"""Processes for jobs that would keep Python's lock from the engines and the event loop.

A job is a function of a module and its arguments; `Processes.run` has it run in a process of low priority and
waits for the result. Processes are new interpreters, which are started when they are first needed: a
process with threads cannot be forked safely.
"""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.pieces import cut, joined
from oxillama.apps.server.process_main import error_of, forget_tokenizer, keep_tokenizer, read, write
from oxillama.errors import OxiLlamaError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.tokenizer.encoder import VocabularyEncoder

T = TypeVar("T")

log: logging.Logger = logging.getLogger(__name__)

CODE = "import sys; sys.path[:] = {}; from oxillama.apps.server.process_main import main; main()"

JOB_SECONDS = 300.0
"""Seconds that a job may take which has no other deadline: its process may have been stopped."""

_numbers: weakref.WeakKeyDictionary[TokenizerBridge, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count()


class NoProcess(OxiLlamaError, RuntimeError):
    """No process can or may be started: a thread has to run the job."""


class JobTooLate(OxiLlamaError, TimeoutError):
    """A job took longer than it may, and its process was ended."""


class Lost(Exception):
    """A process has ended, or its answer cannot be read."""


def process_ended() -> ApiError:
    """The answer to a request whose job was not finished."""
    message = "server: the process that worked for the request has ended; its log may say why"
    return ApiError(503, message, type="unavailable_error", code="process_ended")


class Process:
    """A process for jobs, one at a time. Raises OSError if it cannot be started."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", CODE.format([path for path in sys.path if path])]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid: int = self._popen.pid
        self._known: dict[int, weakref.ref[TokenizerBridge]] = {}
        self._has_ended = self._is_late = False

    @property
    def is_usable(self) -> bool:
        """Whether the process can take a job."""
        return not self._has_ended and self._popen.poll() is None

    def call(self, job: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        """The result of a job. Raises as `Processes.run`."""
        timer = threading.Timer(JOB_SECONDS if seconds is None else seconds, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            return self._ask(job, arguments)
        except Lost as error:
            self.end()
            if self._is_late and seconds is not None:
                raise JobTooLate(f"job: is not done after {seconds:g} s") from error
            raise process_ended() from error
        finally:
            timer.cancel()

    def end(self) -> None:
        """Ends the process, whatever it does. The thread that waits for its job gets an error."""
        self._has_ended = True
        self._popen.kill()
        self._popen.wait()

    def close(self) -> None:
        """Ends the process, for which no thread waits, and closes its pipes."""
        self.end()
        for file in (self._popen.stdin, self._popen.stdout):
            with suppress(OSError):  # what was not sent
                file.close()  # type: ignore[union-attr]

    def _end_late(self) -> None:
        self._is_late = True
        self.end()

    def _ask(self, job: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        for number in [number for number, known in self._known.items() if known() is None]:
            del self._known[number]
            self._exchange(cut((forget_tokenizer, (number,))))
        unknown: list[TokenizerBridge] = []

        def refer(value: Any) -> Any:
            if type(value) is not TokenizerBridge:
                return None
            number = _numbers.setdefault(value, next(_next_number))
            if number not in self._known:
                unknown.append(value)
            return "tokenizer", number

        pieces = cut((job, arguments), refer)
        for value in unknown:
            number = _numbers[value]
            if number not in self._known:
                encoder = None if isinstance(value._encoder, VocabularyEncoder) else value._encoder
                parts = value.vocab, encoder, value.templates
                self._exchange(cut((keep_tokenizer, (number, *parts))))
                self._known[number] = weakref.ref(value)
        found: T = self._exchange(pieces)
        return found

    def _exchange(self, job: list[bytes]) -> Any:
        """The result of a job in pieces. Raises its error; Lost if the process ends meanwhile."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        try:
            write(self._popen.stdin, job)
            pieces = read(self._popen.stdout)
        except (OSError, EOFError, ValueError) as error:
            raise Lost from error
        is_good, found, goes_on = joined(pieces)
        self._has_ended = self._has_ended or not goes_on
        if not is_good:
            raise error_of(*found)
        return found


class Processes:
    """The processes of a server, at most so many, each of which takes any job."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._changed = threading.Condition()
        self._idle: list[Process] = []
        self._busy: set[Process] = set()
        self._n_starting = 0
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        with self._changed:
            return [each.pid for each in (*self._idle, *self._busy)]

    def run(self, job: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        """The result of a job; waits until a process is free.

        Args:
            job: a function of a module, for its name is sent.
            seconds: after which its process is ended; None for `JOB_SECONDS`.

        Raises:
            NoProcess: no process runs, and none can be started. Also what the job raises.
            JobTooLate: it has taken longer than ``seconds``.
            ApiError: its process has ended meanwhile, or was ended after `JOB_SECONDS`.
        """
        process = self._taken()
        try:
            return process.call(job, *arguments, seconds=seconds)
        except BaseException as error:
            if not isinstance(error, Exception):
                process.end()  # what it answers is nobody's
            raise
        finally:
            self._give(process)

    def close(self) -> None:
        """Ends all processes."""
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
            self._changed.notify_all()
        for process in busy:
            process.end()
        for process in idle:
            process.close()

    def _taken(self) -> Process:
        unusable = []
        with self._changed:
            while True:
                if self._is_closed or not self.most:
                    raise NoProcess("server: no processes for jobs")
                if self._idle:
                    process = self._idle.pop()
                    if process.is_usable:
                        self._busy.add(process)
                        break
                    unusable.append(process)
                elif len(self._busy) + self._n_starting < self.most:
                    self._n_starting += 1
                    process = None
                    break
                else:
                    self._changed.wait()
        for each in unusable:
            each.close()
        return process or self._started()

    def _started(self) -> Process:
        process = None
        try:
            process = Process()
        except (OSError, MemoryError) as error:
            log.warning("no process for jobs can be started: %s", error)
            raise NoProcess(f"server: no process for jobs can be started: {error}") from error
        finally:
            with self._changed:
                self._n_starting -= 1
                if process is not None:
                    self._busy.add(process)
                self._changed.notify()
        if self._is_closed:
            process.end()
        return process

    def _give(self, process: Process) -> None:
        """Returns a process to the pool; frees it if it cannot be used again."""
        with self._changed:
            self._busy.discard(process)
            is_kept = process.is_usable and not self._is_closed
            if is_kept:
                self._idle.append(process)
            self._changed.notify()
        if not is_kept:
            process.close()
