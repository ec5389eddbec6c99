"""The loop that serves all requests of an engine: propose, schedule, launch, complete, commit, deliver.

Everything here is for one thread at a time: the engine thread, or a test that steps by hand.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence as Listed
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.base.faults import fault, note
from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.protocols import Drafter, Observer
from oxillama.engine.request import Request, TextRequest
from oxillama.engine.runner import HiddenHook, InFlight, Runner
from oxillama.engine.sampling.batch import sample_batch
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.sequence import Output, Sequence
from oxillama.errors import OxiLlamaError, QueueFull
from oxillama.models.decoder import ForwardCancelled

if TYPE_CHECKING:
    from oxillama.engine.sampling.batch import SampledToken

Rows = np.ndarray | Exception | None
Stream = tuple[TextRequest, np.ndarray, int]
"""A request, float32 (1 + proposals, vocab) rows of logits, and its number of tokens before the step."""

log: logging.Logger = logging.getLogger(__name__)

KEEP_BYTES = 64 << 20
"""Bytes of free pages that the pool keeps when nothing runs."""


NOTHING = ScheduledBatch()
"""The batch of a step that runs nothing."""


class Observers:
    """Calls the methods of some observers. What one of them raises is logged.

    Attributes:
        every: all of them, in the order in which they hear.
        hearers: by event, those whose method is not `Observer`'s own.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.every: tuple[Observer, ...] = tuple(observers)
        self.hearers: dict[str, list[Observer]] = {
            event: [o for o in self.every if getattr(type(o), event) is not getattr(Observer, event)]
            for event in vars(Observer)
            if not event.startswith("_")
        }

    def notify(self, event: str, *facts: object) -> None:
        """Calls every observer's method for an event."""
        for observer in self.hearers[event]:
            try:
                getattr(observer, event)(*facts)
            except Exception:
                note(log, logging.ERROR, "an observer failed", exc_info=True)


