"""Threads for what would hold up the event loop: parsing, tokenizing, compiling.

Each kind of work has a few threads of its own, so that none waits for another kind. Clients have turns: of
each that waits one job is run, then of the next. Large jobs leave one thread to small ones.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from oxillama.errors import GrammarError, QueueFull
from oxillama.server.callers import context
from oxillama.server.processes import Processes
from oxillama.server.urgency import be_patient, be_urgent

T = TypeVar("T")

LARGE = 1 << 16
"""Bytes from which a job is a large one."""

AGAIN = 0.05
"""Seconds until a job that is late and still runs is interrupted again."""

LARGE_WAIT = 1.0
"""Seconds that a large job waits until no other one runs, of whatever kind; then it runs beside others."""

MOST_WAITING = 256
"""Jobs of one client that may wait for threads of a kind."""


class OutOfTime(BaseException):
    """Raised inside a job that has run for too long. No handler of other errors takes it."""


def not_compiled(seconds: float | None) -> GrammarError:
    """The error of a grammar that takes too long."""
    return GrammarError(f"grammar: is not compiled after {seconds:g} s")


def _ignore_swallowed() -> None:
    """No report of an OutOfTime that a finalizer has swallowed: the next one comes."""
    report = sys.unraisablehook

    def hook(found: Any) -> None:
        if found.exc_type is not OutOfTime:
            report(found)

    if getattr(report, "__qualname__", "") != hook.__qualname__:
        sys.unraisablehook = hook


class Job:
    """Something to run, and the future that waits for its result."""

    def __init__(
        self, run: Callable[[], Any], seconds: float | None, in_process: bool, late: type[Exception] | None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.seconds: float | None = seconds
        self.in_process: bool = in_process
        self.late = late
        self._run = run
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_late = False
        self._has_left = False

    def __call__(self) -> None:
        """Runs it, in a thread of the pool."""
        timer = None
        if self.seconds is not None:
            _ignore_swallowed()
            timer = threading.Timer(self.seconds, self._interrupt)
            timer.daemon = True
            timer.start()
        value: Any = None
        error: BaseException | None = None
        self._thread = threading.get_ident()
        try:
            try:
                value = self._run()
            finally:
                self._leave()
        except OutOfTime:
            error = not_compiled(self.seconds) if self.late is None else self.late()
        except BaseException as found:
            error = found
        self._leave()  # once more, if it was interrupted before it began
        if timer is not None:
            timer.cancel()
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._tell, value, error)

    def _tell(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, StopIteration):  # which a future cannot hold
            self.future.set_exception(RuntimeError(repr(error)))
        else:
            self.future.set_exception(error)

    def _interrupt(self) -> None:
        """Has the thread raise OutOfTime until it has left the job: a finalizer swallows what it raises."""
        while True:
            with self._lock:
                if self._has_left:
                    return
                if self._thread is not None:  # else it has not begun: this thread was faster
                    self._is_late = True
                    raise_in(self._thread, OutOfTime)
            time.sleep(AGAIN)

    def _leave(self) -> None:
        """From here on the thread is not interrupted any more.

        An OutOfTime that it has not raised yet is raised here. Were it taken back, the interpreter would look
        for it before every call, and Python 3.11 would hang in the next function that a debugger traces.
        """
        while True:
            try:
                try:  # no `with`: Python 3.14 may raise between its lock and its block
                    self._lock.acquire()
                    thread, self._thread, self._has_left = self._thread, None, True
                finally:
                    self._lock.release()
                while self._is_late and thread is not None:  # again, if a finalizer has swallowed it
                    raise_in(thread, OutOfTime)
                return
            except OutOfTime:
                continue


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Has a thread raise an error before its next line, in place of one that it has not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


class Workers:
    """The threads for one kind of work.

    They are daemons: a server that ends does not wait for a job that nobody waits for.

    Parameters
    ----------
    alone : that large jobs hold, of several kinds where these share the lock.
    is_heavy : whether small jobs, too, leave Python's lock to others.
    """

    def __init__(
        self, name: str, n_threads: int = 2, alone: threading.Lock | None = None, is_heavy: bool = False
    ) -> None:
        self.name: str = name
        self.n_threads: int = n_threads
        self.is_heavy: bool = is_heavy
        self._alone = alone or threading.Lock()  # held while a large job runs
        self._changed = threading.Condition()
        self._small: OrderedDict[str, deque[Job]] = OrderedDict()
        self._large: OrderedDict[str, deque[Job]] = OrderedDict()
        self._n_large = 0  # running
        self._n_idle = self._n_started = 0
        self._has_ended = False

    async def run(
        self,
        job: Callable[..., T],
        *arguments: Any,
        size: int = 0,
        seconds: float | None = None,
        in_process: bool = False,
        late: type[Exception] | None = None,
    ) -> T:
        """The result of a job.

        Parameters
        ----------
        size : bytes that it works on.
        seconds : after which the job is ended, and GrammarError raised, or ``late``; None for never.
        in_process : whether the job waits for one of the `Processes`; it is a large one then.

        Raises
        ------
        QueueFull : too many jobs of this client wait already.
        """
        copied = contextvars.copy_context()
        made = Job(lambda: copied.run(job, *arguments), seconds, in_process, late)
        lane = self._large if in_process or size >= LARGE else self._small
        client = context().client
        with self._changed:
            jobs = lane.setdefault(client, deque())
            if len(jobs) >= MOST_WAITING:
                raise QueueFull(f"{self.name}: {len(jobs)} requests of this client wait already")
            jobs.append(made)
            if not self._n_idle and self._n_started < self.n_threads:
                self._n_started += 1
                threading.Thread(target=self._work, name=f"server {self.name}", daemon=True).start()
            self._changed.notify()
        try:
            found: T = await made.future
            return found
        except asyncio.CancelledError:
            with self._changed:
                if made in lane.get(client, ()):
                    lane[client].remove(made)
                    if not lane[client]:
                        del lane[client]
            raise

    def close(self) -> None:
        """Ends the threads, each after its job; what waits is not run."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while (found := self._next()) is None:
                    if self._has_ended:
                        return
                    self._n_idle += 1
                    self._changed.wait()
                    self._n_idle -= 1
                job, is_large = found
                self._n_large += is_large
            (be_patient if is_large or self.is_heavy else be_urgent)()
            needs_lock = is_large and not job.in_process
            is_alone = needs_lock and self._alone.acquire(timeout=LARGE_WAIT)
            job()
            if is_alone:
                self._alone.release()
            del job, found  # or they keep what came of it
            with self._changed:
                self._n_large -= is_large
                self._changed.notify()

    def _next(self) -> tuple[Job, bool] | None:
        """The next job, and whether it is a large one: these first, but the last thread takes none."""
        may_be_large = self._n_large < max(1, self.n_threads - 1)
        for lane in (self._large, self._small) if may_be_large else (self._small,):
            if lane and not self._has_ended:
                client, jobs = lane.popitem(last=False)
                job = jobs.popleft()
                if jobs:
                    lane[client] = jobs  # behind the others
                return job, lane is self._large
        return None


