"""The requests that wait and the requests that run: their order, and the pages that each gets or frees."""

from __future__ import annotations

import math
from collections import Counter

from oxillama.base.config import SchedulerConfig
from oxillama.base.faults import fault
from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.protocols import PrefixStore
from oxillama.engine.request import Request
from oxillama.engine.sequence import SeqState, Sequence, reclaim_one
from oxillama.errors import KvCacheFullError


def rank(request: Request) -> tuple[int, int]:
    """Sort key, the best request first: by priority, then by arrival."""
    return -request.priority, request.id


class Queues:
    """All requests that have not ended.

    Args:
        pool: the pages of all sequences.
        prefixes: where beginnings of prompts are looked up and kept.

    Attributes:
        waiting: in state Waiting or Preempted.
        running: in state Prefilling or Decoding.
        in_flight: running requests whose pass was launched and is not complete; they must not change.
        finished: requests that ended and whose end is not published yet.
        preemptions: number of preemptions so far.
    """

    def __init__(self, pool: CachePool, prefixes: PrefixStore) -> None:
        self.pool = pool
        self.prefixes = prefixes
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.in_flight: list[Request] = []
        self.finished: list[Request] = []
        self.preemptions: int = 0

    def idle(self) -> list[Request]:
        """The running requests that are not in flight."""
        return [r for r in self.running if r not in self.in_flight] if self.in_flight else self.running

    def add(self, request: Request) -> None:
        """Has a new request wait."""
        self.waiting.append(request)
        self.prefixes.arrive(request)

    def admit(self, request: Request, batch: ScheduledBatch, now: float) -> None:
        """Has a waiting request run from now on."""
        self.prefixes.admit(request)
        sequence = request.sequence
        if sequence.state is SeqState.WAITING:
            request.n_cached = sequence.cached_len
        sequence.state = SeqState.PREFILLING
        if math.isnan(request.admitted_at):
            request.admitted_at = now
        self.waiting.remove(request)
        self.running.append(request)
        batch.admitted.append(request)

    def preempt(self, request: Request, batch: ScheduledBatch) -> None:
        """Frees the pages of a running request, which waits again."""
        self.prefixes.keep(request)
        self.suspend(request)
        batch.preempted.append(request)

    def suspend(self, request: Request) -> None:
        """`preempt` without keeping the pages for other prompts."""
        request.sequence.forget()
        request.sequence.state = SeqState.PREEMPTED
        self.running.remove(request)
        self.waiting.append(request)
        self.prefixes.wait(request)
        self.preemptions += 1

    def finish(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        """Ends a request and frees its pages; the prefix store keeps what it has run."""
        sequence = request.sequence
        if sequence.state is SeqState.FINISHED:
            return
        assert request not in self.in_flight, "its pages are being written"
        sequence.cancel_pass()
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
        self.finished.append(request)

    def fail(self, request: Request) -> None:
        """Ends a request whose sequence does not fit into an empty pool."""
        pool, states = self.pool, self.pool.recurrent_states
        needed = f"{pool.pages_for(request.sequence.total_len + 1)} pages of {pool.page_size} tokens"
        if states is not None:
            needed += f" and 2 states of {states.slot_bytes} bytes"
        available = f"{pool.n_available}" if states is None else f"{pool.limit.available} bytes"
        self.finish(request, "error", KvCacheFullError(f"prompt: {needed} needed, {available} available"))


class Fairness:
    """Orders prompts, and chooses requests that leave their place to a tenant with less than its share.

    Attributes:
        starved: the request that found no place or no pages in the last step; None if each request did.
    """

    def __init__(self, config: SchedulerConfig, queues: Queues) -> None:
        self.config = config
        self.queues = queues
        self.starved: Request | None = None

    def active(self) -> Counter[str]:
        """Running requests by tenant; requests that pause do not count."""
        return Counter(request.tenant for request in self.queues.running if request.has_room)

    def prompts(self, now: float) -> list[Request]:
        """Requests with a prompt to run: tenants with few active requests first, then by priority, which
        grows with the time waited, then by tokens left."""
        patience = self.config.promote_seconds
        active = self.active()

        def urgency(request: Request) -> tuple[int, float, int, int]:
            waited = (now - request.submitted_at) // patience
            turn = active[request.tenant]
            return turn, -(request.priority + waited), request.sequence.pending, request.id

        started = [r for r in self.queues.idle() if r.sequence.state is SeqState.PREFILLING]
        ready = (r for r in (*started, *self.queues.waiting) if r.has_room and not r.is_held)
        return sorted(ready, key=urgency)

    def over_share(self) -> list[Request]:
        """Requests of the largest tenant to preempt, the latest ones, for a tenant that waits and has less
        than its share of the places; [] if no such tenant waits."""
        active, most = self.active(), self.config.max_sequences
        starved, self.starved = self.starved, None
        if active.total() < most and starved not in self.queues.waiting:
            return []
        waiting = {r.tenant for r in self.queues.waiting if r.has_room and not r.is_held}
        share = max(1, most // max(1, len({*active, *waiting})))
        poorest = min(waiting, key=lambda tenant: (active[tenant], tenant), default=None)
        if poorest is None or active[poorest] >= share:
            return []
        largest = max(active, key=lambda tenant: (active[tenant], tenant), default=poorest)
        if active[largest] <= active[poorest] + (active[poorest] > 0):
            return []
        n = max(1, min(active.total() - most + 1, active[largest] - share))  # more if paused ones go on
        others = [r for r in self.queues.idle() if r.tenant == largest and r.has_room]
        return sorted(others, key=rank)[-n:]


class Preemption:
    """Frees pages: first drafts and checkpoints, then what waits, then the pages of a request that runs."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues

    def reclaim_draft_pages(self, sequences: list[Sequence]) -> None:
        """Has sequences free drafts and checkpoints, the first ones first, while all of them together need
        more memory than there is: no request is preempted for pages that another one can do without."""
        limit = self.queues.pool.limit
        while not limit.can_allocate(sum(s.shortage(s.pending) for s in sequences)):
            if not reclaim_one(sequences):
                break

    def make_room(self, request: Request, n: int, batch: ScheduledBatch) -> int:
        """Frees pages until ``n`` tokens of a running request can be run; returns how many can be: fewer if
        it gave up drafts, 0 if it was preempted itself, failed for being alone, or has to wait."""
        queues, sequence = self.queues, request.sequence
        while (shortage := sequence.shortage(n)) and not queues.pool.limit.can_allocate(shortage):
            if sequence.reclaim():
                n = min(n, sequence.pending)
                continue
            if queues.prefixes.reclaim() or self.forget_waiting(request):
                continue
            victim = self.victim([r for r in queues.idle() if r not in batch.requests])
            if victim is None:
                assert queues.in_flight
                return 0  # requests in flight free pages when they are complete
            if victim is request and len(queues.running) == 1:
                queues.fail(request)
            else:
                queues.preempt(victim, batch)
            if victim is request:
                return 0
        return n

    def victim(self, candidates: list[Request]) -> Request | None:
        """The request to preempt: one that pauses, else the lowest priority, else the latest."""
        return max(candidates, key=lambda r: (not r.has_room, rank(r)), default=None)

    def forget_waiting(self, but: Request) -> bool:
        """Frees the pages that a waiting request has from a session; whether a request other than ``but``
        had any."""
        having = [r for r in self.queues.waiting if r.sequence.cached_len and r is not but]
        if having:
            max(having, key=rank).sequence.forget()
        return bool(having)


class Admission:
    """Admits waiting requests; a request of higher priority preempts running ones for its pages.

    Args:
        chunk: max rows of prompts in a step.

    Attributes:
        preemptor: a request that must preempt others, which the last step had scheduled; None without one.
    """

    def __init__(self, queues: Queues, preemption: Preemption, chunk: int) -> None:
        self.queues = queues
        self.preemption = preemption
        self.chunk = chunk
        self.preemptor: Request | None = None

    def admit_pending_preemptor(self, batch: ScheduledBatch, now: float) -> None:
        """Admits the preemptor of the last step, while nothing of this step is scheduled."""
        preemptor, self.preemptor = self.preemptor, None
        if preemptor is not None and preemptor in self.queues.waiting and preemptor.has_room:
            self.admit(preemptor, batch, now)

    def admit(self, request: Request, batch: ScheduledBatch, now: float) -> bool:
        """Admits a waiting request if there are pages for all of its prompt; whether it was admitted."""
        try:
            if not self._has_pages(request, batch):
                return False
            self.queues.admit(request, batch, now)
        except Exception as error:
            self.queues.finish(request, "error", fault(error))
            return False
        return True

    def _has_pages(self, request: Request, batch: ScheduledBatch) -> bool:
        """Whether there are pages for a prompt, after others freed some of theirs."""
        queues, sequence, limit = self.queues, request.sequence, self.queues.pool.limit
        queues.prefixes.begin(request)
        promised = sum(self._promised(other) for other in queues.running)
        while not limit.can_allocate(sequence.demand(self.chunk) + promised):
            if queues.prefixes.reclaim(but=request) or self.preemption.forget_waiting(request):
                continue
            lesser = [r for r in queues.idle() if not r.has_room or r.priority < request.priority]
            victim = self.preemption.victim([r for r in lesser if r not in batch.requests])
            if victim is None:
                sequence.forget()
                if lesser:
                    self.preemptor = request  # they are in this step's batch: it preempts them in the next
                if queues.running:
                    return False
                queues.prefixes.reclaim()
                # alone, it needs no second page for the copy of a shared one
                if limit.can_allocate(sequence.shortage(sequence.pending)):
                    break
                queues.fail(request)
                return False
            promised -= self._promised(victim)
            queues.preempt(victim, batch)
        return True

    def _promised(self, request: Request) -> int:
        """Bytes that a running request will need: for the rest of its prompt, and one more page."""
        return request.sequence.demand(self.chunk) + self.queues.pool.page_stride
