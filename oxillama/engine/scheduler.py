"""Decides what runs in each step: running streams first, then prompts, in chunks, under a budget.

Continuous batching (Yu et al., Orca, 2022) over paged keys and values (Kwon et al., vLLM, 2023) with
chunked prefill (Agrawal et al., Sarathi-Serve, 2024): a step holds one token of every running stream and,
with the rows that are left of the budget, the next chunk of a prompt. A request is admitted when there
are pages for its whole prompt; when pages run out, the request that can best wait drops its own and
later computes them again, which changes no bit of its text.

A request pauses while its reader has no room for another event: it keeps its pages as long as nobody else
needs them, and is the first to be preempted.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from oxillama.cache.pool import CachePool
from oxillama.cache.prefix import PrefixKvCache
from oxillama.config import SchedulerConfig
from oxillama.engine.disk_prefixes import DiskPrefixes
from oxillama.engine.faults import fault, note
from oxillama.engine.request import Request
from oxillama.engine.runner import Output
from oxillama.engine.sequence import SeqState, Sequence
from oxillama.engine.shared_prompt import SharedPrompt
from oxillama.errors import KvCacheFullError, QueueFull

log = logging.getLogger(__name__)

MIN_CHUNK = 16  # tokens of a prompt that are run beside streams, however slow they are
RETURNS = 1.0  # seconds after its last token for which a request that pauses counts as a running stream
SMOOTHING = 0.3  # weight of the newest step in the measured speed


@dataclass
class ScheduledBatch:
    """What one step runs.

    Attributes
    ----------
    requests : whose sequences are scheduled, in order.
    outputs : for each, which rows of the pass are wanted.
    prefills : for each, whether tokens of its prompt are run.
    n_decode, n_prefill : rows of streams, and of prompts.
    admitted, preempted : requests that began, and that gave up their pages, while it was put together.
    """

    requests: list[Request] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    prefills: list[bool] = field(default_factory=list)
    n_decode: int = 0
    n_prefill: int = 0
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        """Those of the requests."""
        return [request.sequence for request in self.requests]

    def add(self, request: Request, n: int) -> None:
        """Schedules ``n`` tokens of a request. Raises KvCacheFullError."""
        sequence = request.sequence
        sequence.schedule(n)
        self.requests.append(request)
        whole = sequence.scheduled_len == sequence.total_len
        self.outputs.append(request.output if whole or request.output.is_all else Output.NONE)
        self.prefills.append(sequence.state is SeqState.PREFILLING)
        if self.prefills[-1]:
            self.n_prefill += n
        else:
            self.n_decode += n

    def output_of(self, request: Request) -> Output:
        """What is wanted of a request's part."""
        return self.outputs[self.requests.index(request)]


