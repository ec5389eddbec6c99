"""Threads for work that would hold up the event loop: parsing, tokenizing, compiling.

Each kind of work has a few threads of its own, so that no job waits for another kind. Clients have turns: one
job of each client that waits is run, then one of the next. Large jobs leave one thread to small ones.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from oxillama.apps.server.callers import context
from oxillama.apps.server.processes import Processes
from oxillama.apps.server.urgency import be_patient, be_urgent
from oxillama.base.deadline import deadline
from oxillama.errors import QueueFull

T = TypeVar("T")

LARGE = 1 << 16
"""Bytes from which a job is a large one."""

LARGE_WAIT = 1.0
"""Seconds that a large job waits until no other one runs, of whatever kind; then it runs beside others."""

MOST_WAITING = 256
"""Jobs of one client that may wait for threads of a kind."""


class Job:
    """Something to run in a thread of a pool, and the future that waits for its result."""

    def __init__(self, run: Callable[[], Any], in_process: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.in_process: bool = in_process
        self._run = run

    def __call__(self) -> None:
        """Runs the job, in the thread that calls."""
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._run()
        except BaseException as found:
            error = found
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._settle, value, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, StopIteration):  # a future cannot hold it
            self.future.set_exception(RuntimeError(repr(error)))
        else:
            self.future.set_exception(error)


def limited(seconds: float, job: Callable[..., T], *arguments: Any) -> T:
    """The result of a job that has a deadline. Raises DeadlineExceeded at the job's next check of it."""
    with deadline(seconds):
        return job(*arguments)


class Workers:
    """The threads for one kind of work.

    They are daemons: a server that ends does not wait for a job that nobody waits for.

    Args:
        alone: that large jobs hold, of several kinds where these share the lock.
        is_heavy: whether small jobs, too, leave Python's lock to others.
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
    ) -> T:
        """The result of a job.

        Args:
            size: bytes that it works on.
            seconds: the deadline of the job, which the job checks; None: no deadline.
            in_process: whether the job waits for one of the `Processes`; it is a large one then.

        Raises:
            DeadlineExceeded: the job found its deadline passed.
            QueueFull: too many jobs of this client wait already.
        """
        copied = contextvars.copy_context()
        run = job if seconds is None else partial(limited, seconds, job)
        made = Job(partial(copied.run, run, *arguments), in_process)
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
        """Ends the threads, each after its job; waiting jobs are not run."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _work(self) -> None:
        was_patient: bool | None = None
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
            is_patient = is_large or self.is_heavy
            if is_patient is not was_patient:
                (be_patient if is_patient else be_urgent)()
                was_patient = is_patient
            needs_lock = is_large and not job.in_process
            is_alone = needs_lock and self._alone.acquire(timeout=LARGE_WAIT)
            job()
            if is_alone:
                self._alone.release()
            del job, found  # else they keep its result alive
            with self._changed:
                self._n_large -= is_large
                self._changed.notify()

    def _next(self) -> tuple[Job, bool] | None:
        """The next job, and whether it is large. Large jobs come first, but not for the last thread."""
        may_be_large = self._n_large < max(1, self.n_threads - 1)
        for lane in (self._large, self._small) if may_be_large else (self._small,):
            if lane and not self._has_ended:
                client, jobs = lane.popitem(last=False)
                job = jobs.popleft()
                if jobs:
                    lane[client] = jobs  # after the other clients
                return job, lane is self._large
        return None


async def in_daemon(job: Callable[[], T]) -> T:
    """The result of a job in a thread of its own, which the end of the process does not wait for.

    A task that is cancelled meanwhile leaves the job to its end; an engine that it makes is then closed. What
    only the job refers to is freed when the result is there.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(made: T | None, error: BaseException | None) -> None:
        if future.done():
            close(made)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(made)  # type: ignore[arg-type]

    def run() -> None:
        nonlocal job
        be_patient()
        made, error = None, None
        try:
            made = job()
        except BaseException as found:
            error = found
        del job
        try:
            loop.call_soon_threadsafe(tell, made, error)
        except RuntimeError:  # the loop has ended
            close(made)

    def close(made: object) -> None:
        with suppress(Exception):
            getattr(made, "close", lambda: None)()

    threading.Thread(target=run, name="server job", daemon=True).start()
    return await future


class Pools:
    """The threads of a server, by kind of work: of bodies and answers, of prompts, of grammars, of media, of
    PDFs, of prompts whose log-probabilities are wanted.

    Large jobs that threads do run one after another: Python's lock lets one of them run at a time anyway, and
    the more of them want it, the longer an engine waits for it after each of its kernels.

    Args:
        most_processes: for the jobs that would keep the lock for longest; 0 for none.
    """

    def __init__(self, most_processes: int = 0) -> None:
        alone = threading.Lock()
        self.processes: Processes = Processes(most_processes)
        self.parse: Workers = Workers("parsing", alone=alone)
        self.prepare: Workers = Workers("tokenizing", alone=alone)
        self.compile: Workers = Workers("compiling", alone=alone, is_heavy=True)
        self.encode: Workers = Workers("encoding", is_heavy=True)
        self.read_pdf: Workers = Workers("reading PDFs")  # threads wait for processes, half a minute perhaps
        self.score: Workers = Workers("scoring", 1)  # its passes run beside the batch's passes

    def close(self) -> None:
        every = (self.parse, self.prepare, self.compile, self.encode, self.read_pdf, self.score)
        for workers in every:
            workers.close()
        self.processes.close()


_DEFAULT = Pools()


def pools() -> Pools:
    """The pools of the server whose request runs."""
    found: Pools = context().pools or _DEFAULT
    return found
