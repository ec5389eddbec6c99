"""The engine thread: the only thread that steps the loop, and the only one that runs the model with OpenMP.

Callers put commands into its inbox and wait for the results. A command is run after the step that is
running, whatever the load. Signals interrupt only the callers. A forked child has no engine thread, and
starts its own when it first needs one: it never waits for OpenMP threads that only its parent has.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from oxillama._kernels.openmp_thread import may_enter_openmp
from oxillama.base.faults import fault
from oxillama.base.locks import ForkedOpen, waited
from oxillama.engine.loop import EngineLoop
from oxillama.engine.request import Request
from oxillama.errors import ConfigError, EngineClosed

T = TypeVar("T")
Command = Callable[[], object]

LONGEST = 1e6
"""Most seconds to wait for a command at a time."""

FORK_POLL = 0.001
"""Seconds between two looks whether a fork is over."""


class EngineThread:
    """Runs commands, and steps a loop as long as there is something to do.

    Attributes:
        loop: set by a job of the thread, once there is a model.
    """

    def __init__(self) -> None:
        self.loop: EngineLoop | None = None
        self._inbox: SimpleQueue[Command | None] = SimpleQueue()
        self._no_thread()
        self._starting = ForkedOpen()  # reentrant: a finalizer may close the thread at any time
        self._coming: weakref.WeakSet[Request] = weakref.WeakSet()  # requests in the inbox
        self._closed: BaseException | None = None  # nothing more is taken
        self._is_ending = False  # what was taken before has been
        self._stepping = threading.RLock()  # a fork waits for it, to find everything in order
        self._is_forking = False
        _threads.add(self)

    # --- for callers --------------------------------------------------------------------------------

    def _no_thread(self) -> None:
        """There is no thread yet."""
        self._thread: threading.Thread | None = None  # set by itself
        self._first = threading.Lock()  # held by the thread
        self._started, self._ended = threading.Event(), threading.Event()

    def submit(self, *requests: Request, limited: bool = True) -> None:
        """Queues requests, all or none; the scheduler then sees all of them in the same step.

        Raises:
            QueueFull: the queue is full, and they are ``limited``: together they need one place.
            EngineClosed: the thread has ended.
        """
        loop = self._need_loop()
        with self._starting.lock:  # what is taken comes before the command that closes
            self._check_open()
            if limited:
                loop.check_room(requests[0].tenant, len(requests), self._coming)
            now = loop.scheduler.clock()
            for request in requests:
                self._coming.add(request)
                request.submit(now)
            self._inbox.put(partial(self._add, requests))
        self._start()

    def cancel(self, request: Request, reason: str = "cancelled") -> None:
        """Has a request end before its next layer. Also from finalizers: no lock is taken."""
        if self.loop is not None and request.finish_reason is None:
            self.loop.cancel(request, reason)
            self._inbox.put(None)

    def wake(self) -> None:
        """Makes the loop look again: a consumer has made room."""
        self._inbox.put(None)

    def post(self, command: Command) -> None:
        """Has a command run after the running step, if the thread still runs; waits for nothing."""
        self._inbox.put(command)

    def call(self, job: Callable[[], T]) -> T:
        """Runs a job after the running step, with the pages to itself; what it returns, or raises.

        Raises:
            ConfigError: this is the engine thread: the job would wait for the step that waits for it.
            EngineClosed: the thread has ended.
        """
        self.check_outside()
        self._check_open()
        call = _Call(lambda: self._alone(job))
        self._inbox.put(call)
        self._start()
        return call.result(self)

    def _alone(self, job: Callable[[], T]) -> T:
        """Runs a job when no pass is in flight."""
        if self.loop is not None:
            self.loop.complete_all()
        return job()

    def check_outside(self) -> None:
        """Raises ConfigError in the engine thread, which would wait for itself for ever."""
        if self._thread is threading.current_thread():
            raise ConfigError("engine: is called from inside its own step, by a stage of a sampler say")

    @property
    def is_open(self) -> bool:
        """Whether it takes commands."""
        return self._closed is None

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, so that it can tell nobody anything more."""
        return self._ended.is_set()

    def close(self, *, finish: bool = False, wait: bool = True) -> None:
        """Ends the thread: after the requests if ``finish``, otherwise they are cancelled."""
        with self._starting.lock:
            if self._closed is None:
                self._closed = EngineClosed("engine: is closed")
        if self.has_ended:
            return  # a command that nobody takes out would keep this thread, and with it the model
        if finish:
            self._inbox.put(self._finish_all)
        else:
            self._give_up_pass()
            self._inbox.put(self._cancel_all)
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            waited(self._ended.wait)  # after a Ctrl-C in `Thread.join` Python may take the thread for ended
            thread.join()

    def _need_loop(self) -> EngineLoop:
        if self.loop is None:
            raise ConfigError("model_path: no model is loaded")
        return self.loop

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._refusal()

    def _refusal(self) -> EngineClosed:
        """Why nothing is run any more; a new error each time, for each consumer's traceback."""
        made = EngineClosed(str(self._closed))
        made.__cause__ = None if self._closed is None else self._closed.__cause__
        return made

    def _start(self) -> None:
        """Starts the thread unless it runs."""
        if self._thread is None:
            with self._starting.lock:
                if self._thread is None:
                    # a daemon, for nobody joins those before the exit handlers run, of which one closes it
                    waited(threading.Thread(target=self._run, name="oxillama", daemon=True).start)
                    waited(self._started.wait)

    # --- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._first.acquire(blocking=False):
            return  # a Ctrl-C kept the caller from seeing that the thread was started
        self._thread = threading.current_thread()
        self._started.set()
        may_enter_openmp()
        try:
            while not self._is_ending or self._has_requests():
                try:
                    self._turn()
                except BaseException as error:
                    if self.loop is None:
                        raise
                    self.loop.end_all("error", partial(fault, error))
        except BaseException as error:
            self._closed = EngineClosed(f"engine: its thread has ended ({error!r})")
            self._closed.__cause__ = error
        try:
            self._refuse_rest()
        finally:
            self._ended.set()

    def _turn(self) -> None:
        """Runs the commands that are there and one step, or waits for a command."""
        while self._is_forking:
            time.sleep(FORK_POLL)
        with self._stepping:
            if not self._inbox.empty():
                self._run_commands()
            is_idle = self.loop is None or not self.loop.step()
        if is_idle and (not self._is_ending or self._has_requests()):
            wait = math.inf if self.loop is None else self.loop.time_to_deadline()
            try:
                command = self._inbox.get(timeout=None if wait == math.inf else min(max(0.0, wait), LONGEST))
            except Empty:
                return
            with self._stepping:
                if command is not None:
                    command()

    def _run_commands(self) -> None:
        for _ in range(self._inbox.qsize()):  # no more, or callers in a row would keep steps out
            command = self._inbox.get_nowait()
            if command is not None:
                command()

    def _has_requests(self) -> bool:
        return self.loop is not None and bool(self.loop.scheduler.waiting or self.loop.scheduler.running)

    def _add(self, requests: tuple[Request, ...]) -> None:
        with self._starting.lock:
            self._coming.difference_update(requests)
        loop = self._need_loop()
        for request in requests:
            try:
                loop.add(request)
            except Exception as error:
                loop.scheduler.finish(request, "error", fault(error))

    def _cancel_all(self) -> None:
        self._is_ending = True
        if self.loop is not None:
            self.loop.complete_all()
            self.loop.end_all("cancelled", self._refusal)

    def _give_up_pass(self) -> None:
        """Has the running pass end before its next layer, if nobody needs it any more."""
        if self.loop is not None:
            for request in [*self.loop.scheduler.running]:
                request.cause = self._refusal()
                self.loop.cancel(request)

    def _finish_all(self) -> None:
        self._is_ending = True
        if self.loop is not None:  # they must end, read or not
            for request in (*self.loop.scheduler.waiting, *self.loop.scheduler.running):
                request.window = math.inf

    def _refuse_rest(self) -> None:
        """Ends what arrived after the thread was closed: jobs raise, requests end."""
        try:
            self._run_commands()
        finally:
            if self.loop is not None:
                self.loop.end_all("cancelled", self._refusal)

    # --- forks --------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        self._is_forking = True
        self._stepping.acquire()

    def _after_fork(self) -> None:
        self._stepping.release()
        self._is_forking = False

    def _after_fork_in_child(self) -> None:
        self._after_fork()
        coming = list(self._coming)
        self._inbox, self._coming = SimpleQueue(), weakref.WeakSet()
        self._no_thread()
        if self.loop is not None:
            for request in coming:
                request.finish("error", in_parent())
                request.publish_end()
            self.loop.end_all("error", in_parent)