class EngineLoop:
    """Requests in, events out.

    Args:
        runner: runs batches. Its pool is the scheduler's.
        scheduler: decides what runs.
        observers: notified of events, in this order.

    Attributes:
        drafter: proposes tokens of all streams; None without speculation. `use_drafter` sets it.
        held: sequences that hold pages and belong to no request, and the objects that they belong to.
        has_cancelled: set by any thread together with a request's ``cancelled``.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, *observers: Observer) -> None:
        self.runner = runner
        self.scheduler = scheduler
        scheduler.depth = runner.depth
        self.observers: Observers = Observers(observers)
        self.drafter: Drafter | None = None
        self.held: dict[Sequence, weakref.ref[Any]] = {}
        self.has_cancelled: bool = False
        self._in_flight: deque[tuple[ScheduledBatch, InFlight | Exception]] = deque()
        self._batch = ScheduledBatch()  # the batch whose pass is being completed
        self._deadline = math.inf  # the earliest of that batch
        self._rest = math.inf  # seconds after which the matrices' memory is looked after again

    def use_drafter(self, drafter: Drafter) -> None:
        """Has a drafter propose tokens from now on, and be notified before the other observers."""
        others = [o for o in self.observers.every if o not in (drafter, self.drafter)]
        self.drafter, self.observers = drafter, Observers([drafter, *others])

    def add(self, request: Request) -> None:
        """Queues a request."""
        self.scheduler.add(request)
        self.observers.notify("queued", request)

    def check_room(self, tenant: str, n: int = 1, coming: Collection[Request] = ()) -> None:
        """Raises QueueFull if, with those ``coming``, no ``n`` more of a tenant may wait. From any thread."""
        most, waiting = self.scheduler.config.max_waiting, (*self.scheduler.waiting, *coming)
        found = sum(request.tenant == tenant for request in waiting) if len(waiting) >= most else 0
        if found >= most:
            self.observers.notify("refused", n)
            raise QueueFull(f"max_waiting: {most} requests may wait, and {found} do")

    def cancel(self, request: Request, reason: str = "cancelled") -> None:
        """Has a request end before its next layer. From any thread, and from finalizers."""
        request.cancelled = reason
        self.has_cancelled = True

    def step(self) -> bool:
        """Propose, schedule, launch, complete, commit, deliver; whether there was anything to do.

        The pass that is completed is the oldest one in flight, once the runner takes no more of them.
        """
        self.has_cancelled = False
        if self.runner.lost is not None or self.held:
            self._clean_up()
        began = time.perf_counter()
        self._propose()
        batch = self._schedule(began)
        self._launch(batch)
        completed, rows = self._complete(batch)
        self._commit(completed, rows)
        n_ended = self._deliver(completed.requests)
        return bool(n_ended or batch.requests or completed.requests)

    def complete_all(self) -> None:
        """Completes the passes that are in flight."""
        while self._in_flight:
            completed, rows = self._complete(NOTHING)
            self._commit(completed, rows)
            self._deliver(completed.requests)

    def time_to_deadline(self) -> float:
        """Seconds until the first deadline of a request, or until the memory of matrices is checked again."""
        return min(self.scheduler.next_deadline() - self.scheduler.clock(), self._rest)

    def end_all(self, reason: str, error: Callable[[], BaseException]) -> None:
        """Ends every request, each with an error of its own."""
        self._abandon()
        for request in [*self.scheduler.waiting, *self.scheduler.running]:
            self.scheduler.finish(request, reason, error())
        self._deliver([])

    def hold(self, sequence: Sequence, owner: weakref.ref[Any]) -> None:
        """Counts the pages of a sequence as an owner's, which are freed when the owner is gone."""
        self.held[sequence] = owner

    def release(self, sequence: Sequence) -> None:
        """Frees the pages of a sequence that was held."""
        self.held.pop(sequence, None)
        sequence.release()

    def check_integrity(self) -> None:
        """Asserts that every page is free, cached, or owned by a sequence, and counted once for each."""
        self.scheduler.check_integrity(self.held)

    # --- the model ----------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Restarts a runner whose memory is lost, and frees held sequences whose owners are gone."""
        if self.runner.lost is not None and (self.scheduler.running or self.scheduler.waiting or self.held):
            self._restart(self.runner.lost)
        for sequence in [s for s, owner in self.held.items() if owner() is None]:
            self.release(sequence)

    def _propose(self) -> None:
        """Has the drafter propose tokens of the requests whose sequences may change."""
        if self.drafter is not None:
            self.drafter.propose([r for r in self.scheduler.queues.idle() if isinstance(r, TextRequest)])

    def _schedule(self, began: float) -> ScheduledBatch:
        """The next batch, of a step that ``began`` at that time."""
        proposed = time.perf_counter()
        batch = self.scheduler.schedule()
        batch.times.propose, batch.times.schedule = began, proposed
        for request in batch.preempted:
            self.observers.notify("preempted", request)
        for request in batch.admitted:
            self.observers.notify("admitted", request)
        return batch

    def _launch(self, batch: ScheduledBatch) -> None:
        """Begins the pass of a batch that is not empty."""
        if not batch.requests:
            return
        batch.times.launch = time.perf_counter()
        try:
            hooks = self._hooks(batch.requests)
            pending: InFlight | Exception = self.runner.launch(batch.sequences, batch.outputs, hooks)
        except Exception as error:
            pending = error
        self._in_flight.append((batch, pending))
        if self.runner.depth > 1:
            self.scheduler.in_flight += batch.requests

    def _hooks(self, requests: list[Request]) -> Listed[HiddenHook | None]:
        """The hook of each request, which gets the hidden states of its rows; () if no request has a hook."""
        return () if self.drafter is None else self.drafter.hidden_hooks(requests)

    def _complete(self, launched: ScheduledBatch) -> tuple[ScheduledBatch, list[Rows] | None]:
        """Ends the oldest pass in flight, unless the runner takes more after the one just launched.

        Returns its batch, `NOTHING` for none, and for each request its rows, None if it gets none, or its
        error; no list if the pass was cancelled or its memory is lost.
        """
        if not self._in_flight:
            self._rest = self.runner.model.store.rest()
            return NOTHING, None
        if launched.requests and len(self._in_flight) < self.runner.depth:
            return NOTHING, None
        self._batch, pending = self._in_flight.popleft()
        requests = self._batch.requests
        if self.scheduler.in_flight:
            self.scheduler.in_flight[:] = [r for r in self.scheduler.in_flight if r not in requests]
        self._deadline = math.inf
        for request in requests:
            self._deadline = min(self._deadline, request.deadline)
        self._batch.times.complete = time.perf_counter()
        try:
            if isinstance(pending, Exception):
                raise pending
            return self._batch, list(self.runner.complete(pending, self._is_given_up))
        except ForwardCancelled:
            return self._batch, None  # the scheduler rolls back what was scheduled
        except Exception as error:
            if self.runner.lost is not None:
                return self._batch, None
            if len(requests) == 1:
                return self._batch, [error]
        # each request runs alone, to find the one that fails
        return self._batch, list(map(self._forward_alone, requests, self._batch.outputs))

    def _forward_alone(self, request: Request, output: Output) -> Rows:
        """Runs the scheduled tokens of one request again, after those whose recurrent state was lost."""
        sequence = request.sequence
        start, end = sequence.cached_len, sequence.scheduled_len
        try:
            sequence.rollback()
            end = min(end, sequence.total_len)  # proposals are gone
            while sequence.cached_len < end:
                left = (start if sequence.cached_len < start else end) - sequence.cached_len
                sequence.schedule(min(left, max(self.scheduler.chunk, end - start)))
                (rows,) = self.runner.run([sequence], [output], None, self._hooks([request]))
                sequence.commit()
            return rows
        except Exception as error:
            return error

    def _is_given_up(self) -> bool:
        """Ends cancelled and late requests between layers; whether they have more than half of the rows."""
        if not self.has_cancelled and (self._deadline == math.inf or self.scheduler.clock() < self._deadline):
            return False
        self.has_cancelled, self._deadline = False, math.inf
        now, n_ended, n_rows = self.scheduler.clock(), 0, 0
        for request in self._batch.requests:
            reason = request.ends_at(now)
            n = request.sequence.scheduled_len - request.sequence.cached_len
            n_rows += n
            if reason is None:
                self._deadline = min(self._deadline, request.deadline)
            else:
                n_ended += n
                request.finish(reason)  # its pages stay until the pass is over
                request.publish_end()
                if request.listener is not None:
                    request.listener()
        return 2 * n_ended > n_rows

    def _abandon(self) -> None:
        """Forgets the passes that are in flight: nobody takes their rows."""
        self._in_flight.clear()
        self.scheduler.in_flight.clear()

    def _restart(self, lost: OxiLlamaError) -> None:
        """Mends the runner. The sequences have no pages any more, only their tokens."""
        self._abandon()
        if not self.runner.begins_again:
            for request in list(self.scheduler.running):
                self.scheduler.finish(request, "error", type(lost)(str(lost)))
        self.scheduler.begin_again()
        for sequence in self.held:
            sequence.forget()
        try:
            self.runner.restart()
        except OxiLlamaError as error:
            self.end_all("error", partial(type(error), str(error)))
        else:
            self.runner.lost = None

    # --- the rows -----------------------------------------------------------------------------------

    def _commit(self, batch: ScheduledBatch, rows: list[Rows] | None) -> None:
        """Hands rows to their requests, samples the next tokens of all streams together, and measures the
        step. An error ends only the request that raised it."""
        if rows is None:
            return
        batch.times.commit = time.perf_counter()
        streams: list[Stream] = []
        for request, row in zip(batch.requests, rows):
            if isinstance(row, Exception):
                self._fail(request, row)
                continue
            self.scheduler.commit(request)
            if request.finish_reason is not None:  # ended between layers
                self.scheduler.finish(request, request.finish_reason)
            elif row is None:
                continue
            elif isinstance(request, TextRequest):
                streams.append((request, row, request.sequence.n_accepted))
            else:
                self._take(request, request.take_rows, row)
        batch.times.sample = time.perf_counter()
        if streams:
            self._sample(batch, streams)
        batch.times.end = time.perf_counter()
        try:
            self._observe(batch)
        except Exception:  # no text depends on it
            note(log, logging.ERROR, "a step could not be measured", exc_info=True)

    def _take(self, request: Request, take: Callable[..., str | None], *result: Any) -> None:
        """Gives a request the result of a step; an error ends the request alone."""
        try:
            reason = take(*result)
        except Exception as error:
            self._fail(request, error)
        else:
            if reason is not None:
                self.scheduler.finish(request, reason)

    def _fail(self, request: Request, error: BaseException) -> None:
        self.scheduler.finish(request, "error", fault(error))

    def _sample(self, batch: ScheduledBatch, streams: list[Stream]) -> None:
        """Samples each request's rows of logits in order, and goes on as long as the sampled token is the
        proposed one: the next row is then the one after it."""
        batch.begin_sampling(streams)
        while streams:
            rows, left = self._sampled(streams), []
            for stream, (row, sampled) in zip(streams, rows):
                request = stream[0]
                if not isinstance(sampled, BaseException):
                    self._take(request, request.take, sampled, row)
                elif request.sampler.chain.has_callables:  # the user's own error
                    self.scheduler.finish(request, "error", sampled)
                else:
                    self._fail(request, sampled)
                if request.finish_reason is None and not request.sequence.pending:
                    left.append(stream)
            streams = left
        batch.end_sampling()

    def _sampled(self, streams: list[Stream]) -> list[tuple[np.ndarray, int | SampledToken | BaseException]]:
        """The next row of each stream, and the token sampled from it or the error of its sampler."""
        samplers, rows, histories, tops = [], [], [], []
        for request, logits, start in streams:
            sequence = request.sequence
            samplers.append(request.sampler)
            rows.append(request.row(logits[sequence.n_accepted - start]))
            histories.append(sequence.accepted if request.sampler.chain.window else [])
            tops.append(request.n_top_logprobs)
        try:
            found = sample_batch(samplers, rows, histories, tops, self.runner.n_threads)
        except BaseException as error:  # a stage raised SystemExit, say; to see whose
            if len(streams) == 1:
                return [(rows[0], error)]
            return [self._sampled([stream])[0] for stream in streams]
        return list(zip(rows, found))

    def _observe(self, batch: ScheduledBatch) -> None:
        """Tells the observers and the requests what a step brought, and how long it took."""
        times, now = batch.times, self.scheduler.clock()
        seconds = times.end - times.propose
        self.scheduler.budget.observe(batch, seconds)
        self.observers.notify("stepped", batch, now)
        for sampled in batch.sampled:
            if sampled.n_tokens:
                sampled.request.note_tokens(now, sampled.n_tokens)
        for request, is_prefill in zip(batch.requests, batch.prefills):
            if is_prefill:
                request.prefill_seconds += seconds
                request.prefill_steps.append((request.sequence.cached_len, request.prefill_seconds))
            else:
                request.decode_seconds += seconds

    def _deliver(self, requests: list[Request]) -> int:
        """Publishes the ends of requests, and tells listeners of new events; how many requests have ended."""
        began = time.perf_counter()
        ended = self.scheduler.drain_finished()
        try:
            for request in ended:
                self.observers.notify("ended", request, self.scheduler.clock())
            if ended and not self.scheduler.running:
                self.runner.pool.shrink_to_fit(KEEP_BYTES)
        finally:  # a consumer that learns of the end finds everything done and counted
            for request in ended:
                request.publish_end()
            listeners = set()
            for request in (*requests, *ended):
                if request.listener is not None:
                    listeners.add(request.listener)
            if listeners:
                self._wake(listeners)
        if self.observers.hearers["delivered"]:
            self.observers.notify("delivered", len(requests) + len(ended), began, self.scheduler)
        return len(ended)

    def _wake(self, listeners: set[Callable[[], object]]) -> None:
        """Calls what waits for events without blocking."""
        for listener in listeners:
            try:
                listener()
            except Exception:
                listener()  # a second try: a consumer must not wait for ever
