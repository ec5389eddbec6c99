"""The loop that serves all requests of an engine: schedule, run, sample, commit.

Everything here is for one thread at a time: the engine thread, or a test that steps by hand.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from oxillama.engine.observers import Observer, Observers
from oxillama.engine.request import EmbeddingRequest, Request, TextRequest
from oxillama.engine.runner import Runner
from oxillama.engine.scheduler import ScheduledBatch, Scheduler
from oxillama.engine.sequence import Sequence
from oxillama.errors import QueueFull
from oxillama.faults import fault, note
from oxillama.models.decoder import ForwardCancelled
from oxillama.observability.metrics import EngineMetrics
from oxillama.sampling.batch import sample_batch
from oxillama.sampling.logprobs import SampledToken
from oxillama.speculation.jump_forward import next_tokens
from oxillama.speculation.speculator import Speculator, give_up

Rows = np.ndarray | Exception | None
Streams = list[tuple[TextRequest, np.ndarray]]
"""Requests with rows of logits: (1 + drafts, vocab), or one of them."""

log = logging.getLogger(__name__)

KEEP_BYTES = 64 << 20
"""Bytes of free pages that the pool keeps when nothing runs."""


class EngineLoop:
    """Requests in, events out.

    Parameters
    ----------
    runner : runs batches. Its pool is the scheduler's.
    scheduler : decides what runs.
    metrics, observers : told what happens, in this order.

    Attributes
    ----------
    held : sequences that hold pages and belong to no request, and the sessions that they belong to.
    has_cancelled : set by any thread together with a request's ``cancelled``.
    """

    def __init__(
        self, runner: Runner, scheduler: Scheduler, metrics: EngineMetrics, *observers: Observer
    ) -> None:
        self.runner = runner
        self._rest = math.inf  # seconds after which the matrices' memory is looked after again
        self.scheduler = scheduler
        self.metrics = metrics
        self.observers = Observers([metrics, *observers])
        self.held: dict[Sequence, weakref.ref[Any]] = {}
        self.has_cancelled = False
        self.speculator = Speculator()
        self._batch = ScheduledBatch()
        self._deadline = math.inf  # the earliest of the batch under way

    def add(self, request: Request) -> None:
        """Queues a request."""
        self.scheduler.add(request)
        self.observers.queue(request)

    def check_room(self, n_coming: int, n: int) -> None:
        """Raises QueueFull if the queue is full, counting ``n_coming`` requests, for ``n`` more."""
        try:
            self.scheduler.check_room(n_coming)
        except QueueFull:
            self.observers.refuse(n)
            raise

    def cancel(self, request: Request, reason: str = "cancelled") -> None:
        """Has a request end before its next layer. From any thread, and from finalizers."""
        request.cancelled = reason
        self.has_cancelled = True

    def step(self) -> bool:
        """Schedules, runs and commits one batch; whether there was anything to do."""
        started = time.perf_counter()
        self.has_cancelled = False
        self._release_dropped()
        self._draft()
        began = time.perf_counter()
        batch = self._batch = self._schedule()
        if not batch.requests:
            self._rest = self.runner.model.store.rest()
        if batch.requests:
            self._deadline = min(request.deadline for request in batch.requests)
            self._take_rows(batch, self._forward(batch), started, began)
        return bool(self._announce(batch.requests) or batch.requests)

    def _take_rows(
        self, batch: ScheduledBatch, rows: list[Rows] | None, started: float, began: float
    ) -> None:
        """Commits a batch that has run, and notes the time since its step and its pass were begun."""
        if rows is None:
            return
        self._commit(batch, rows)
        try:
            self._measure(batch, time.perf_counter() - started)
            self.speculator.observe(batch, time.perf_counter() - began)
        except Exception:  # no text depends on it
            note(log, logging.ERROR, "a step could not be measured", exc_info=True)

    def land(self) -> None:
        """Ends the passes that are under way: here, none is between two steps."""

    def _draft(self) -> None:
        self.speculator.draft([r for r in self.scheduler.running if isinstance(r, TextRequest)])

    def _schedule(self) -> ScheduledBatch:
        batch = self.scheduler.schedule()
        for request in batch.preempted:
            self.observers.preempt(request)
        for request in batch.admitted:
            self.observers.admit(request)
        return batch

    def time_to_deadline(self) -> float:
        """Seconds until a request is to end, whether it runs or not, or the matrices need a look."""
        return min(self.scheduler.next_deadline() - self.scheduler.clock(), self._rest)

    def end_all(self, reason: str, error: Callable[[], BaseException]) -> None:
        """Ends every request, each with an error of its own."""
        for request in [*self.scheduler.waiting, *self.scheduler.running]:
            self.scheduler.finish(request, reason, error())
        self._announce([])

    def hold(self, sequence: Sequence, session: weakref.ref[Any]) -> None:
        """Counts the pages of a sequence as a session's, which are freed when that is gone."""
        self.held[sequence] = session

    def release(self, sequence: Sequence) -> None:
        """Frees the pages of a session's sequence."""
        self.held.pop(sequence, None)
        sequence.release()

    def _release_dropped(self) -> None:
        for sequence in [s for s, session in self.held.items() if session() is None]:
            self.release(sequence)

    def check_integrity(self) -> None:
        """Asserts that every page is free, cached, or owned by a sequence, and counted once for each."""
        self.scheduler.check_integrity(self.held)

    # --- the model ----------------------------------------------------------------------------------

    def _forward(self, batch: ScheduledBatch) -> list[Rows] | None:
        """For each request its rows, None if it wants none, or its error; None if the pass was cancelled."""
        try:
            taps = self.speculator.taps(batch.requests)
            return list(self.runner.run(batch.sequences, batch.outputs, self._is_given_up, taps))
        except ForwardCancelled:
            return None  # the scheduler takes back what was scheduled
        except Exception as error:
            if len(batch.requests) == 1:
                return [error]
        # one by one, to find the request that fails
        return [self._forward_alone(request) for request in batch.requests]

    def _forward_alone(self, request: Request) -> Rows:
        """Runs the scheduled tokens of one request again, after those whose recurrent state was lost."""
        sequence, output = request.sequence, self._batch.output_of(request)
        start, end = sequence.cached_len, sequence.scheduled_len
        try:
            sequence.rollback()
            end = min(end, sequence.total_len)  # drafts are gone
            while sequence.cached_len < end:
                left = (start if sequence.cached_len < start else end) - sequence.cached_len
                sequence.schedule(min(left, max(self.scheduler.chunk, end - start)))
                (rows,) = self.runner.run([sequence], [output], None, self.speculator.taps([request]))
                sequence.commit()
            return rows
        except Exception as error:
            return error

    def _is_given_up(self) -> bool:
        """Called between layers: ends requests that are cancelled or late; whether most rows are theirs."""
        if not self.has_cancelled and self.scheduler.clock() < self._deadline:
            return False
        self.has_cancelled = False
        now, n_ended, n_rows = self.scheduler.clock(), 0, 0
        self._deadline = math.inf
        for request in self._batch.requests:
            reason = request.ends_at(now)
            n = request.sequence.scheduled_len - request.sequence.cached_len
            n_rows += n
            if reason is None:
                self._deadline = min(self._deadline, request.deadline)
            else:
                n_ended += n
                request.finish(reason)  # its pages stay until the pass is over
                request.tell()
                if request.listener is not None:
                    request.listener()
        return 2 * n_ended > n_rows

    # --- what comes of it ---------------------------------------------------------------------------

    def _commit(self, batch: ScheduledBatch, rows: list[Rows]) -> None:
        """Hands rows to their requests and samples the next tokens of all streams together. An error ends
        only the request that raised it."""
        streams: Streams = []
        for request, row in zip(batch.requests, rows):
            if isinstance(row, Exception):
                self._fail(request, row)
                continue
            self.scheduler.ran(request)
            if request.finish_reason is not None:  # told between layers
                self.scheduler.finish(request, request.finish_reason)
            elif isinstance(request, TextRequest) and row is not None:
                streams.append((request, row))
            elif isinstance(request, EmbeddingRequest) and row is not None:
                self._take(request, partial(request.take, row))
        self._sample(streams)

    def _take(self, request: Request, take: Callable[[], str | None]) -> None:
        """Gives a request what a step brought it; its error ends it alone."""
        try:
            reason = take()
        except Exception as error:
            self._fail(request, error)
        else:
            if reason is not None:
                self.scheduler.finish(request, reason)

    def _fail(self, request: Request, error: BaseException) -> None:
        self.scheduler.finish(request, "error", fault(error))

    def _sample(self, streams: Streams) -> None:
        """Samples tokens for each request from its rows of logits, as long as they are the drafted ones."""
        speculations = [request.speculation for request, _ in streams if request.speculation is not None]
        if not any(request.sequence.n_drafts for request, _ in streams):
            for speculation in speculations:
                speculation.skip()
            speculations = []
        for request, _ in streams if speculations else ():
            if request.speculation is not None:
                request.speculation.begin(request.sequence.n_drafts)
        going, starts = streams, [request.sequence.n_certain for request, _ in streams]
        while going:
            rows = [
                (request, request.row(rows[request.sequence.n_certain - start]))
                for (request, rows), start in zip(going, starts)
            ]
            for (request, row), sampled in zip(rows, self._sampled(rows)):
                if not isinstance(sampled, BaseException):
                    self._take(request, partial(self._add_tokens, request, sampled, row))
                elif request.sampler.chain.has_callables:  # the user's own error
                    self.scheduler.finish(request, "error", sampled)
                else:
                    self._fail(request, sampled)
            if not speculations:
                return  # there is one row for each
            left = [
                (stream, start)
                for stream, start in zip(going, starts)
                if stream[0].finish_reason is None and not stream[0].sequence.pending
            ]
            going, starts = [stream for stream, _ in left], [start for _, start in left]
        for speculation in speculations:
            self.observers.draft(*speculation.end())

    def _add_tokens(self, request: TextRequest, sampled: int | SampledToken, row: np.ndarray) -> str | None:
        """Adds a sampled token and those that must follow; the reason if the last of them ends the text."""
        reason = self._add_token(request, sampled, row)
        if reason is not None or request.jump is None:
            return reason
        for token in next_tokens(request.jump, request.sampler):
            if request.speculation is not None and request.sequence.n_drafts:
                request.speculation.pass_over()
            request.sampler.accept(token)
            reason = self._add_token(request, token, None)
            if reason is not None:
                break
        return reason

    def _add_token(
        self, request: TextRequest, sampled: int | SampledToken, row: np.ndarray | None
    ) -> str | None:
        reason = request.take(sampled, row)
        if request.speculation is not None:
            # a token that is not pending was drafted: the pass has run it, and has the logits after it
            request.speculation.n_accepted += not request.sequence.pending
        now = self.scheduler.clock()
        self.observers.token(request, now)
        request.note_token(now)
        return reason

    def _sampled(self, streams: Streams) -> list[int | SampledToken | BaseException]:
        """For each stream its next token, or what its sampler raised."""
        if all(request.speculation is None or request.speculation.random is None for request, _ in streams):
            return self._drawn(streams)
        verified = [self._verified(request, row) for request, row in streams]
        drawn = iter(self._drawn([s for s, token in zip(streams, verified) if token is None]))
        return [next(drawn) if token is None else token for token in verified]

    def _verified(self, request: TextRequest, row: np.ndarray) -> int | SampledToken | BaseException | None:
        """The next token of a request whose draft the rejection rule verifies; None if there is none."""
        sequence, speculation = request.sequence, request.speculation
        if speculation is None or speculation.random is None or not sequence.n_drafts:
            return None
        try:
            drafted = sequence.tokens[-sequence.n_drafts]
            return speculation.verify(request.sampler, row, sequence.certain, drafted, request.n_top_logprobs)
        except BaseException as error:
            return error

    def _drawn(self, streams: Streams) -> list[int | SampledToken | BaseException]:
        """For each stream the token that its sampler draws, or what that raised."""
        if len(streams) == 1:
            return [_drawn_alone(*streams[0])]
        try:
            return [
                *sample_batch(
                    [request.sampler for request, _ in streams],
                    [row for _, row in streams],
                    [request.sequence.certain for request, _ in streams],
                    [request.n_top_logprobs for request, _ in streams],
                    n_threads=self.runner.n_threads,
                )
            ]
        except BaseException:  # a stage raised SystemExit, say; to see whose
            pass
        return [self._drawn([stream])[0] for stream in streams]

    def _measure(self, batch: ScheduledBatch, seconds: float) -> None:
        self.scheduler.observe(batch, seconds)
        self.observers.step(batch, seconds)
        for request, is_prefill in zip(batch.requests, batch.prefills):
            if is_prefill:
                request.prefill_seconds += seconds
            else:
                request.decode_seconds += seconds

    def _announce(self, requests: list[Request]) -> int:
        """Tells readers that there may be something to read; how many requests have ended."""
        ended = self.scheduler.drain_finished()
        try:
            for request in ended:
                self._close(request)
            if ended and not self.scheduler.running:
                self.runner.pool.shrink_to_fit(KEEP_BYTES)
        finally:  # whoever is told finds everything done and counted
            for request in ended:
                request.tell()
            self._wake({r.listener for r in (*requests, *ended) if r.listener is not None})
        return len(ended)

    def _close(self, request: Request) -> None:
        """Notes the end of a request, and frees what drafted for it."""
        self.observers.end(request, self.scheduler.clock())
        if isinstance(request, TextRequest) and request.speculation is not None:
            try:
                request.speculation.drafter.forget(request.sequence)
            except Exception:
                give_up(request.speculation.drafter, [request])

    def _wake(self, listeners: set[Callable[[], object]]) -> None:
        """Calls what waits for events without blocking."""
        for listener in listeners:
            try:
                listener()
            except Exception:
                listener()  # or a reader would wait for ever


def _drawn_alone(request: TextRequest, row: np.ndarray) -> int | SampledToken | BaseException:
    """The token that the sampler of a request draws, or what that raised."""
    sampler, top = request.sampler, request.n_top_logprobs
    history = request.sequence.certain if sampler.chain.window else []
    try:
        return (
            sampler.sample(row, history) if top is None else sampler.sample_with_logprobs(row, history, top)
        )
    except BaseException as error:
        return error