class Pools:
    """The threads of a server, by kind of work: of bodies and answers, of prompts, of grammars, of media, of
    PDFs, of prompts whose log-probabilities are wanted.

    Large jobs that threads do run one after another: Python's lock lets one of them run at a time anyway, and
    the more of them want it, the longer an engine waits for it after each of its kernels.

    Parameters
    ----------
    most_processes : for the jobs that would keep the lock for longest; 0 for none.
    """

    def __init__(self, most_processes: int = 0) -> None:
        alone = threading.Lock()
        self.processes: Processes = Processes(most_processes)
        self.parse: Workers = Workers("parsing", alone=alone)
        self.prepare: Workers = Workers("tokenizing", alone=alone)
        self.compile: Workers = Workers("compiling", alone=alone, is_heavy=True)
        self.encode: Workers = Workers("encoding", is_heavy=True)
        self.read_pdf: Workers = Workers("reading PDFs")  # threads wait for processes, half a minute perhaps
        self.score: Workers = Workers("scoring", 1)  # whose passes are beside those of the batch

    def close(self) -> None:
        every = (self.parse, self.prepare, self.compile, self.encode, self.read_pdf, self.score)
        for workers in every:
            workers.close()
        self.processes.close()


_DEFAULT = Pools()


def pools() -> Pools:
    """Those of the server whose request runs."""
    found: Pools = context().pools or _DEFAULT
    return found
