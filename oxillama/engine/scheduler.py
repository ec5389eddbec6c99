"""Decides what runs in each step: running streams first, then prompts, in chunks, under a budget.

Continuous batching (Yu et al., Orca, 2022) over paged keys and values (Kwon et al., vLLM, 2023) with
chunked prefill (Agrawal et al., Sarathi-Serve, 2024): a step holds one token of every running stream and,
with the rows that are left of the budget, the next chunk of a prompt. A request is admitted when there
are pages for its whole prompt. When pages run out, the request that can best wait frees its own and
later computes them again, which changes no bit of its text.

A request pauses while its consumer has no room for another event: it keeps its pages as long as nobody else
needs them, and is the first to be preempted.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable

from oxillama.cache.pool import CachePool
from oxillama.cache.prefix import PrefixKvCache
from oxillama.config import MAX_DECODE_WAIT_MS, SchedulerConfig
from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.prefixes import CachedPrefixes
from oxillama.engine.protocols import Holder, PrefixStore
from oxillama.engine.request import Request
from oxillama.engine.sequence import SeqState, Sequence, spare_one
from oxillama.errors import KvCacheFullError
from oxillama.faults import fault

MIN_CHUNK = 16  # tokens of a prompt that are run beside streams, however slow they are
RETURNS = 1.0  # seconds after its last token for which a request that pauses counts as a running stream
PATIENCE = 4  # steps of decoding that a stream waits for a token, where those take longer than the default
TILE = 8  # rows that the products take together: fewer cost as much
SMOOTHING = 0.3  # weight of the newest step in the measured speed


class Scheduler:
    """Requests that wait and requests that run. One thread at a time may use it.

    Parameters
    ----------
    config : its options.
    pool : the pages.
    prefix : where prompts' beginnings are looked up and kept; None for nowhere.
    chunk : max tokens of prompts in a step, streams' tokens included.
    clock : seconds, as `time.monotonic`.

    Attributes
    ----------
    prefixes : the prefix stores.
    waiting : Waiting or Preempted. running : Prefilling or Decoding.
    in_flight : those of `running` in passes that were launched and not completed; they are left alone.
    depth : passes that may be in flight together; each takes its share of the streams.
    preemptions : so far.
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
        self.prefixes: PrefixStore = CachedPrefixes(prefix)
        self.chunk = chunk
        self.clock = clock
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.in_flight: list[Request] = []
        self.depth = 1
        self.preemptions: int = 0
        self._finished: list[Request] = []
        self._arrivals = 0
        self._decode_seconds = 0.0  # a step of streams alone takes
        self._row_seconds = 0.0  # each row of a prompt adds
        self._preemptor: Request | None = None  # preempts others before the next step
        self._starved: Request | None = None  # there was no place for it in the last step

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._arrivals += 1
        request.id = self._arrivals
        if math.isnan(request.submitted_at):
            request.submit(self.clock())
        if request.limit is not None:
            self.finish(request, request.limit)
        else:
            self.waiting.append(request)
            self.prefixes.arrive(request)

    def next_deadline(self) -> float:
        """When the first of all requests is to end, by the clock; inf if none is."""
        return min((request.deadline for request in (*self.waiting, *self.running)), default=math.inf)

    def schedule(self) -> ScheduledBatch:
        """The next batch, perhaps empty. Ends requests that are cancelled or late."""
        now = self.clock()
        self.reap(now)
        batch = ScheduledBatch()
        if self._preemptor is not None:
            self._admit_pending_preemptor(batch, now)
        if self.waiting:
            self._share_places(batch)
        self._add_streams(batch)
        if self.waiting or len(batch.requests) < len(self.running):
            self._add_prompts(batch, now)
        return batch

    def observe(self, batch: ScheduledBatch, seconds: float) -> None:
        """Notes the seconds that a batch took, from which the size of later chunks follows.

        A step of n rows of prompts beside streams takes about ``_decode_seconds + n * _row_seconds``.
        """
        if not batch.n_prefill:
            known = self._decode_seconds or seconds
            self._decode_seconds = known + SMOOTHING * (seconds - known)
        elif batch.n_prefill >= MIN_CHUNK:
            streams = self._decode_seconds if batch.n_decode else 0.0
            rows = batch.n_prefill if streams else batch.n_prefill + batch.n_decode
            measured = max(seconds - streams, seconds / 2) / rows
            known = self._row_seconds or measured
            self._row_seconds = known + SMOOTHING * (measured - known)

    def ran(self, request: Request) -> None:
        """Notes that the scheduled tokens of a request have been run."""
        sequence = request.sequence
        sequence.commit()
        if sequence.state is SeqState.PREFILLING:
            self.prefixes.insert(request)
            if not sequence.pending:
                sequence.state = SeqState.DECODING
        if self.pool.has_windows:
            sequence.free_out_of_window(self.prefixes.needed_from(request))

    def finish(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        """Ends a request and frees its pages; what it has run is kept for others that begin alike.

        `drain_finished` returns it next, for its end to be published.
        """
        sequence = request.sequence
        if sequence.state is SeqState.FINISHED:
            return
        assert request not in self.in_flight, "its pages are being written"
        sequence.take_back()
        request.n_run = sequence.cached_len
        self.prefixes.keep(request)
        self.prefixes.end(request)
        if request.keep is None:
            sequence.forget()
        else:
            request.keep(sequence)
        sequence.state = SeqState.FINISHED
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.finish(reason, error)
        self._finished.append(request)

    def drain_finished(self) -> list[Request]:
        """The requests that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def reap(self, now: float | None = None) -> None:
        """Ends what was cancelled or is past its deadline, and rolls back what a cancelled pass has left."""
        now = self.clock() if now is None else now
        for request in [*self.waiting, *(self.at_rest() if self.in_flight else self.running)]:
            reason = request.finish_reason or request.ends_at(now)
            if reason is not None:
                self.finish(request, reason)
            elif request.sequence.scheduled_len > request.sequence.cached_len:
                self._roll_back(request.sequence)

    def check_integrity(self, others: Iterable[Sequence] = ()) -> None:
        """Asserts that free + cached + owned pages and states are all there are; ``others`` hold some too."""
        sequences = [*(request.sequence for request in (*self.waiting, *self.running)), *others]
        holders = [*map(Holder.of, sequences), *self.prefixes.holders()]
        self.pool.check_integrity([holder.pages for holder in holders])
        if self.pool.recurrent_states is not None:
            self.pool.recurrent_states.check_integrity([holder.slots for holder in holders])
            self.pool.recurrent_states.records.check_integrity([holder.records for holder in holders])
        assert all(r.sequence.state in (SeqState.WAITING, SeqState.PREEMPTED) for r in self.waiting)
        for request in self.running:
            assert request.sequence.state in (SeqState.PREFILLING, SeqState.DECODING)
            request.sequence.check()

    # --- what comes next ------------------------------------------------------------------------

    def at_rest(self) -> list[Request]:
        """Those that run and are in no pass that is in flight."""
        return [r for r in self.running if r not in self.in_flight] if self.in_flight else self.running

    def recover(self) -> None:
        """Rolls back the sequences of a pass that was cancelled."""
        for request in self.at_rest():
            if request.sequence.is_scheduled:
                self._roll_back(request.sequence)

    def _roll_back(self, sequence: Sequence) -> None:
        sequence.rollback()
        if sequence.pending > 1:
            sequence.state = SeqState.PREFILLING

    def _admit_pending_preemptor(self, batch: ScheduledBatch, now: float) -> None:
        """Admits the request that could not preempt others in the last step, which had them scheduled."""
        preemptor, self._preemptor = self._preemptor, None
        if preemptor in self.waiting and preemptor.wanted:
            self._admit(preemptor, batch, now)

    def _add_streams(self, batch: ScheduledBatch) -> None:
        streams: list[Request] = []
        n_decoding, has_spare = 0, False
        for request in self.running:
            sequence = request.sequence
            if sequence.state is SeqState.DECODING and request.n_events - request.n_read < request.window:
                n_decoding += 1
                has_spare = has_spare or sequence.can_spare
                if not self.in_flight or request not in self.in_flight:
                    streams.append(request)
        if len(streams) > 1:
            streams.sort(key=_rank)
            del streams[-(-n_decoding // self.depth) :]
        if has_spare:
            self._make_room([request.sequence for request in reversed(streams)])
        for request in streams:
            self._run(request, len(request.sequence.tokens) - request.sequence.cached_len, batch)

    def _make_room(self, sequences: list[Sequence]) -> None:
        """Has sequences free what they can spare, the first ones first, while all of them need more memory
        than there is: nobody is preempted for what another can spare."""
        while not self.pool.limit.can_allocate(sum(s.shortage(s.pending) for s in sequences)):
            if not spare_one(sequences):
                break

    def _add_prompts(self, batch: ScheduledBatch, now: float) -> None:
        budget = self._prefill_budget(batch.n_decode, self._least_wait(now))
        n_active = sum(request.wanted for request in self.running)
        admits = True
        for request in self._prompts(now):
            if request.sequence.state in (SeqState.WAITING, SeqState.PREEMPTED):
                # nobody overtakes one for whom there is no room yet, or it might never come in
                batched = [*self.in_flight, *batch.requests]
                if not admits or self.prefixes.is_coming(request, self.running, batched):
                    continue
                admits = n_active < self.config.max_sequences and self._admit(request, batch, now)
                if not admits:
                    self._starved = request
                    continue
                n_active += 1
            n = request.sequence.uncut(self.prefixes.at_most(request, request.sequence.at_most(budget)))
            if n > budget and batch.n_prefill:
                continue  # it has the next step's budget for itself
            budget -= self._run(request, n, batch)
            if budget <= 0:
                break

    def _active(self) -> Counter[str]:
        """Sequences that run, by tenant; those that pause do not count."""
        return Counter(request.tenant for request in self.running if request.wanted)

    def _share_places(self, batch: ScheduledBatch) -> None:
        """Has requests of the largest tenant wait, the latest first, until there is a place for one of a
        tenant that has less than its share of the places, if such a one waits."""
        active, most = self._active(), self.config.max_sequences
        starved, self._starved = self._starved, None
        if active.total() < most and starved not in self.waiting:
            return
        waiting = {request.tenant for request in self.waiting if request.wanted and not request.is_held}
        share = max(1, most // max(1, len({*active, *waiting})))
        poorest = min(waiting, key=lambda tenant: (active[tenant], tenant), default=None)
        if poorest is None or active[poorest] >= share:
            return
        largest = max(active, key=lambda tenant: (active[tenant], tenant), default=poorest)
        if active[largest] > active[poorest] + (active[poorest] > 0):
            n = max(1, min(active.total() - most + 1, active[largest] - share))  # some paused, and go on
            others = [r for r in self.at_rest() if r.tenant == largest and r.wanted]
            for victim in sorted(others, key=_rank)[-n:]:
                self._preempt(victim, batch)

    def _prefill_budget(self, n_decode: int, seconds: float) -> int:
        """Rows for prompts in a step with ``n_decode`` streams that wait ``seconds`` for a token."""
        rows = self.chunk - n_decode
        left = max(0.0, seconds - self._decode_seconds)
        if left < rows * self._row_seconds:
            rows = (n_decode + int(left / self._row_seconds)) // TILE * TILE - n_decode
        return max(min(MIN_CHUNK, self.chunk), rows)

    def _least_wait(self, now: float) -> float:
        """Seconds that the least patient stream waits for a token; inf without streams."""
        usual, waits = max(MAX_DECODE_WAIT_MS / 1000, PATIENCE * self._decode_seconds), [math.inf]
        if self.config.max_decode_wait_ms is not None:
            usual = self.config.max_decode_wait_ms / 1000
        for request in self.running:
            # a consumer that has just got a token is likely to come back while the step is run
            is_running = request.wanted and request.sequence.state is SeqState.DECODING
            if is_running or now - request.last_token_at < RETURNS:
                waits.append(usual if request.max_wait is None else request.max_wait)
        return min(waits)

    def _prompts(self, now: float) -> list[Request]:
        """Requests with a prompt to run: by turns of tenants, by priority, which grows with waiting, and by
        tokens left."""
        patience = self.config.promote_seconds
        active = self._active()

        def urgency(request: Request) -> tuple[int, float, int, int]:
            waited = (now - request.submitted_at) // patience
            turn = active[request.tenant]
            return turn, -(request.priority + waited), request.sequence.pending, request.id

        started = [r for r in self.at_rest() if r.sequence.state is SeqState.PREFILLING]
        return sorted((r for r in (*started, *self.waiting) if r.wanted and not r.is_held), key=urgency)

    def _admit(self, request: Request, batch: ScheduledBatch, now: float) -> bool:
        """Admits a waiting request if there are pages for all of its prompt; whether it was admitted."""
        try:
            return self._may_run(request, batch, now)
        except Exception as error:
            self.finish(request, "error", fault(error))
            return False

    def _may_run(self, request: Request, batch: ScheduledBatch, now: float) -> bool:
        sequence = request.sequence
        self.prefixes.begin(request)
        promised = sum(self._promised(other) for other in self.running)
        while not self.pool.limit.can_allocate(sequence.demand(self.chunk) + promised):
            if self.prefixes.reclaim(but=request) or self._forget_waiting(request):
                continue
            lesser = [r for r in self.at_rest() if not r.wanted or r.priority < request.priority]
            victim = self._victim([r for r in lesser if r not in batch.requests])
            if victim is None:
                sequence.forget()
                if lesser:
                    self._preemptor = request  # they are in this step's batch: it preempts them in the next
                if self.running:
                    return False
                self.prefixes.reclaim()
                # alone, it needs no second page for the copy of another's
                if self.pool.limit.can_allocate(sequence.shortage(sequence.pending)):
                    break
                self._fail(request)
                return False
            promised -= self._promised(victim)
            self._preempt(victim, batch)
        self.prefixes.admit(request)
        if sequence.state is SeqState.WAITING:
            request.n_cached = sequence.cached_len
        sequence.state = SeqState.PREFILLING
        if math.isnan(request.admitted_at):
            request.admitted_at = now
        batch.admitted.append(request)
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _promised(self, request: Request) -> int:
        """Bytes that a running request will need: for the rest of its prompt, and a page to go on with."""
        return request.sequence.demand(self.chunk) + self.pool.page_stride

    # --- when pages run out ---------------------------------------------------------------------

    def _run(self, request: Request, n: int, batch: ScheduledBatch) -> int:
        """Schedules ``n`` tokens of a running request; returns how many were scheduled.

        While pages are missing, requests are preempted, perhaps this one; it fails if it runs alone.
        """
        if request.sequence.state not in (SeqState.PREFILLING, SeqState.DECODING):
            return 0  # it was preempted in this step
        while (shortage := request.sequence.shortage(n)) and not self.pool.limit.can_allocate(shortage):
            if request.sequence.spare():
                n = min(n, request.sequence.pending)
                continue
            if self.prefixes.reclaim() or self._forget_waiting(request):
                continue
            victim = self._victim([r for r in self.at_rest() if r not in batch.requests])
            if victim is None:
                assert self.in_flight
                return 0  # those free pages when they are completed
            if victim is request and len(self.running) == 1:
                self._fail(request)
            else:
                self._preempt(victim, batch)
            if victim is request:
                return 0
        try:
            batch.add(request, n)
        except Exception as error:  # the system has no memory, whatever the pool may take
            self.finish(request, "error", fault(error))
            return 0
        return n

    def _victim(self, candidates: list[Request]) -> Request | None:
        """The request to preempt: one that pauses, else the lowest priority, else the latest."""
        return max(candidates, key=lambda r: (not r.wanted, _rank(r)), default=None)

    def _forget_waiting(self, but: Request) -> bool:
        """Frees the pages that one request has of a session and waits with, ``but`` this; whether one did."""
        having = [r for r in self.waiting if r.sequence.cached_len and r is not but]
        if having:
            max(having, key=_rank).sequence.forget()
        return bool(having)

    def _preempt(self, request: Request, batch: ScheduledBatch) -> None:
        self.prefixes.keep(request)
        self._wait_again(request)
        batch.preempted.append(request)

    def _wait_again(self, request: Request) -> None:
        """Takes the pages of a running request."""
        request.sequence.forget()
        request.sequence.state = SeqState.PREEMPTED
        self.running.remove(request)
        self.waiting.append(request)
        self.prefixes.wait(request)
        self.preemptions += 1

    def begin_again(self) -> None:
        """Has every request that runs wait again: the keys, values and states of all sequences are lost."""
        for request in list(self.running):
            self._wait_again(request)
        for request in self.waiting:
            request.sequence.forget()
        self.prefixes.lose()

    def _fail(self, request: Request) -> None:
        pool, states = self.pool, self.pool.recurrent_states
        needed = f"{pool.pages_for(request.sequence.total_len + 1)} pages of {pool.page_size} tokens"
        if states is not None:
            needed += f" and 2 states of {states.slot_bytes} bytes"
        available = f"{pool.n_available}" if states is None else f"{pool.limit.available} bytes"
        self.finish(request, "error", KvCacheFullError(f"prompt: {needed} needed, {available} available"))


def _rank(request: Request) -> tuple[int, int]:
    """The best first: by priority, then by arrival."""
    return -request.priority, request.id
