"""How many tokens each sequence of a batch drafts: as many as make the most tokens a second.

Of a draft whose tokens are each accepted with probability a, the token at depth d is worth a^d (Leviathan et
al., 2023). What a row costs is measured: the rows of a step share its weights, so they are cheap until a step
waits for arithmetic and no longer for memory.

A draft model knows more than a: where it gives its token a high probability, that is nearly always accepted.
How often it is at which probability is learnt, and a draft ends where a further token does not pay.

Drafts may lose what earlier ones gained and a hundredth of the time, whatever they promise (`Budget`).
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

SMOOTHING = 0.1  # least weight of the newest measurement in what steps and passes cost relative to each other
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
LONG_MEMORY = 0.97  # of what is known of a drafter, after each further draft
TOKEN_MEMORY = 0.98  # of what is known of tokens of like probability, after each further one
EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)  # between probabilities that are taken for alike
ACCEPTED_AT = (0.3, 0.45, 0.6, 0.8, 0.9, 0.97)  # of the tokens between them, before any were tried
CREDIT = 0.2  # steps that drafts may lose before any token was accepted
SHARE = 0.01  # of the time of all steps that drafts may lose
MOST_SAVED = 8.0  # steps: what drafts gained beyond them they may not lose
IN_A_ROW = 24  # steps with drafts after which `COMPARED` go without, so that both are compared
COMPARED = 2  # the first finds in the caches what the drafter left, and does not count
PROBE = 2  # its tokens: the time from the first to the second is that of a pass, without what was to catch up


class RowCosts:
    """What decode steps of some rows cost, relative to a step of one row, and how long that one takes now.

    The speed of a machine may double from one moment to the next. So only steps that follow each other are
    compared, and a pass of a drafter with the step before it.
    """

    def __init__(self) -> None:
        self._shape: dict[int, float] = {}
        self._n_compared: dict[int, int] = {}  # steps of so many rows with one of another number
        self._plain: dict[int, float] = {}  # seconds of steps without drafts
        self._passes: dict[str, float] = {}  # by drafter
        self._starts: dict[str, float] = {}
        self._firsts: dict[str, float] = {}  # of a token
        self._first = 0  # rows of the first step, whose relative cost stays as it is
        self._last = (0, 0.0)  # rows and seconds of the last step
        self._n_observed = 0
        self._seen: set[int] = set()  # rows of the steps since the last `_forget`
        self._drafted: set[str] = set()  # drafters since then
        self._hopes: dict[str, float] = {}  # of what drafters that have rested take: less, until they draft
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
            self._shape[n_rows] = known * bounded(ratio / known, 1.0, FIRST_OUTLIER) ** 0.3
            self._n_compared[n_rows] = 1
        elif n_rows != before:
            factor = bounded(ratio / self._shape[n_rows], 1.0, OUTLIER)
            for n, sign in ((n_rows, 1), (before, -1)):
                if n != self._first:
                    self._n_compared[n] += 1
                    self._shape[n] *= factor ** (sign * max(SMOOTHING, 0.5 / self._n_compared[n]))
        self._unit *= bounded(self._unit_of_last() / self._unit, 1.0, FIRST_OUTLIER) ** SPEED_SMOOTHING

    def _forget(self) -> None:
        """Moves what was not measured again to what is likely: a step once taken for dear is tried again."""
        scale = self._shape[self._first] / likely(self._first) if self._first else 1.0
        for n_rows, cost in self._shape.items():
            if n_rows != self._first and n_rows not in self._seen:
                self._shape[n_rows] = cost * (scale * likely(n_rows) / cost) ** SMOOTHING
        for name in {*self._passes, *self._firsts} - self._drafted:
            self._hopes[name] = (1 - SMOOTHING) * self._hopes.get(name, 1.0)
        self._seen.clear()
        self._drafted.clear()

    def observe_plain(self, n_rows: int, seconds: float) -> None:
        """Notes a step without drafts behind another one."""
        known = self.seconds_without(n_rows)
        self._plain[n_rows] = known + SPEED_SMOOTHING * (bounded(seconds, known, OUTLIER) - known)

    def observe_pass(self, drafter: str, seconds: float) -> None:
        """Notes what a drafter took for one more token of all its sequences."""
        self._note(self._passes, drafter, seconds)

    def observe_first(self, drafter: str, seconds: float, n_tokens: int) -> None:
        """Notes what the first drafts of texts of so many tokens took, which a drafter had to read before."""
        self._note(self._firsts, drafter, seconds / n_tokens)

    def observe_start(self, drafter: str, seconds: float, at_most: bool) -> None:
        """Notes what a draft took beside its passes; ``at_most`` that, if the drafter had to catch up."""
        if not at_most or seconds < self.seconds_of_start(drafter):
            self._note(self._starts, drafter, seconds)

    def _note(self, known: dict[str, float], drafter: str, seconds: float) -> None:
        self._drafted.add(drafter)
        self._hopes.pop(drafter, None)
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
        return self._likely_now(self._passes, drafter)

    def seconds_of_start(self, drafter: str) -> float:
        """What a draft takes beside its passes; 0 before that was seen."""
        return self._likely_now(self._starts, drafter)

    def seconds_of_first(self, drafter: str, n_tokens: int) -> float:
        """What the first draft of a text of so many tokens takes; 0 before that was seen."""
        return self._likely_now(self._firsts, drafter) * n_tokens

    def _likely_now(self, known: dict[str, float], drafter: str) -> float:
        return self._unit * known.get(drafter, 0.0) * self._hopes.get(drafter, 1.0)

    def seconds(self, n_rows: int) -> float:
        """What a step of so many rows takes; 0 before any was seen."""
        return self._unit * self._relative(n_rows)

    def seconds_without(self, n_rows: int) -> float:
        """What a step of so many rows without drafts took lately."""
        return self._plain.get(n_rows) or self.seconds(n_rows)

    @property
    def last_seconds(self) -> float:
        """What the last step took, but for interruptions."""
        n_rows, seconds = self._last
        return bounded(seconds, self.seconds(n_rows), OUTLIER)

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


class Budget:
    """What drafts may lose: so much as earlier ones gained, and `SHARE` of the time of all steps.

    So no drafter makes an engine slower by much more than that share. All times are seconds.

    Attributes
    ----------
    left : seconds that the next drafts may lose.
    saved : the share of the steps since the last draft, which a probe may take.
    """

    def __init__(self) -> None:
        self.left: float = 0.0
        self.saved: float = 0.0
        self._is_new = True

    def note(self, step: float, gained: float | None) -> None:
        """Notes a step that would take ``step`` without drafts, and what drafts gained; None without them."""
        if self._is_new:
            self._is_new, self.left = False, CREDIT * step
        self.saved = 0.0 if gained is not None else self.saved + SHARE * step
        self.left += SHARE * step + (gained or 0.0)
        self.left = max(-MOST_SAVED * step, min(self.left, MOST_SAVED * step))

    def steps_to(self, row: float, probe: float, step: float, planning: float = 0.0) -> int:
        """Steps from now until a draft may be tried, as a plan found none that pays.

        ``row`` : what one drafted token takes: with less than that left, no plan could find any.
        ``probe`` : what `PROBE` of them take. ``planning`` : what the next plan takes.
        """
        missing = row - self.left if self.left < row else probe - min(self.left, self.saved)
        return ceil((missing + planning if missing > 0 else missing) / (SHARE * step))


@dataclass
class Acceptance:
    """What became of the drafts of a sequence, or of all sequences of a drafter; the newest count most.

    Attributes
    ----------
    accepted, tried : drafted tokens, as far as the model came.
    by_probability : the same of the tokens to which the draft model gave probabilities between `EDGES`.
    is_graded : whether there was any.
    memory : what is kept of ``accepted`` and ``tried`` after each draft.
    """

    accepted: float = FRESH[0]
    tried: float = FRESH[1]
    by_probability: list[tuple[float, float]] = field(
        default_factory=lambda: [(4 * share, 4.0) for share in ACCEPTED_AT]
    )
    is_graded: bool = False
    memory: float = MEMORY

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

    def begin_like(self, other: Acceptance) -> None:
        """Begins with what is known of other texts of the drafter."""
        self.accepted, self.tried, self.is_graded = other.rate * FRESH[1], FRESH[1], other.is_graded
        self.by_probability = [*other.by_probability]

    def note(self, drafted: int, accepted: int, probabilities: Sequence[float] = ()) -> None:
        """Notes a draft of which the first ``accepted`` tokens were right.

        ``probabilities`` : those that the draft model gave to its tokens.
        """
        n_tried = min(drafted, accepted + 1)
        self.accepted = self.memory * self.accepted + accepted
        self.tried = self.memory * self.tried + n_tried
        for i, probability in enumerate(probabilities[:n_tried]):
            self.is_graded = True
            at = bisect(EDGES, probability)
            right, tried = self.by_probability[at]
            self.by_probability[at] = TOKEN_MEMORY * right + (i < accepted), TOKEN_MEMORY * tried + 1


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
        self.survival: float = 1.0
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
    budget: float = inf,
) -> Plan:
    """How many tokens each sequence drafts in a step of ``n_rows`` rows without drafts.

    Parameters
    ----------
    most : of each sequence.
    pass_seconds : of each, what its drafter takes for one more token of all its sequences.
    start : seconds that any draft takes beside that.
    budget : seconds that the drafts may take at most beside the step without them.
    """
    worth = sorted(
        (-(acceptance.rate**depth), depth, i)
        for i, acceptance in enumerate(sequences)
        for depth in range(1, most[i] + 1)
    )
    n_best, drafting = 0, start
    lengths, plain = [0] * len(sequences), costs.seconds(n_rows)
    if not plain:  # nobody knows what a row costs
        return Plan(lengths, 0.0)
    tokens, best_rate = float(n_rows), n_rows / plain
    for n, (value, depth, i) in enumerate(worth, 1):
        tokens -= value
        drafting = max(drafting, start + depth * pass_seconds[i])
        seconds = costs.seconds(n_rows + n) + drafting
        if seconds - plain > budget:
            break
        rate = tokens / seconds
        if rate > best_rate:
            n_best, best_rate = n, rate
        elif rate < WORSE * best_rate:
            break  # further tokens are worth less, and cost as much
    for _, _, i in worth[:n_best]:
        lengths[i] += 1
    return Plan(lengths, best_rate)
