"""Decides what runs in each step: running streams first, then prompts, in chunks, under a budget.

Continuous batching (Yu et al., Orca, 2022) over paged keys and values (Kwon et al., vLLM, 2023) with
chunked prefill (Agrawal et al., Sarathi-Serve, 2024): a step holds one token of every running stream and,
with the rows that are left of the budget, the next chunk of a prompt. A request is admitted when there
are pages for its whole prompt. When pages run out, one request frees its own and later computes them again,
which changes no bit of its text.

A request pauses while its consumer has no room for another event: it keeps its pages as long as no other
request needs them, and is the first to be preempted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from oxillama.base.config import MAX_DECODE_WAIT_MS, SchedulerConfig
from oxillama.base.faults import fault
from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.cache.prefix import PrefixKvCache
from oxillama.engine.prefixes import CachedPrefixes
from oxillama.engine.protocols import Holder
from oxillama.engine.queues import Admission, Fairness, Preemption, Queues, rank
from oxillama.engine.request import Request
from oxillama.engine.sequence import SeqState, Sequence

MIN_CHUNK = 16  # rows of a prompt that are run beside streams, however slow they are
RETURNS = 1.0  # seconds after its last token for which a request that pauses counts as a running stream
PATIENCE = 4  # steps of decoding that a stream waits for a token, where those take longer than the default
TILE = 8  # rows that the products take together: fewer cost as much
SMOOTHING = 0.3  # weight of the newest step in the measured speed


class PrefillBudget:
    """Rows for prompts; with n of them a step of streams takes ``decode_seconds + n * row_seconds``.

    Attributes:
        decode_seconds: that a step of streams alone takes.
        row_seconds: that each row of a prompt adds. Both are 0 until they were measured.
    """

    def __init__(self, config: SchedulerConfig, chunk: int) -> None:
        self.config = config
        self.chunk = chunk
        self.decode_seconds: float = 0.0
        self.row_seconds: float = 0.0

    def observe(self, batch: ScheduledBatch, seconds: float) -> None:
        """Notes the seconds that a batch took."""
        if not batch.n_prefill:
            known = self.decode_seconds or seconds
            self.decode_seconds = known + SMOOTHING * (seconds - known)
        elif batch.n_prefill >= MIN_CHUNK:
            streams = self.decode_seconds if batch.n_decode else 0.0
            rows = batch.n_prefill if streams else batch.n_prefill + batch.n_decode
            measured = max(seconds - streams, seconds / 2) / rows
            known = self.row_seconds or measured
            self.row_seconds = known + SMOOTHING * (measured - known)

    def rows(self, n_decode: int, running: list[Request], now: float) -> int:
        """Rows for prompts in a step with ``n_decode`` rows of streams."""
        rows = self.chunk - n_decode
        left = max(0.0, self._least_wait(running, now) - self.decode_seconds)
        if left < rows * self.row_seconds:
            rows = (n_decode + int(left / self.row_seconds)) // TILE * TILE - n_decode
        return max(min(MIN_CHUNK, self.chunk), rows)

    def _least_wait(self, running: list[Request], now: float) -> float:
        """Seconds that the least patient stream waits for a token; inf without streams."""
        usual, waits = max(MAX_DECODE_WAIT_MS / 1000, PATIENCE * self.decode_seconds), [math.inf]
        if self.config.max_decode_wait_ms is not None:
            usual = self.config.max_decode_wait_ms / 1000
        for request in running:
            # a consumer that has just got a token is likely to come back while the step is run
            is_stream = request.has_room and request.sequence.state is SeqState.DECODING
            if is_stream or now - request.last_token_at < RETURNS:
                waits.append(usual if request.max_wait is None else request.max_wait)
        return min(waits)


class Scheduler:
    """Requests that wait and requests that run. One thread at a time may use it.

    Args:
        pool: the pages.
        prefix: where prompts' beginnings are looked up and kept; None for nowhere.
        chunk: max rows of a step with prompts, streams' rows included.
        clock: seconds, as `time.monotonic`.

    Attributes:
        waiting: a list of `Queues`.
        running: a list of `Queues`.
        in_flight: a list of `Queues`.
        depth: passes that may be in flight together; each takes its share of the streams.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: CachePool,
        prefix: PrefixKvCache | None,
        chunk: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.pool = pool
        self.chunk = chunk
        self.clock = clock
        self.depth: int = 1
        self.queues: Queues = Queues(pool, CachedPrefixes(prefix))
        self.waiting: list[Request] = self.queues.waiting
        self.running: list[Request] = self.queues.running
        self.in_flight: list[Request] = self.queues.in_flight
        self.fairness: Fairness = Fairness(config, self.queues)
        self.budget: PrefillBudget = PrefillBudget(config, chunk)
        self.preemption: Preemption = Preemption(self.queues)
        self.admission: Admission = Admission(self.queues, self.preemption, chunk)
        self._arrivals = 0

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._arrivals += 1
        request.id = self._arrivals
        if math.isnan(request.submitted_at):
            request.submit(self.clock())
        if request.limit is not None:
            self.finish(request, request.limit)
        else:
            self.queues.add(request)

    def commit(self, request: Request) -> None:
        """Notes that the scheduled tokens of a request have been run."""
        sequence = request.sequence
        sequence.commit()
        if sequence.state is SeqState.PREFILLING:
            self.queues.prefixes.insert(request)
            if not sequence.pending:
                sequence.state = SeqState.DECODING
        if self.pool.has_windows:
            sequence.free_out_of_window(self.queues.prefixes.needed_from(request))

    def finish(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        """Ends a request and frees its pages; the prefix store keeps what it has run.

        `drain_finished` returns it next, for its end to be published.
        """
        self.queues.finish(request, reason, error)

    def drain_finished(self) -> list[Request]:
        """The requests that ended since the last call."""
        finished, self.queues.finished = self.queues.finished, []
        return finished

    # --- what runs next -------------------------------------------------------------------------

    def schedule(self) -> ScheduledBatch:
        """The next batch, perhaps empty. Ends requests that are cancelled or late."""
        now = self.clock()
        self.reap(now)
        batch = ScheduledBatch()
        if self.admission.preemptor is not None:
            self.admission.admit_pending_preemptor(batch, now)
        if self.waiting:
            for request in self.fairness.over_share():
                self.queues.preempt(request, batch)
        self._add_streams(batch)
        if self.waiting or len(batch.requests) < len(self.running):
            self._add_prompts(batch, now)
        return batch

    def _add_streams(self, batch: ScheduledBatch) -> None:
        """Schedules the pending tokens of each stream that does not pause."""
        streams: list[Request] = []
        n_decoding, can_reclaim = 0, False
        for request in self.running:
            sequence = request.sequence
            if sequence.state is SeqState.DECODING and request.n_events - request.n_read < request.window:
                n_decoding += 1
                can_reclaim = can_reclaim or sequence.can_reclaim
                if not self.in_flight or request not in self.in_flight:
                    streams.append(request)
        if len(streams) > 1:
            streams.sort(key=rank)
            del streams[-(-n_decoding // self.depth) :]
        if can_reclaim:
            self.preemption.reclaim_draft_pages([request.sequence for request in reversed(streams)])
        for request in streams:
            self._run(request, len(request.sequence.tokens) - request.sequence.cached_len, batch)

    def _add_prompts(self, batch: ScheduledBatch, now: float) -> None:
        """Schedules chunks of prompts, and admits waiting requests, as far as the budget of rows goes."""
        rows = self.budget.rows(batch.n_decode, self.running, now)
        n_active = sum(request.has_room for request in self.running)
        admits = True
        for request in self.fairness.prompts(now):
            if request.sequence.state in (SeqState.WAITING, SeqState.PREEMPTED):
                # nobody overtakes a request for which there is no room yet, or it might never come in
                batched = [*self.in_flight, *batch.requests]
                if not admits or self.queues.prefixes.is_coming(request, self.running, batched):
                    continue
                admits = n_active < self.config.max_sequences and self.admission.admit(request, batch, now)
                if not admits:
                    self.fairness.starved = request
                    continue
                n_active += 1
            sequence = request.sequence
            n = sequence.extend_to_span(self.queues.prefixes.at_most(request, sequence.at_most(rows)))
            if n > rows and batch.n_prefill:
                continue  # the next step's budget will be its own
            rows -= self._run(request, n, batch)
            if rows <= 0:
                break

    def _run(self, request: Request, n: int, batch: ScheduledBatch) -> int:
        """Schedules ``n`` tokens of a running request; returns how many were scheduled."""
        sequence = request.sequence
        if sequence.state not in (SeqState.PREFILLING, SeqState.DECODING):
            return 0  # preempted in this step
        shortage = sequence.shortage(n)
        if shortage and not self.pool.limit.can_allocate(shortage):
            n = self.preemption.make_room(request, n, batch)
        try:
            if n:
                batch.add(request, n)
        except Exception as error:  # the system has no memory, whatever the pool may take
            self.finish(request, "error", fault(error))
            return 0
        return n

    # --- cancelled passes and lost memory -------------------------------------------------------

    def reap(self, now: float | None = None) -> None:
        """Ends requests that are cancelled or past their deadline, and rolls back cancelled passes."""
        now = self.clock() if now is None else now
        for request in [*self.waiting, *(self.queues.idle() if self.in_flight else self.running)]:
            reason = request.finish_reason or request.ends_at(now)
            if reason is not None:
                self.finish(request, reason)
            elif request.sequence.scheduled_len > request.sequence.cached_len:
                self._roll_back(request.sequence)

    def recover(self) -> None:
        """Rolls back the sequences of a pass that was cancelled."""
        for request in self.queues.idle():
            if request.sequence.is_scheduled:
                self._roll_back(request.sequence)

    def _roll_back(self, sequence: Sequence) -> None:
        sequence.rollback()
        if sequence.pending > 1:
            sequence.state = SeqState.PREFILLING

    def begin_again(self) -> None:
        """Has every running request wait again: the keys, values and states of all sequences are lost."""
        for request in list(self.running):
            self.queues.suspend(request)
        for request in self.waiting:
            request.sequence.forget()
        self.queues.prefixes.lose()

    def next_deadline(self) -> float:
        """The earliest deadline of all requests, by the clock; inf if none has one."""
        return min((request.deadline for request in (*self.waiting, *self.running)), default=math.inf)

    def check_integrity(self, others: Iterable[Sequence] = ()) -> None:
        """Asserts that free + cached + owned pages and states are all there are; ``others`` own some too."""
        sequences = [*(request.sequence for request in (*self.waiting, *self.running)), *others]
        holders = [*map(Holder.of, sequences), *self.queues.prefixes.holders()]
        self.pool.check_integrity([holder.pages for holder in holders])
        if self.pool.recurrent_states is not None:
            self.pool.recurrent_states.check_integrity([holder.slots for holder in holders])
            self.pool.recurrent_states.records.check_integrity([holder.records for holder in holders])
        assert all(r.sequence.state in (SeqState.WAITING, SeqState.PREEMPTED) for r in self.waiting)
        for request in self.running:
            assert request.sequence.state in (SeqState.PREFILLING, SeqState.DECODING)
            request.sequence.check()
