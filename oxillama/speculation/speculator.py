"""Speculative decoding within the batch: each request drafts as much as pays, or nothing.

The rows of a draft are verified in the same pass as the rows of all other streams (Leviathan et al., 2023;
Chen et al., 2023). A row has the same bits in any pass, and the sampler of a request chooses each of its
tokens itself, in order and with its own random numbers. So a text is the same with and without drafts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Listed
from typing import cast

import numpy as np

from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.protocols import Drafter as CoreDrafter
from oxillama.engine.protocols import HiddenHook
from oxillama.engine.request import Request, TextRequest
from oxillama.engine.sequence import SeqState
from oxillama.faults import note
from oxillama.speculation.drafters import Drafter, HiddenStateDrafter
from oxillama.speculation.length import FIRST_PROBE, IN_A_ROW, PROBE, Acceptance, RowCosts, draft_lengths
from oxillama.speculation.state import SPECULATION, Speculation, speculation_of

log = logging.getLogger(__name__)


class Speculator(CoreDrafter):
    """Drafts for the streams of an engine, before each step.

    Parameters
    ----------
    costs : what steps and passes take, as far as it is known.
    """

    def __init__(self, costs: RowCosts | None = None) -> None:
        self._costs = costs or RowCosts()
        self._latest: dict[str, Acceptance] = {}  # of the text that each drafter drafted for last
        self._since_probe = self._in_a_row = 0  # steps; those with drafts
        self._prober: Acceptance | None = None  # of the stream that a model drafted for to see if it pays
        self._seen: list[tuple[TextRequest, int, np.ndarray]] = []  # hidden states, not observed yet

    def propose(self, requests: list[TextRequest]) -> None:
        """Adds drafts to the sequences of those running requests that speculate (`Drafter.propose`)."""
        if self._seen:
            self._observe_hidden()
        began = time.perf_counter()
        streams = [r for r in requests if r.sequence.state is SeqState.DECODING and r.wanted]
        asking = [
            (request, found)
            for request in streams
            # scheduled tokens belong to a pass that was given up, and are rolled back
            if (found := speculation_of(request)) is not None and not request.sequence.is_scheduled
        ]
        if not asking:
            return
        n_rows = sum([request.sequence.pending for request in streams])
        self._since_probe += 1
        for _, speculation in asking:
            self._remember(speculation.drafter.name, speculation.acceptance)
        asking = [(r, s) for r, s in asking if not s.acceptance.rests(n_rows, self._may_probe(s.acceptance))]
        if not asking:
            return
        lengths = self._lengths(n_rows, asking)
        deciding = time.perf_counter() - began
        for drafter in {id(s.drafter): s.drafter for _, s in asking}.values():
            of_this = [(r, n) for (r, s), n in zip(asking, lengths) if s.drafter is drafter and n > 0]
            if of_this:
                self._draft(drafter, [r for r, _ in of_this], [n for _, n in of_this], deciding)

    def _may_probe(self, acceptance: Acceptance) -> bool:
        """Whether it is a stream's turn to try a draft that does not seem to pay.

        What a model's drafts are worth is much the same for all streams, and to catch up with a text costs as
        much as a step: together they try as often as one of them would.
        """
        last = self._prober if acceptance.is_graded else None
        return self._since_probe >= (last.patience if last is not None else FIRST_PROBE)

    def _remember(self, drafter: str, acceptance: Acceptance) -> None:
        """Has a new text begin with what is known of the last one, if a model drafts for both."""
        known = self._latest.get(drafter)
        if known is not acceptance:
            if known is not None and known.is_graded and acceptance.is_fresh:
                acceptance.take_over(known)
            self._latest[drafter] = acceptance

    def _lengths(self, n_rows: int, asking: list[tuple[TextRequest, Speculation]]) -> list[int]:
        """How many tokens each request drafts at most beside ``n_rows`` rows.

        A draft of a model ends by itself where the next token does not pay (`Outlook`).
        """
        rooms = [room(request, speculation.most) for request, speculation in asking]
        pass_seconds = [self._costs.seconds_of_pass(speculation.drafter.name) for _, speculation in asking]
        acceptances = [speculation.acceptance for _, speculation in asking]
        start = max(self._costs.seconds_of_start(speculation.drafter.name) for _, speculation in asking)
        plan = draft_lengths(n_rows, acceptances, rooms, pass_seconds, self._costs, start)
        row_seconds = self._costs.seconds_of_row(n_rows, max(1, sum(plan.lengths)))
        lengths = plan.lengths
        for i, (_, speculation) in enumerate(asking):
            acceptance, speculation.least = acceptances[i], 0.0
            acceptance.resting = 0 if lengths[i] or not rooms[i] else n_rows
            if not lengths[i] and acceptance.wants_probe and self._may_probe(acceptance):
                lengths[i] = min(PROBE, rooms[i])
                self._since_probe = 0
                if acceptance.is_graded:
                    last = self._prober or acceptance
                    acceptance.patience = max(acceptance.patience, last.patience)
                    self._prober = acceptance
            elif lengths[i] and acceptance.is_graded:
                lengths[i] = rooms[i]
                token_seconds = row_seconds + pass_seconds[i] / len(asking)
                speculation.least = plan.rate * token_seconds / acceptance.rate
        self._in_a_row = self._in_a_row + 1 if any(lengths) and self._in_a_row < IN_A_ROW else 0
        return lengths if self._in_a_row else [0] * len(lengths)

    def _draft(
        self, drafter: Drafter, requests: list[TextRequest], counts: list[int], deciding: float
    ) -> None:
        """Drafts with one drafter; ``deciding`` : seconds that it took to find the lengths."""
        started = time.perf_counter() - deciding
        speculations: list[Speculation] = [request.parts[SPECULATION] for request in requests]
        samplers = [s.draft_sampler(request.sampler) for s, request in zip(speculations, requests)]
        try:
            try:
                proposals = drafter.propose([request.sequence for request in requests], samplers, counts)
            finally:
                for sampler in samplers:
                    sampler.rewind()
        except Exception:
            give_up(drafter, requests)
            return
        self._note_seconds(speculations, time.perf_counter() - started, max(map(len, proposals)))
        for request, speculation, sampler, tokens in zip(requests, speculations, samplers, proposals):
            request.sequence.draft(tokens)
            speculation.distributions[:] = sampler.distributions

    def _note_seconds(self, speculations: list[Speculation], seconds: float, longest: int) -> None:
        """Notes the seconds that a drafter took, for each token and beside that."""
        name = speculations[0].drafter.name
        outlooks = [s.outlook for s in speculations if s.outlook is not None and s.outlook.probabilities]
        if not outlooks:  # it runs no passes
            if longest:
                self._costs.observe_pass(name, seconds / longest)
            return
        passes = [o.pass_seconds for o in outlooks if o.pass_seconds is not None]
        if passes:
            self._costs.observe_pass(name, min(passes))
            if all(s.stats.passes for s in speculations):  # a first draft runs the prompt, too
                catches_up = any(s.acceptance.idle for s in speculations)
                self._costs.observe_start(name, seconds - longest * min(passes), at_most=catches_up)

    def hidden_hooks(self, requests: Listed[Request]) -> Listed[HiddenHook | None]:
        """For each request what takes the hidden states of its rows, or None; [] if none is wanted."""
        found = [self._hook(request) for request in requests]
        return found if any(found) else []

    def _hook(self, request: Request) -> HiddenHook | None:
        speculation = speculation_of(request)
        if speculation is None or not isinstance(request, TextRequest):
            return None
        if not getattr(speculation.drafter, "needs_hidden", False):  # most drafters have no such attribute
            return None
        return lambda start, hidden: self._seen.append((request, start, hidden))

    def _observe_hidden(self) -> None:
        """Shows drafters the hidden states of the last pass, without those of tokens that were rejected."""
        seen, self._seen = self._seen, []
        for request, start, hidden in seen:
            speculation = speculation_of(request)
            if speculation is None or request.finish_reason is not None:
                continue
            drafter, n = speculation.drafter, request.sequence.cached_len - start
            try:
                if n > 0:
                    # only such have taps; asking whether it is one takes as long as drafting a token
                    cast(HiddenStateDrafter, drafter).observe(request.sequence, start, hidden[:n])
            except Exception:
                give_up(drafter, [request])

    def stepped(self, batch: ScheduledBatch, now: float) -> None:
        """Notes how long a step took, drafting left out, and what became of its drafts."""
        if not batch.n_prefill:
            self._costs.observe(batch.n_decode, batch.times.end - batch.times.schedule)
        has_drafts = any(sampled.n_drafted for sampled in batch.sampled)
        for request, _, drafted, accepted in batch.sampled:
            speculation = speculation_of(request)
            if speculation is None:
                continue
            if has_drafts:
                speculation.note(drafted, accepted)
            else:
                speculation.acceptance.note(0, 0)

    def ended(self, request: Request, now: float) -> None:
        """Frees what a drafter keeps of a request that has ended."""
        speculation = speculation_of(request)
        if speculation is not None:
            try:
                speculation.drafter.forget(request.sequence)
            except Exception:
                give_up(speculation.drafter, [request])


def new_speculator(model: object) -> Speculator:
    """The speculator of a model."""
    return Speculator()


def give_up(drafter: Drafter, requests: Listed[Request]) -> None:
    """Logs the error of a drafter. The texts go on without drafts."""
    for request in requests:
        note(
            log, logging.ERROR, "request %d: %s: cannot draft", request.id, drafter.name,
            request=request.name, exc_info=True,
        )  # fmt: skip
        request.parts.pop(SPECULATION, None)
        drafter.forget(request.sequence)


def room(request: TextRequest, most: int) -> int:
    """How many tokens a request may draft: the last of a text need not be drafted."""
    return max(0, min(most, request.n_left - 1))
