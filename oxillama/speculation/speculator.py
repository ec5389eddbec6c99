"""Speculative decoding within the batch: each request drafts as many tokens as pay, or none.

The rows of a draft are verified in the same pass as the rows of all other requests (Leviathan et al., 2023;
Chen et al., 2023). A row has the same bits in any pass, and a request's sampler chooses each of its tokens in
order with its own random numbers. So a text is the same with and without drafts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence as Listed
from typing import cast

import numpy as np

from oxillama.base.faults import note
from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.protocols import Drafter as CoreDrafter, HiddenHook
from oxillama.engine.request import Request, TextRequest
from oxillama.engine.sequence import SeqState
from oxillama.speculation.drafters import Drafter, HiddenStateDrafter
from oxillama.speculation.length import (
    COMPARED,
    IN_A_ROW,
    LONG_MEMORY,
    PROBE,
    Acceptance,
    Budget,
    RowCosts,
    draft_lengths,
)
from oxillama.speculation.state import SPECULATION, Speculation, speculation_of

log: logging.Logger = logging.getLogger(__name__)


class Speculator(CoreDrafter):
    """Drafts for the requests of an engine, before each step.

    Args:
        costs: the measured costs of steps and passes.
    """

    def __init__(self, costs: RowCosts | None = None) -> None:
        self._costs = costs or RowCosts()
        self._budget = Budget()
        self._known: dict[str, Acceptance] = {}  # drafter's name -> counts of all its drafts
        self._resting: tuple[int, ...] = ()  # rows and requests of the last plan, if it had no drafts
        self._steps_to_probe = 0  # steps until a draft is tried although it does not seem to pay
        self._prober = 0  # number of such trials, which selects the request
        self._planning = 0.0  # seconds of the last plan without drafts
        self._in_a_row = 0  # consecutive steps for which drafts seem to pay
        self._has_drafted = False  # whether the last step had drafts
        self._drafting = 0.0  # seconds spent on the drafts of the next step
        self._debts: dict[int, float] = {}  # by request: seconds of its first draft not yet gained back
        self._is_asked = False  # whether any request of the next step speculates
        self._at_rest: list[TextRequest] = []  # the requests of the last plan, if it had no drafts
        self._seen: list[tuple[TextRequest, int, np.ndarray]] = []  # hidden states not yet observed

    def propose(self, requests: list[TextRequest]) -> None:
        """Add drafts to the sequences of running requests that speculate (see `Drafter.propose`)."""
        if self._seen:
            self._observe_hidden()
        if self._steps_to_probe > 1 and requests == self._at_rest and requests:
            self._steps_to_probe -= 1
            return
        began, self._at_rest = time.perf_counter(), []
        streams = [r for r in requests if r.sequence.state is SeqState.DECODING and r.has_room]
        asking = [
            (request, found)
            for request in streams
            # scheduled tokens belong to an abandoned pass, and will be rolled back
            if (found := speculation_of(request)) is not None and not request.sequence.is_scheduled
        ]
        self._is_asked = bool(asking)
        if not asking:
            return
        n_rows = sum([request.sequence.pending for request in streams])
        self._steps_to_probe -= 1
        if self._steps_to_probe > 0 and self._resting == planned_for(n_rows, asking):
            return
        lengths = self._lengths(n_rows, asking)
        if self._resting and len(streams) == len(requests):
            self._at_rest = requests[:]
        deciding = time.perf_counter() - began
        if not any(lengths):
            self._budget.left -= deciding
            self._planning = deciding
            return
        for drafter in {id(s.drafter): s.drafter for _, s in asking}.values():
            of_this = [(r, n) for (r, s), n in zip(asking, lengths) if s.drafter is drafter and n > 0]
            if of_this:
                self._draft(drafter, [r for r, _ in of_this], [n for _, n in of_this], deciding)

    def _lengths(self, n_rows: int, asking: list[tuple[TextRequest, Speculation]]) -> list[int]:
        """The maximum draft length of each request in a step of ``n_rows`` other rows.

        A draft model ends a draft earlier if the next token does not pay (`Outlook`).
        """
        rooms = [room(request, speculation.most) for request, speculation in asking]
        pass_seconds = [self._costs.seconds_of_pass(speculation.drafter.name) for _, speculation in asking]
        acceptances = [self._acceptance(speculation) for _, speculation in asking]
        start = max(self._costs.seconds_of_start(speculation.drafter.name) for _, speculation in asking)
        plan = draft_lengths(
            n_rows, acceptances, rooms, pass_seconds, self._costs, start, budget=self._budget.left
        )
        if not any(plan.lengths):
            self._in_a_row, self._resting = 0, planned_for(n_rows, asking)
            return self._probe(n_rows, rooms, start, max(pass_seconds))
        self._resting, lengths = (), plan.lengths
        row_seconds = self._costs.seconds_of_row(n_rows, sum(lengths))
        gain = plan.rate * self._costs.seconds(n_rows) / n_rows - 1  # share of the time of each token
        for i, (request, speculation) in enumerate(asking):
            acceptance, speculation.least = acceptances[i], 0.0
            if not speculation.stats.passes and lengths[i]:
                first = self._costs.seconds_of_first(speculation.drafter.name, request.sequence.total_len)
                if first > gain * request.n_left * self._costs.seconds(n_rows) / n_rows:
                    lengths[i] = 0
            if lengths[i] and acceptance.is_graded:
                lengths[i] = rooms[i]
                token_seconds = row_seconds + pass_seconds[i] / len(asking)
                speculation.least = plan.rate * token_seconds / acceptance.rate
        if not any(lengths):  # the first drafts would run the prompts, which costs more than they gain
            self._resting, self._steps_to_probe = planned_for(n_rows, asking), IN_A_ROW
            return lengths
        self._in_a_row = self._in_a_row % (IN_A_ROW + COMPARED) + 1
        return lengths if self._in_a_row <= IN_A_ROW else [0] * len(lengths)

    def _acceptance(self, speculation: Speculation) -> Acceptance:
        """The counts of a request; before its first draft, initialized from its drafter's."""
        found, known = speculation.acceptance, self._known.get(speculation.drafter.name)
        if known is not None and found.is_fresh:
            found.begin_like(known)
        return found

    def _probe(self, n_rows: int, rooms: list[int], start: float, pass_seconds: float) -> list[int]:
        """The lengths if no draft seems to pay: all 0, but for one request if a trial is due."""
        lengths, step = [0] * len(rooms), self._costs.seconds(n_rows)
        if not step:  # nothing was measured yet
            return lengths
        row, probe = (self._costs.seconds(n_rows + n) - step + start + n * pass_seconds for n in (1, PROBE))
        self._steps_to_probe = self._budget.steps_to(row, probe, step, self._planning)
        if self._steps_to_probe <= 0 and self._budget.left >= probe:
            self._prober = (self._prober + 1) % len(rooms)
            lengths[self._prober] = min(PROBE, rooms[self._prober])
        return lengths

    def _draft(
        self, drafter: Drafter, requests: list[TextRequest], counts: list[int], deciding: float
    ) -> None:
        """Draft with one drafter; ``deciding`` : seconds spent on the lengths."""
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
        seconds = time.perf_counter() - started
        longest = max(map(len, proposals))
        reading = [r for r, s in zip(requests, speculations) if not s.stats.passes]
        self._note_seconds(speculations, seconds, longest, sum([r.sequence.total_len for r in reading]))
        if longest and reading and not self._resting:
            # a first draft reads the prompt for all later drafts; its cost is a debt that their gains repay
            known = longest * self._costs.seconds_of_pass(drafter.name)
            for request in reading:
                debt = self._debts.get(request.id, 0.0) + max(0.0, seconds - known) / len(reading)
                self._debts[request.id] = debt
            seconds = min(seconds, known)
        self._drafting += seconds
        for request, speculation, sampler, tokens in zip(requests, speculations, samplers, proposals):
            request.sequence.draft(tokens)
            speculation.distributions[:] = sampler.distributions

    def _note_seconds(
        self, speculations: list[Speculation], seconds: float, longest: int, n_to_read: int
    ) -> None:
        """Record the seconds that a drafter took, for each token and beyond that.

        ``n_to_read`` : tokens of the texts of first drafts, which the drafter had to read.
        """
        name = speculations[0].drafter.name
        outlooks = [s.outlook for s in speculations if s.outlook is not None and s.outlook.probabilities]
        if not outlooks:  # a drafter without passes, such as prompt lookup
            if longest:
                self._costs.observe_pass(name, seconds / longest)
            return
        passes = [o.pass_seconds for o in outlooks if o.pass_seconds is not None]
        if passes:
            self._costs.observe_pass(name, min(passes))
            beside = seconds - longest * min(passes)
            if n_to_read:
                self._costs.observe_first(name, beside, n_to_read)
            else:
                self._costs.observe_start(name, beside, at_most=self._in_a_row <= 1)

    def hidden_hooks(self, requests: Listed[Request]) -> Listed[HiddenHook | None]:
        """The hook for each request's hidden states, or None; [] if no request needs them."""
        found = [self._hook(request) for request in requests]
        return found if any(found) else []

    def _hook(self, request: Request) -> HiddenHook | None:
        speculation = speculation_of(request)
        if speculation is None or not isinstance(request, TextRequest):
            return None
        if not getattr(speculation.drafter, "needs_hidden", False):  # most drafters have no such attribute
            return None
        drafter = speculation.drafter

        def note_rows(start: int, hidden: np.ndarray, inputs: Mapping[int, np.ndarray]) -> None:
            self._seen.append((request, start, features_of(drafter, hidden, inputs)))

        return note_rows

    def _observe_hidden(self) -> None:
        """Pass the hidden states of the last pass to the drafters, without rows of rejected tokens."""
        seen, self._seen = self._seen, []
        for request, start, hidden in seen:
            speculation = speculation_of(request)
            if speculation is None or request.finish_reason is not None:
                continue
            drafter, n = speculation.drafter, request.sequence.cached_len - start
            try:
                if n > 0:
                    # only hidden-state drafters have hooks; isinstance would take as long as drafting a token
                    cast(HiddenStateDrafter, drafter).observe(request.sequence, start, hidden[:n])
            except Exception:
                give_up(drafter, [request])

    def stepped(self, batch: ScheduledBatch, now: float) -> None:
        """Record the duration of a step without its drafting, and the acceptance of its drafts."""
        drafted = accepted = 0
        for request, _, n, right in batch.sampled:
            speculation = speculation_of(request)
            if speculation is not None and n:
                speculation.note(n, right)
                known = self._known.setdefault(speculation.drafter.name, Acceptance(memory=LONG_MEMORY))
                known.note(n, right, speculation.outlook.probabilities if speculation.outlook else ())
                drafted, accepted = drafted + n, accepted + right
        if not self._is_asked and not drafted:  # steps without speculation add nothing to the budget
            return
        n_rows, behind_drafts = batch.n_decode - drafted, self._has_drafted
        self._has_drafted = drafted > 0
        if batch.n_prefill or n_rows < 1 or (behind_drafts and not drafted):
            # not comparable: the prompt's cost is unknown, or the drafter has changed the CPU caches
            if drafted:
                plain = self._costs.seconds_without(n_rows)
                rows = drafted * self._costs.seconds_of_row(n_rows, drafted)
                self._note_gain(plain, accepted / n_rows * plain - rows)
            return
        self._costs.observe(batch.n_decode, batch.times.end - batch.times.schedule)
        plain = self._costs.seconds_without(n_rows)
        if drafted:
            self._note_gain(plain, (1 + accepted / n_rows) * plain - self._costs.last_seconds)
        else:
            self._costs.observe_plain(n_rows, self._costs.last_seconds)
            self._note_gain(plain, 0.0 if self._drafting else None)

    def _note_gain(self, plain: float, gained: float | None) -> None:
        """Record a step that takes ``plain`` seconds without drafts, and the gain before drafting time."""
        if not plain:
            return
        drafting, self._drafting = self._drafting, 0.0
        if gained is not None:
            gained -= drafting
            for id in [*self._debts]:
                if gained <= 0:
                    break
                paid = min(gained, self._debts[id])
                gained, left = gained - paid, self._debts.pop(id) - paid
                if left:
                    self._debts[id] = left
        self._budget.note(plain, gained)

    def ended(self, request: Request, now: float) -> None:
        """Free a drafter's state of a finished request."""
        speculation = speculation_of(request)
        self._at_rest = []
        self._budget.left -= self._debts.pop(request.id, 0.0)
        if speculation is not None:
            try:
                speculation.drafter.forget(request.sequence)
            except Exception:
                give_up(speculation.drafter, [request])