class Scheduler:
    """Requests that wait and requests that run. One thread at a time may use it.

    Parameters
    ----------
    config : its options.
    pool : the pages.
    prefix : where prompts' beginnings are looked up and kept; None for nowhere.
    chunk : most tokens of prompts in a step, streams' tokens included.
    clock : seconds, as `time.monotonic`.

    Attributes
    ----------
    disk : keeps prompts in a folder, too; None for nowhere.
    waiting : Waiting or Preempted. running : Prefilling or Decoding.
    flying : those of `running` in passes that are under way while the next one is scheduled, and which are
        then left alone; only a pipeline has such passes.
    depth : passes that may be under way together; each takes its share of the streams.
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
        self.prefix = prefix
        self.chunk = chunk
        self.clock = clock
        self.disk: DiskPrefixes | None = None
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.flying: list[Request] = []
        self.depth = 1
        self.preemptions = 0
        self._finished: list[Request] = []
        self._arrivals = 0
        self._row_seconds = 0.0
        self._claim: Request | None = None  # a request that preempts others before the next step

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
            if self.disk is not None:
                self.disk.look(request)

    def check_room(self, n_more: int) -> None:
        """Raises QueueFull if, beside ``n_more``, there is no room in the queue."""
        n = len(self.waiting) + n_more
        if n >= self.config.max_waiting:
            raise QueueFull(f"max_waiting: {self.config.max_waiting} requests may wait, and {n} do")

    def next_deadline(self) -> float:
        """When the first of all requests is to end, by the clock; inf if none is."""
        return min((request.deadline for request in (*self.waiting, *self.running)), default=math.inf)

    def schedule(self) -> ScheduledBatch:
        """The next batch, perhaps empty. Ends requests that are cancelled or late."""
        now = self.clock()
        self.reap(now)
        self.recover()
        batch = ScheduledBatch()
        self._meet_claim(batch, now)
        self._add_streams(batch)
        self._add_prompts(batch, now)
        return batch

    def observe(self, batch: ScheduledBatch, seconds: float) -> None:
        """Notes how long a batch took, from which the size of later chunks follows."""
        if batch.n_prefill >= MIN_CHUNK:
            measured = seconds / (batch.n_prefill + batch.n_decode)
            known = self._row_seconds or measured
            self._row_seconds = known + SMOOTHING * (measured - known)

    def ran(self, request: Request) -> None:
        """Notes that what was scheduled of a request has been run."""
        sequence = request.sequence
        sequence.commit()
        if sequence.state is SeqState.PREFILLING:
            if request.shared is not None and sequence.cached_len == request.shared.n_tokens:
                request.shared.keep(sequence)
            self._remember(request, whole_pages=True)
            if self.disk is not None:
                self.disk.offer(request)
            if not sequence.pending:
                sequence.state = SeqState.DECODING
        sequence.free_out_of_window(math.inf if self.disk is None else self.disk.needed_from(request))

    def finish(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        """Ends a request and frees its pages; what it has run is kept for others that begin alike.

        Its reader is told by whoever drains the requests that have ended.
        """
        sequence = request.sequence
        if sequence.state is SeqState.FINISHED:
            return
        assert request not in self.flying, "its pages are being written"
        if sequence.is_scheduled:
            sequence.rollback()
        sequence.drop_drafts()
        self._remember(request)
        if request.shared is not None:
            request.shared.leave(request)
            request.shared.keep(sequence)
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
        """Ends what was cancelled or is past its deadline."""
        now = self.clock() if now is None else now
        for request in [*self.waiting, *self._landed()]:
            reason = request.finish_reason or request.ends_at(now)
            if reason is not None:
                self.finish(request, reason)

    def check_integrity(self, others: Iterable[Sequence] = ()) -> None:
        """Asserts that free + cached + owned pages and states are all there are; ``others`` hold some too."""
        sequences = [*(request.sequence for request in (*self.waiting, *self.running)), *others]
        sequences += [shared.sequence for shared in self._kept_prompts()]
        pages, slots = [s.pages for s in sequences], [s.kv.slots for s in sequences]
        if self.prefix is not None:
            self.prefix.check_integrity()
            pages.append(self.prefix.pages())
            slots.append(self.prefix.slots())
        self.pool.check_integrity(pages)
        if self.pool.recurrent_states is not None:
            self.pool.recurrent_states.check_integrity(slots)
            self.pool.recurrent_states.records.check_integrity(s.kv.all_records for s in sequences)
        for request in self.waiting:
            assert request.sequence.state in (SeqState.WAITING, SeqState.PREEMPTED)
        for request in self.running:
            assert request.sequence.state in (SeqState.PREFILLING, SeqState.DECODING)
            request.sequence.check()

    # --- what comes next ------------------------------------------------------------------------

    def _landed(self) -> list[Request]:
        """Those that run and are in no pass that is under way."""
        return [r for r in self.running if r not in self.flying] if self.flying else self.running

    def recover(self) -> None:
        """Rolls back the sequences of a pass that was cancelled."""
        for request in self._landed():
            if request.sequence.is_scheduled:
                request.sequence.rollback()
                if request.sequence.pending > 1:
                    request.sequence.state = SeqState.PREFILLING

    def _meet_claim(self, batch: ScheduledBatch, now: float) -> None:
        """Admits the request that could not preempt others in the last step, which had them scheduled."""
        claim, self._claim = self._claim, None
        if claim in self.waiting and claim.wanted:
            self._admit(claim, batch, now)

    def _add_streams(self, batch: ScheduledBatch) -> None:
        decoding = [r for r in self.running if r.sequence.state is SeqState.DECODING and r.wanted]
        streams = sorted((r for r in decoding if r not in self.flying), key=_rank)
        del streams[-(-len(decoding) // self.depth) :]
        if any(r.sequence.n_drafts or r.sequence.kv.all_records for r in streams):
            self._make_way([request.sequence for request in reversed(streams)])
        for request in streams:
            self._run(request, request.sequence.pending, batch)

    def _make_way(self, sequences: list[Sequence]) -> None:
        """Has the first sequences free what they can do without, drafts before the rest, where all need more
        memory than there is: nobody is preempted for another's draft."""

        def is_short() -> bool:
            return not self.pool.can_allocate(sum(s.shortage(s.pending) for s in sequences))

        while is_short() and (
            any(s.n_drafts and s.spare() for s in sequences) or any(s.spare() for s in sequences)
        ):
            pass

    def _add_prompts(self, batch: ScheduledBatch, now: float) -> None:
        budget = self._prefill_budget(batch.n_decode, now)
        n_active = sum(request.wanted for request in self.running)
        admits = True
        for request in self._prompts(now):
            if request.sequence.state in (SeqState.WAITING, SeqState.PREEMPTED):
                # nobody overtakes one for whom there is no room yet, or it might never come in
                if not admits or self._is_run_by_another(request, batch):
                    continue
                admits = n_active < self.config.max_sequences and self._admit(request, batch, now)
                if not admits:
                    continue
                n_active += 1
            n = request.sequence.at_most(budget)
            if request.shared is not None:
                n = request.shared.at_most(request.sequence, n)
            if request.sequence.in_one_pass and n < request.sequence.pending:
                if batch.requests:
                    continue  # it has the next step's budget for itself
                n = request.sequence.pending
            budget -= self._run(request, n, batch)
            if budget <= 0:
                break

    def _prefill_budget(self, n_decode: int, now: float) -> int:
        """Rows for prompts in a step that also runs ``n_decode`` streams."""
        # a reader that has just got a token is likely to come back while the step is run
        streams = n_decode or any(now - request.last_token_at < RETURNS for request in self.running)
        if not streams or not self._row_seconds:
            return self.chunk
        rows = int(self.config.max_decode_wait_ms / 1000 / self._row_seconds)
        return max(min(MIN_CHUNK, self.chunk), min(rows, self.chunk) - n_decode)

    def _prompts(self, now: float) -> list[Request]:
        """Requests with a prompt to run: by priority, which grows with waiting, then by tokens left."""
        patience = self.config.promote_seconds

        def urgency(request: Request) -> tuple[float, int, int]:
            waited = (now - request.submitted_at) // patience
            return -(request.priority + waited), request.sequence.pending, request.id

        started = [r for r in self._landed() if r.sequence.state is SeqState.PREFILLING]
        return sorted((r for r in (*started, *self.waiting) if r.wanted and not r.is_held), key=urgency)

    def _is_run_by_another(self, request: Request, batch: ScheduledBatch) -> bool:
        """Whether the same beginning is run for another request, whose pages this one will share."""
        shared = request.shared
        if shared is not None and any(
            other.shared is shared and other.wanted and other.sequence.cached_len < shared.n_tokens
            for other in self.running
        ):
            return True
        if self.prefix is None or request.key is None:
            return False
        n_tokens = request.sequence.total_len
        for other in (*self.flying, *batch.requests):
            first, end = other.sequence, other.sequence.next_shared
            if other.key == request.key and first.state is SeqState.PREFILLING and end < n_tokens:
                n = int(end)
                if first.path(n) == request.sequence.path(n):
                    return True
        return False

    def _admit(self, request: Request, batch: ScheduledBatch, now: float) -> bool:
        """Admits a waiting request if there are pages for all of its prompt; whether it was admitted."""
        try:
            return self._may_run(request, batch, now)
        except Exception as error:
            self.finish(request, "error", fault(error))
            return False

    def _may_run(self, request: Request, batch: ScheduledBatch, now: float) -> bool:
        sequence = request.sequence
        n_known = self._reuse(request)
        promised = sum(self._promised(other) for other in self.running)
        while not self.pool.can_allocate(sequence.demand(self.chunk) + promised):
            if self._drop_prompts(but=request.shared):
                continue
            lesser = [r for r in self._landed() if not r.wanted or r.priority < request.priority]
            victim = self._victim([r for r in lesser if r not in batch.requests])
            if victim is None:
                sequence.forget()
                if lesser:
                    self._claim = request  # they are in this step's batch: it preempts them in the next
                if self.running:
                    return False
                self._drop_prompts()
                n_known = 0  # without sharing, it needs no second page for the copy of a shared one
                if self.pool.can_allocate(sequence.shortage(sequence.pending)):
                    break
                self._fail(request)
                return False
            promised -= self._promised(victim)
            self._preempt(victim, batch)
        if sequence.state is SeqState.WAITING:
            request.n_cached = n_known
            if self.prefix is not None and request.key is not None:
                self.prefix.count(len(request.prompt), n_known)
        sequence.state = SeqState.PREFILLING
        if math.isnan(request.admitted_at):
            request.admitted_at = now
        batch.admitted.append(request)
        self.waiting.remove(request)
        self.running.append(request)
        if request.shared is not None:
            request.shared.leave(request)
        return True

    def _promised(self, request: Request) -> int:
        """Bytes that a running request will need: for the rest of its prompt, and a page to go on with."""
        return request.sequence.demand(self.chunk) + self.pool.page_stride

    def _reuse(self, request: Request) -> int:
        """Shares the pages that another request or the prefix cache has of a prompt; the number of their
        tokens."""
        sequence, shared = request.sequence, request.shared
        if sequence.cached_len:  # it goes on from what a session has run
            return sequence.cached_len
        is_new = sequence.state is SeqState.WAITING  # the cache may have more of one that was preempted
        if self.prefix is not None and request.key is not None and not (is_new and shared and shared.n_kept):
            # the last is run: its logits are wanted
            sequence.adopt(self.prefix.match(request.key, sequence.path(sequence.total_len - 1)))
        if shared is not None and shared.n_kept and not sequence.cached_len:
            shared.begin(sequence)
        return sequence.cached_len

    def _remember(self, request: Request, whole_pages: bool = False) -> None:
        """Puts the pages of a request into the prefix cache."""
        sequence = request.sequence
        n = sequence.kv.settled_of(sequence.cached_len)
        n -= n % self.pool.page_size if whole_pages else 0
        if self.prefix is not None and request.key is not None and n:
            keeps_state = not whole_pages or n in (sequence.cache_points or ())
            slot = sequence.kv.state_after(n) if keeps_state else None
            tokens, kv = sequence.path(n), sequence.kv
            kv.version += 1  # some of its pages may be known ones afterwards
            try:
                pages = [table.pages for table in kv.tables]
                request.node = self.prefix.insert(request.key, tokens, pages, request.node, slot)
            except Exception:  # a text does not depend on what is kept for others
                request.node = None
                note(
                    log, logging.ERROR, "request %d: its pages could not be kept for later prompts",
                    request.id, request=request.name, exc_info=True,
                )  # fmt: skip

    # --- when pages run out ---------------------------------------------------------------------

    def _run(self, request: Request, n: int, batch: ScheduledBatch) -> int:
        """Schedules ``n`` tokens of a running request; returns how many were scheduled.

        While pages are missing, requests are preempted, perhaps this one; it fails if it runs alone.
        """
        if request.sequence.state not in (SeqState.PREFILLING, SeqState.DECODING):
            return 0  # it was preempted in this step
        while not self.pool.can_allocate(request.sequence.shortage(n)):
            if request.sequence.spare():
                n = min(n, request.sequence.pending)
                continue
            if self._drop_prompts():
                continue
            victim = self._victim([r for r in self._landed() if r not in batch.requests])
            if victim is None:
                assert self.flying
                return 0  # those give pages back when they have landed
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

    def _kept_prompts(self) -> set[SharedPrompt]:
        """The prompts of which something is kept for requests that wait."""
        return {r.shared for r in self.waiting if r.shared is not None and r.shared.n_kept}

    def _drop_prompts(self, but: SharedPrompt | None = None) -> bool:
        """Frees what is kept of prompts, but for one; whether there was any."""
        kept = self._kept_prompts() - {but}
        for shared in kept:
            shared.drop()
        return bool(kept)

    def _victim(self, candidates: list[Request]) -> Request | None:
        """The request to preempt: one that pauses, else the lowest priority, else the latest."""
        return max(candidates, key=lambda r: (not r.wanted, _rank(r)), default=None)

    def _preempt(self, request: Request, batch: ScheduledBatch) -> None:
        self._remember(request)
        self._wait_again(request)
        batch.preempted.append(request)

    def _wait_again(self, request: Request) -> None:
        """Takes the pages of a running request."""
        request.sequence.forget()
        request.sequence.state = SeqState.PREEMPTED
        self.running.remove(request)
        self.waiting.append(request)
        if request.shared is not None:
            request.shared.join(request)
        self.preemptions += 1

    def begin_again(self) -> None:
        """Has every request that runs wait again: the keys, values and states of all sequences are lost."""
        for request in list(self.running):
            self._wait_again(request)
        self._drop_prompts()
        for request in self.waiting:
            request.node = None
            request.sequence.forget()
        if self.prefix is not None:
            self.prefix.lose()

    def _fail(self, request: Request) -> None:
        pool, states = self.pool, self.pool.recurrent_states
        needed = f"{pool.pages_for(request.sequence.total_len + 1)} pages of {pool.page_size} tokens"
        if states is not None:
            needed += f" and 2 states of {states.slot_bytes} bytes"
        available = f"{pool.n_available}" if states is None else f"{pool.limit.available} bytes"
        message = f"prompt: {needed} needed, {available} available"
        self.finish(request, "error", KvCacheFullError(message))


def _rank(request: Request) -> tuple[int, int]:
    """The best first: by priority, then by arrival."""
    return -request.priority, request.id