def in_parent() -> EngineClosed:
    """The error for the consumer of a request that does not run in this process."""
    return EngineClosed("request: it runs in the process that was forked")


class _Call(Generic[T]):
    """A job whose caller waits for its result."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def __call__(self) -> None:
        try:
            self._done.put((self._job(), None))
        except BaseException as error:
            self._done.put((None, error))

    def result(self, thread: EngineThread) -> T:
        """What the job returned, or raised."""
        while True:
            try:
                value, error = self._done.get(timeout=1.0)
            except Empty:
                if not thread.has_ended:
                    continue
                thread._check_open()
                raise EngineClosed("engine: its thread has ended") from None
            if error is not None:
                raise error
            return value  # type: ignore[return-value]


_threads: weakref.WeakSet[EngineThread] = weakref.WeakSet()
_forking: list[EngineThread] = []  # threads that wait for a fork


def _before_fork() -> None:
    _forking[:] = list(_threads)
    for thread in _forking:
        thread._before_fork()


def _after_fork() -> None:
    for thread in _forking:
        thread._after_fork()
    _forking.clear()


def _after_fork_in_child() -> None:
    for thread in _forking:
        thread._after_fork_in_child()
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


@atexit.register
def _close_all() -> None:
    for thread in list(_threads):
        thread.close()