def new_speculator(model: object) -> Speculator:
    """The speculator of a model."""
    return Speculator()


def give_up(drafter: Drafter, requests: Listed[Request]) -> None:
    """Log a drafter's error; the requests continue without drafts."""
    for request in requests:
        note(
            log, logging.ERROR, "request %d: %s: cannot draft", request.id, drafter.name,
            request=request.name, exc_info=True,
        )  # fmt: skip
        request.parts.pop(SPECULATION, None)
        drafter.forget(request.sequence)


def features_of(drafter: Drafter, hidden: np.ndarray, inputs: Mapping[int, np.ndarray]) -> np.ndarray:
    """What a drafter reads of each row: the hidden states after the last norm, float32 (rows, n_embd), or the
    inputs of its `tapped` layers side by side; a number beyond the layers names the former."""
    tapped = getattr(drafter, "tapped", ())
    return np.concatenate([inputs.get(i, hidden) for i in tapped], axis=1) if tapped else hidden


def planned_for(n_rows: int, asking: list[tuple[TextRequest, Speculation]]) -> tuple[int, ...]:
    """The key of a plan without drafts: the number of rows, and the requests."""
    return (n_rows, *[request.id for request, _ in asking])


def room(request: TextRequest, most: int) -> int:
    """The number of tokens that a request may draft; the last token of a text need not be drafted."""
    return max(0, min(most, request.n_left - 1))
