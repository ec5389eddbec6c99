"""How many tokens each sequence of a batch drafts: as many as make the most tokens a second.

Of a draft whose tokens are each accepted with probability a, the token at depth d is worth a^d (Leviathan et
al., 2023). What a row costs is measured: the rows of a step share its weights, so they are cheap until a step
waits for arithmetic and no longer for memory.

A draft model knows more than a: where it gives its token a high probability, that is nearly always accepted.
How often it is at which probability is learnt, and a draft ends where a further token does not pay.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SMOOTHING = 0.1  # weight of the newest measurement in what steps and passes cost relative to each other
FIRST_SMOOTHING = 0.3  # weight of the first measurement, beside what is taken for likely
SPEED_SMOOTHING = 0.3  # weight of the newest step in how fast they all are now, which changes within moments
OUTLIER = 1.5  # times what is known, or one by so many, that a measurement counts at most
FIRST_OUTLIER = 3.0  # the same of what is taken for likely before the first measurement
ROW_COST = 0.07  # of a step of one row: what a further one is taken to cost before that is measured
LATER_ROW_COST = 0.15  # the same of those after MEMORY_ROWS, when a step waits for arithmetic
MEMORY_ROWS = 8
FORGETTING = 64  # steps after which what was measured moves to what is likely
WORSE = 0.8  # of the best rate: where the search for a better one ends
FRESH = 1.2, 2.0  # accepted tokens of how many tried, before any were
MEMORY = 0.9  # of what is known of a sequence's drafts, after each further draft
TOKEN_MEMORY = 0.98  # of what is known of tokens of like probability, after each further one
EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)  # between probabilities that are taken for alike
ACCEPTED_AT = (0.3, 0.45, 0.6, 0.8, 0.9, 0.97)  # of the tokens between them, before any were tried
FIRST_PROBE, LAST_PROBE = 8, 64  # tokens without a draft after which one is tried again
LAST_MODEL_PROBE = 256  # the same of a model, which must catch up with the text first
IN_A_ROW = 16  # steps with drafts after which one goes without, so that both are compared
PROBE = 2  # its tokens: the time from the first to the second is that of a pass, without what was to catch up


class RowCosts:
    """What decode steps of some rows cost, relative to a step of one row, and how long that one takes now.

    The speed of a machine may double from one moment to the next. So only steps that follow each other are
    compared, and a pass of a drafter with the step before it.
    """

    def __init__(self) -> None:
        self._shape: dict[int, float] = {}
        self._passes: dict[str, float] = {}  # by drafter
        self._starts: dict[str, float] = {}
        self._first = 0  # rows of the first step, whose relative cost stays as it is
        self._last = (0, 0.0)  # rows and seconds of the last step
        self._n_observed = 0
        self._seen: set[int] = set()  # rows of the steps since the last `_forget`
        self._unit = 0.0

    def observe(self, n_rows: int, seconds: float) -> None:
        """Notes a step."""
        before, seconds_before = self._last
        self._last = n_rows, seconds
        self._n_observed += 1
        self._seen.add(n_rows)
        if self._n_observed % FORGETTING == 0:
            self._forget()
        if not before:
            self._first, self._shape[n_rows] = n_rows, self._relative(n_rows)
            self._unit = seconds / self._shape[n_rows]
            return
        ratio = seconds / seconds_before * self._shape[before]
        if n_rows not in self._shape:
            known = self._relative(n_rows)
            self._shape[n_rows] = known * bounded(ratio / known, 1.0, FIRST_OUTLIER) ** FIRST_SMOOTHING
        elif n_rows != before:
            factor = bounded(ratio / self._shape[n_rows], 1.0, OUTLIER) ** SMOOTHING
            if n_rows != self._first:
                self._shape[n_rows] *= factor
            if before != self._first:
                self._shape[before] /= factor
        self._unit *= bounded(self._unit_of_last() / self._unit, 1.0, FIRST_OUTLIER) ** SPEED_SMOOTHING

    def _forget(self) -> None:
        """Moves what was not measured again to what is likely: a step once taken for dear is tried again."""
        scale = self._shape[self._first] / likely(self._first) if self._first else 1.0
        for n_rows, known in self._shape.items():
            if n_rows != self._first and n_rows not in self._seen:
                self._shape[n_rows] = known * (scale * likely(n_rows) / known) ** SMOOTHING
        self._seen.clear()

    def observe_pass(self, drafter: str, seconds: float) -> None:
        """Notes what a drafter took for one more token of all its sequences."""
        self._note(self._passes, drafter, seconds)

    def observe_start(self, drafter: str, seconds: float, at_most: bool) -> None:
        """Notes what a draft took beside its passes; ``at_most`` that, if the drafter had to catch up."""
        if not at_most or seconds < self.seconds_of_start(drafter):
            self._note(self._starts, drafter, seconds)

    def _note(self, known: dict[str, float], drafter: str, seconds: float) -> None:
        if self._last[0]:
            relative = max(seconds, 1e-9) / self._unit_of_last()
            before = known.get(drafter, relative)
            known[drafter] = before * bounded(relative / before, 1.0, OUTLIER) ** SMOOTHING

    def _unit_of_last(self) -> float:
        """What a step of one row would have taken in the place of the last."""
        n_rows, seconds = self._last
        return seconds / self._shape[n_rows]

    def seconds_of_pass(self, drafter: str) -> float:
        """What a drafter takes for one more token of all its sequences; 0 before that was seen."""
        return self._unit * self._passes.get(drafter, 0.0)

    def seconds_of_start(self, drafter: str) -> float:
        """What a draft takes beside its passes; 0 before that was seen."""
        return self._unit * self._starts.get(drafter, 0.0)

    def seconds(self, n_rows: int) -> float:
        """What a step of so many rows takes; 0 before any was seen."""
        return self._unit * self._relative(n_rows)

    def seconds_of_row(self, n_rows: int, n_more: int) -> float:
        """What each of ``n_more`` rows adds to a step of ``n_rows``."""
        return max(0.0, self.seconds(n_rows + n_more) - self.seconds(n_rows)) / n_more

    def _relative(self, n_rows: int) -> float:
        """As measured, or by the nearest that were."""
        known = self._shape.get(n_rows)
        if known is not None:
            return known
        below = max((n for n in self._shape if n < n_rows), default=0)
        above = min((n for n in self._shape if n > n_rows), default=0)
        if below and above:
            share = (n_rows - below) / (above - below)
            return self._shape[below] + share * (self._shape[above] - self._shape[below])
        near = below or above
        return likely(n_rows) if not near else max(0.1, self._shape[near] + likely(n_rows) - likely(near))


def likely(n_rows: int) -> float:
    """What a step of some rows costs, relative to one of one row, before that is measured."""
    return 1 + ROW_COST * (n_rows - 1) + (LATER_ROW_COST - ROW_COST) * max(0, n_rows - MEMORY_ROWS)


def bounded(value: float, known: float, factor: float) -> float:
    """The value, or what is nearest to it of ``known / factor`` to ``known * factor``."""
    return min(max(value, known / factor), known * factor)


@dataclass
class Acceptance:
    """What became of the drafts of a sequence; the newest count most.

    Attributes
    ----------
    accepted, tried : drafted tokens, as far as the model came.
    by_probability : the same of the tokens to which the draft model gave probabilities between `EDGES`.
    is_graded : whether there was any.
    idle : tokens since the last draft. patience : with so many, one is tried even if it does not seem to pay.
    resting : rows of the last step, if a draft did not seem to pay in it; else 0.
    """

    accepted: float = FRESH[0]
    tried: float = FRESH[1]
    by_probability: list[tuple[float, float]] = field(
        default_factory=lambda: [(4 * share, 4.0) for share in ACCEPTED_AT]
    )
    is_graded: bool = False
    idle: int = 0
    patience: int = FIRST_PROBE
    resting: int = 0

    @property
    def rate(self) -> float:
        """The share of drafted tokens that are accepted, of those that the target came to."""
        return min(0.98, self.accepted / self.tried)

    def chance(self, probability: float) -> float:
        """How likely a token is accepted to which the draft model gives a probability."""
        accepted, tried = self.by_probability[bisect(EDGES, probability)]
        return accepted / tried

    @property
    def is_fresh(self) -> bool:
        """Whether there was no draft yet."""
        return self.tried == FRESH[1]

    def take_over(self, other: Acceptance) -> None:
        """Begins with what is known of another text that a model drafted for, and rests as that does."""
        self.accepted, self.tried, self.is_graded = other.accepted, other.tried, True
        self.by_probability = [*other.by_probability]
        self.idle, self.patience, self.resting = other.idle, other.patience, other.resting

    def note(self, drafted: int, accepted: int, probabilities: Sequence[float] = ()) -> None:
        """Notes a draft of which the first ``accepted`` tokens were right.

        ``probabilities`` : those that the draft model gave to its tokens.
        """
        if drafted == 0:
            self.idle += 1
            return
        n_tried = min(drafted, accepted + 1)
        self.accepted = MEMORY * self.accepted + accepted
        self.tried = MEMORY * self.tried + n_tried
        for i, probability in enumerate(probabilities[:n_tried]):
            self.is_graded = True
            at = bisect(EDGES, probability)
            right, tried = self.by_probability[at]
            self.by_probability[at] = TOKEN_MEMORY * right + (i < accepted), TOKEN_MEMORY * tried + 1
        if accepted and not self.resting:
            self.patience = FIRST_PROBE
        else:
            self.patience = min(LAST_MODEL_PROBE if self.is_graded else LAST_PROBE, 2 * self.patience)
        self.idle = 0

    @property
    def wants_probe(self) -> bool:
        """Whether it is time to try a draft again, though it does not seem to pay."""
        return self.idle >= self.patience

    def rests(self, n_rows: int, may_probe: bool = True) -> bool:
        """Whether a draft did not pay in a step of as many rows, and it is not time to try one again."""
        return self.resting == n_rows and not (may_probe and self.wants_probe)


class Outlook:
    """Ends a draft where a further token would not pay.

    Parameters
    ----------
    acceptance : of the sequence.
    least : probability that all tokens so far are accepted below which no other one is drafted.

    clock : the time in seconds.

    Attributes
    ----------
    probabilities : those the draft model gave to its tokens.
    survival : how likely all of them are accepted.
    """

    def __init__(
        self, acceptance: Acceptance, least: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.probabilities: list[float] = []
        self.survival = 1.0
        self._acceptance, self._least, self._clock = acceptance, least, clock
        self._first = self._last = 0.0

    def goes_on(self, probability: float) -> bool:
        """Notes a drafted token; whether to draft another one."""
        self._last = self._clock()
        if not self.probabilities:
            self._first = self._last
        self.probabilities.append(probability)
        self.survival *= self._acceptance.chance(probability)
        return self.survival >= self._least

    @property
    def pass_seconds(self) -> float | None:
        """What each token after the first one took; None if there was none."""
        n = len(self.probabilities) - 1
        return (self._last - self._first) / n if n > 0 else None


@dataclass(frozen=True)
class Plan:
    """How many tokens each sequence drafts, 0 where that does not pay, and the tokens a second it makes."""

    lengths: list[int]
    rate: float


def draft_lengths(
    n_rows: int,
    sequences: Sequence[Acceptance],
    most: Sequence[int],
    pass_seconds: Sequence[float],
    costs: RowCosts,
    start: float = 0.0,
) -> Plan:
    """How many tokens each sequence drafts in a step of ``n_rows`` rows without drafts.

    Parameters
    ----------
    most : of each sequence.
    pass_seconds : of each, what its drafter takes for one more token of all its sequences.
    start : seconds that any draft takes beside that.
    """
    worth = sorted(
        (-(acceptance.rate**depth), depth, i)
        for i, acceptance in enumerate(sequences)
        for depth in range(1, most[i] + 1)
    )
    n_best, drafting = 0, start
    tokens, best_rate = float(n_rows), n_rows / max(costs.seconds(n_rows), 1e-9)
    for n, (value, depth, i) in enumerate(worth, 1):
        tokens -= value
        drafting = max(drafting, start + depth * pass_seconds[i])
        rate = tokens / max(costs.seconds(n_rows + n) + drafting, 1e-9)
        if rate > best_rate:
            n_best, best_rate = n, rate
        elif rate < WORSE * best_rate:
            break  # further tokens are worth less, and cost as much
    lengths = [0] * len(sequences)
    for _, _, i in worth[:n_best]:
        lengths[i] += 1
    return Plan(lengths, best_rate)
