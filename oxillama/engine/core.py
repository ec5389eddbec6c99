"""The loop that serves all requests of an engine: schedule, run, commit.

There is no thread of its own in it. Whoever waits for something leads a step when nobody else does, and
otherwise waits for the end of it; so one caller runs alone, and several threads share their batches. An
`AsyncEngine` is one more such thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from oxillama.engine.metrics import EngineMetrics
from oxillama.engine.request import Request
from oxillama.engine.runner import Runner
from oxillama.engine.scheduler import ScheduledBatch, Scheduler
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError

Row = np.ndarray | Exception | None

KEEP_BYTES = 64 << 20  # free memory of the pool that stays when nothing runs


class EngineCore:
    """Requests in, pieces of text out; safe from any thread.

    Parameters
    ----------
    runner : runs batches. Its pool is the scheduler's.
    scheduler : decides what runs.
    metrics : told what happened.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, metrics: EngineMetrics) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.metrics = metrics
        self._changed = threading.Condition(
            threading.Lock()
        )  # not reentrant: finalizers must see that it is held
        self._busy = False  # somebody leads a step, or uses the pages otherwise
        self._leader = 0  # the thread that does
        self._inbox: deque[Request] = deque()
        self._events = 0  # what may have made work where there was none

    # --- for the owners of requests -----------------------------------------------------------------

    def submit(self, request: Request, *, limited: bool = True) -> None:
        """Queues a request. Raises Busy if the queue is full and it is ``limited``."""
        with self._changed:
            if limited:
                self.scheduler.check_room(len(self._inbox))
            request.submitted_at = self.scheduler.clock()
            if request.timeout is not None:
                request.deadline = request.submitted_at + request.timeout
            self._inbox.append(request)
            self._notify()

    def next_piece(self, request: Request, ahead: float = 1) -> str | None:
        """Waits for the next piece of text, leading steps where nobody else does; None at the end.

        Raises what ended the request, if that was an error. The request pauses again when this returns.
        """
        request.ahead = ahead
        try:
            self.wait(lambda: bool(request.pieces) or request.finish_reason is not None)
        finally:
            request.ahead = 0 if ahead == 1 else ahead
        if request.pieces:
            return request.pieces.popleft()
        if request.error is not None:
            error, request.error = request.error, None
            raise error
        return None

    def join(self, request: Request) -> None:
        """Waits until a request has ended, leading steps where nobody else does."""
        self.wait(lambda: request.finish_reason is not None)

    def wait(self, ready: Callable[[], bool]) -> None:
        """Returns when ``ready``; leads steps until then, or waits for who does."""
        self._check_not_inside()
        with self._changed:
            while not ready():
                events = self._events
                if self._busy or not (self._lead() or ready() or events != self._events):
                    self._changed.wait()

    def cancel(self, request: Request) -> None:
        """Ends a request before its next step; frees its pages at once if no step is being run."""
        request.cancelled = True
        if request.finish_reason is None:
            with self._changed:
                self._tidy()
                self._notify()

    def end(self, request: Request, reason: str) -> None:
        """Ends a request now, waiting for the step that is being run; what was not read of it is dropped."""
        with self.exclusive():
            self._receive()
            self.scheduler.finish(request, reason)
            request.pieces.clear()
            self._announce([])

    def abandon(self, request: Request) -> None:
        """The same, where waiting for a lock is not allowed: from a finalizer."""
        request.cancelled = True
        if self._changed.acquire(blocking=False):
            try:
                self._tidy()
            finally:
                self._changed.release()

    def wake(self) -> None:
        """Makes all who wait look again: a reader wants more, or somebody need wait no longer."""
        with self._changed:
            self._notify()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps every step out while the pages are used otherwise."""
        self._check_not_inside()
        with self._changed:
            while self._busy:
                self._changed.wait()
            self._tidy()
            self._busy, self._leader = True, threading.get_ident()
        try:
            yield
        finally:
            self._busy, self._leader = False, 0
            with self._changed:
                self._changed.notify_all()

    def fail(self, requests: Iterable[Request], error: BaseException) -> None:
        """Ends requests with an error."""
        with self.exclusive():
            self._receive()
            for request in requests:
                self.scheduler.finish(request, "error", error)
            self._announce([])

    # --- for whoever leads --------------------------------------------------------------------------

    def _lead(self) -> bool:
        """Runs one step, with the lock given up meanwhile; whether there was anything to do."""
        self._busy, self._leader = True, threading.get_ident()
        self._changed.release()
        try:
            return self.step()
        finally:
            self._busy, self._leader = False, 0  # first, for a Ctrl-C may come between any two lines
            self._changed.acquire()
            self._changed.notify_all()

    def step(self) -> bool:
        """Schedules, runs and commits one batch, if there is anything to do. For one thread at a time."""
        started = time.perf_counter()
        self._receive()
        batch = self.scheduler.schedule()
        if batch.requests:
            self._commit(batch, self._forward(batch))
            self._measure(batch, time.perf_counter() - started)
        return bool(self._announce(batch.requests) or batch.requests)

    def _receive(self) -> None:
        while self._inbox:
            self.scheduler.add(self._inbox.popleft())

    def _forward(self, batch: ScheduledBatch) -> list[Row]:
        """For each request the logits it wants, None, or what went wrong."""
        try:
            rows = iter(self.runner.run(batch.sequences, batch.wanted))
            return [next(rows) if wanted else None for wanted in batch.wanted]
        except Exception as error:
            if len(batch.requests) == 1:
                return [error]
        # to see whose fault it is
        return [self._forward_alone(*part) for part in zip(batch.sequences, batch.wanted)]

    def _forward_alone(self, sequence: Sequence, wanted: bool) -> Row:
        """Runs what was scheduled again, and before it all that a lost state had seen."""
        end = sequence.scheduled_len
        try:
            sequence.rollback()
            while sequence.cached_len < end:
                n = min(end - sequence.cached_len, self.scheduler.chunk)
                rows = self.runner.forward([(sequence, n)])
            return rows[0] if wanted else None
        except Exception as error:
            return error

    def _commit(self, batch: ScheduledBatch, rows: list[Row]) -> None:
        """Samples where there are logits. What a request raises ends it alone."""
        for request, row in zip(batch.requests, rows):
            if isinstance(row, Exception):
                self.scheduler.finish(request, "error", row)
                continue
            self.scheduler.ran(request)
            if row is None:
                continue
            try:
                reason = request.take(row)
            except Exception as error:
                self.scheduler.finish(request, "error", error)
            except BaseException:  # the user's Ctrl-C: half a token is none
                self.scheduler.finish(request, "cancelled")
                raise
            else:
                self.metrics.token(request, self.scheduler.clock())
                if reason is not None:
                    self.scheduler.finish(request, reason)

    def _measure(self, batch: ScheduledBatch, seconds: float) -> None:
        self.scheduler.observe(batch, seconds)
        self.metrics.step(batch, seconds)
        for request in batch.requests:
            if len(request.tokens) <= 1:  # up to the first token
                request.prefill_seconds += seconds
            else:
                request.decode_seconds += seconds

    def _tidy(self) -> None:
        """Ends what was cancelled, if no step is being run; the lock is held."""
        if not self._busy:
            self._receive()
            self.scheduler.reap()
            self._announce([])

    def _announce(self, requests: list[Request]) -> int:
        """Tells listeners that there may be something to read; how many requests have ended."""
        ended = self.scheduler.drain_finished()
        for request in ended:
            self.metrics.end(request)
        for listener in {r.listener for r in (*requests, *ended) if r.listener is not None}:
            listener()
        if ended and not self.scheduler.running:
            self.runner.pool.shrink_to_fit(KEEP_BYTES)
        return len(ended)

    def _check_not_inside(self) -> None:
        """Raises ConfigError where waiting would be for ever: in what a step itself calls."""
        if self._leader == threading.get_ident():
            raise ConfigError("engine: is called from inside its own step, by a stage of a sampler say")

    def _notify(self) -> None:
        """Wakes all who wait; the lock is held."""
        self._events += 1
        self._changed.notify_all()
