"""Speculative decoding within the batch: each request drafts as much as pays, or nothing.

The rows of a draft are verified in the same pass as the rows of all other streams (Leviathan et al., 2023;
Chen et al., 2023). A row has the same bits in any pass, and the sampler of a request chooses each of its
tokens itself, in order and with its own random numbers. So a text is the same with and without drafts.
"""

from __future__ import annotations

import logging
import time

from oxillama.engine.drafters import Drafter
from oxillama.engine.faults import note
from oxillama.engine.request import TextRequest
from oxillama.engine.scheduler import ScheduledBatch
from oxillama.engine.sequence import SeqState
from oxillama.engine.speculation import Speculation
from oxillama.speculative.length import SMOOTHING, RowCosts, draft_lengths

log = logging.getLogger(__name__)


class Speculator:
    """Drafts for the streams of an engine, before each step."""

    def __init__(self) -> None:
        self._costs = RowCosts()
        self._pass_seconds: dict[str, float] = {}  # by drafter: one more token for all its requests

    def draft(self, requests: list[TextRequest]) -> None:
        """Adds drafts to the sequences of those running requests that speculate."""
        streams = [r for r in requests if r.sequence.state is SeqState.DECODING and r.wanted]
        asking = [
            (request, request.speculation)
            for request in streams
            # what is scheduled belongs to a pass that was given up, and is rolled back
            if request.speculation is not None and not request.sequence.is_scheduled
        ]
        if not asking:
            return
        lengths = self._lengths(sum(request.sequence.pending for request in streams), asking)
        for drafter in {id(s.drafter): s.drafter for _, s in asking}.values():
            of_this = [(r, n) for (r, s), n in zip(asking, lengths) if s.drafter is drafter and n > 0]
            if of_this:
                self._propose(drafter, [r for r, _ in of_this], [n for _, n in of_this])

    def _lengths(self, n_rows: int, asking: list[tuple[TextRequest, Speculation]]) -> list[int]:
        """How many tokens each request drafts beside ``n_rows`` rows."""
        return draft_lengths(
            n_rows,
            [speculation.acceptance for _, speculation in asking],
            [room(request, speculation.most) for request, speculation in asking],
            [self._pass_seconds.get(speculation.drafter.name, 0.0) for _, speculation in asking],
            self._costs,
        )

    def _propose(self, drafter: Drafter, requests: list[TextRequest], counts: list[int]) -> None:
        started = time.perf_counter()
        samplers = [
            request.speculation.draft_sampler(request.sampler)
            for request in requests
            if request.speculation is not None
        ]
        try:
            try:
                proposals = drafter.propose([request.sequence for request in requests], samplers, counts)
            finally:
                for sampler in samplers:
                    sampler.rewind()
        except Exception:  # the texts go on without drafts
            note(log, logging.ERROR, "%s: cannot draft", drafter.name, exc_info=True)
            for request in requests:
                request.speculation = None
                drafter.forget(request.sequence)
            return
        seconds = (time.perf_counter() - started) / max(1, *map(len, proposals))
        known = self._pass_seconds.get(drafter.name, seconds)
        share = SMOOTHING if seconds > known else 0.5  # what took longer may have been waiting
        self._pass_seconds[drafter.name] = known + share * (seconds - known)
        for request, sampler, tokens in zip(requests, samplers, proposals):
            request.sequence.draft(tokens)
            assert request.speculation is not None
            request.speculation.distributions = sampler.distributions

    def observe(self, batch: ScheduledBatch, seconds: float) -> None:
        """Notes how long a step took, drafting left out."""
        if not batch.n_prefill:
            self._costs.observe(batch.n_decode, seconds)


def room(request: TextRequest, most: int) -> int:
    """How many tokens a request may draft: the last of a text need not be drafted.

    A recurrent sequence whose draft was rejected goes back to its last checkpoint, and what was accepted is
    run again with the next draft. Where that is much it drafts nothing, and so gets a new checkpoint.
    """
    return max(0, min(most, request.n_left - 1)) if request.sequence.pending <= most else 0
