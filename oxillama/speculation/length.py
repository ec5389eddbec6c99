"""The number of tokens that each sequence of a batch drafts, chosen to maximize tokens per second.

If each token of a draft is accepted with probability a, the token at depth d is worth a^d (Leviathan et al.,
2023). The cost of a row is measured: the rows of a step share the reading of weights, so further rows are
cheap until a step is limited by arithmetic and no longer by memory.

A draft model also gives probabilities: a token with a high probability is nearly always accepted. The
acceptance rate by probability is learnt, and a draft ends where a further token would not pay.

Drafts may lose at most what earlier drafts gained plus a hundredth of the time of all steps (`Budget`).
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

SMOOTHING = 0.1  # least weight of the newest measurement in the relative costs of steps and passes
SPEED_SMOOTHING = 0.3  # weight of the newest step in the current speed, which changes within moments
OUTLIER = 1.5  # a measurement is clipped to the known value times or divided by this
FIRST_OUTLIER = 3.0  # the same for the first measurement, relative to the assumed value
ROW_COST = 0.07  # assumed cost of a further row before it is measured, relative to a step of one row
LATER_ROW_COST = 0.15  # the same for rows after MEMORY_ROWS, where arithmetic limits a step
MEMORY_ROWS = 8
FORGETTING = 64  # every so many steps, costs not measured again move towards the assumed ones
WORSE = 0.8  # the search for a better plan ends below this share of the best rate
FRESH = 1.2, 2.0  # initial counts of accepted and tried tokens
MEMORY = 0.9  # decay of the counts of a sequence with each draft
LONG_MEMORY = 0.97  # decay of the counts of a drafter with each draft
TOKEN_MEMORY = 0.98  # decay of the counts by probability with each token
EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)  # edges of the bins of probabilities
ACCEPTED_AT = (0.3, 0.45, 0.6, 0.8, 0.9, 0.97)  # initial acceptance rate of each bin
CREDIT = 0.2  # initial budget, in steps
SHARE = 0.01  # share of the time of all steps that drafts may lose
MOST_SAVED = 8.0  # maximum of the budget, in steps
IN_A_ROW = 24  # steps with drafts after which `COMPARED` steps run without drafts, for comparison
COMPARED = 2  # the first of these does not count: the drafter has changed the CPU caches
PROBE = 2  # tokens of a probe: the time between them is a pass's time without catching up on the text


class RowCosts:
    """The cost of decode steps by number of rows, relative to a step of one row, and the current speed.

    The speed of a machine may change by a factor of 2 within moments. So only consecutive steps are compared,
    and a drafter's pass with the step before it.
    """

    def __init__(self) -> None:
        self._shape: dict[int, float] = {}
        self._n_compared: dict[int, int] = {}  # number of rows -> comparisons with other steps
        self._plain: dict[int, float] = {}  # seconds of steps without drafts
        self._passes: dict[str, float] = {}  # relative cost by drafter
        self._starts: dict[str, float] = {}
        self._firsts: dict[str, float] = {}  # relative cost of a token of the text
        self._first = 0  # rows of the first step; its relative cost is fixed
        self._last = (0, 0.0)  # rows and seconds of the last step
        self._n_observed = 0
        self._seen: set[int] = set()  # numbers of rows of the steps since the last `_forget`
        self._drafted: set[str] = set()  # drafters that have drafted since the last `_forget`
        self._hopes: dict[str, float] = {}  # cost factors below 1 of drafters that have not drafted lately
        self._unit = 0.0

    def observe(self, n_rows: int, seconds: float) -> None:
        """Record a step."""
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
        """Move costs not measured lately towards the assumed costs, so that costly steps are tried again."""
        scale = self._shape[self._first] / likely(self._first) if self._first else 1.0
        for n_rows, cost in self._shape.items():
            if n_rows != self._first and n_rows not in self._seen:
                self._shape[n_rows] = cost * (scale * likely(n_rows) / cost) ** SMOOTHING
        for name in {*self._passes, *self._firsts} - self._drafted:
            self._hopes[name] = (1 - SMOOTHING) * self._hopes.get(name, 1.0)
        self._seen.clear()
        self._drafted.clear()

    def observe_plain(self, n_rows: int, seconds: float) -> None:
        """Record a step without drafts that followed another such step."""
        known = self.seconds_without(n_rows)
        self._plain[n_rows] = known + SPEED_SMOOTHING * (bounded(seconds, known, OUTLIER) - known)

    def observe_pass(self, drafter: str, seconds: float) -> None:
        """Record the seconds of a drafter's pass: one more token for all its sequences."""
        self._note(self._passes, drafter, seconds)

    def observe_first(self, drafter: str, seconds: float, n_tokens: int) -> None:
        """Record the seconds of first drafts, for which a drafter read texts of ``n_tokens`` tokens."""
        self._note(self._firsts, drafter, seconds / n_tokens)

    def observe_start(self, drafter: str, seconds: float, at_most: bool) -> None:
        """Record the seconds of a draft beyond its passes; ``at_most``: an upper bound, with catching up."""
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
        """The seconds that a step of one row would have taken in place of the last step."""
        n_rows, seconds = self._last
        return seconds / self._shape[n_rows]

    def seconds_of_pass(self, drafter: str) -> float:
        """The seconds of a drafter's pass: one more token for all its sequences; 0 if not yet measured."""
        return self._likely_now(self._passes, drafter)

    def seconds_of_start(self, drafter: str) -> float:
        """The seconds of a draft beyond its passes; 0 before the first measurement."""
        return self._likely_now(self._starts, drafter)

    def seconds_of_first(self, drafter: str, n_tokens: int) -> float:
        """The seconds of the first draft for a text of ``n_tokens`` tokens; 0 if not yet measured."""
        return self._likely_now(self._firsts, drafter) * n_tokens

    def _likely_now(self, known: dict[str, float], drafter: str) -> float:
        return self._unit * known.get(drafter, 0.0) * self._hopes.get(drafter, 1.0)

    def seconds(self, n_rows: int) -> float:
        """The seconds of a step of ``n_rows`` rows; 0 before the first step."""
        return self._unit * self._relative(n_rows)

    def seconds_without(self, n_rows: int) -> float:
        """The recent seconds of a step of ``n_rows`` rows without drafts."""
        return self._plain.get(n_rows) or self.seconds(n_rows)

    @property
    def last_seconds(self) -> float:
        """The seconds of the last step, clipped to exclude interruptions."""
        n_rows, seconds = self._last
        return bounded(seconds, self.seconds(n_rows), OUTLIER)

    def seconds_of_row(self, n_rows: int, n_more: int) -> float:
        """The seconds that each of ``n_more`` rows adds to a step of ``n_rows``."""
        return max(0.0, self.seconds(n_rows + n_more) - self.seconds(n_rows)) / n_more

    def _relative(self, n_rows: int) -> float:
        """The relative cost of a step: measured, or interpolated from the nearest measured row counts."""
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
    """The assumed cost of a step before measurements, relative to a step of one row."""
    return 1 + ROW_COST * (n_rows - 1) + (LATER_ROW_COST - ROW_COST) * max(0, n_rows - MEMORY_ROWS)


def bounded(value: float, known: float, factor: float) -> float:
    """The value clipped to the range from ``known / factor`` to ``known * factor``."""
    return min(max(value, known / factor), known * factor)


class Budget:
    """The time that drafts may lose: as much as earlier drafts gained, and `SHARE` of the time of all steps.

    So no drafter slows an engine down by much more than that share. All times are in seconds.

    Attributes:
        left: seconds that the next drafts may lose.
        saved: `SHARE` of the time of the steps since the last draft, which a probe may spend.
    """

    def __init__(self) -> None:
        self.left: float = 0.0
        self.saved: float = 0.0
        self._is_new = True

    def note(self, step: float, gained: float | None) -> None:
        """Record a step of ``step`` seconds without drafts, and what drafts gained (None without drafts)."""
        if self._is_new:
            self._is_new, self.left = False, CREDIT * step
        self.saved = 0.0 if gained is not None else self.saved + SHARE * step
        self.left += SHARE * step + (gained or 0.0)
        self.left = max(-MOST_SAVED * step, min(self.left, MOST_SAVED * step))

    def steps_to(self, row: float, probe: float, step: float, planning: float = 0.0) -> int:
        """The number of steps until a draft may be tried, if the last plan found no draft that pays.

        ``row`` : seconds of one drafted token; with less left, a plan cannot find any draft.
        ``probe`` : seconds of `PROBE` drafted tokens. ``planning`` : seconds of the next plan.
        """
        missing = row - self.left if self.left < row else probe - min(self.left, self.saved)
        return ceil((missing + planning if missing > 0 else missing) / (SHARE * step))


@dataclass
class Acceptance:
    """Acceptance counts of the drafts of a sequence or a drafter; newer drafts weigh more.

    Attributes:
        accepted, tried: drafted tokens that were accepted, and drafted tokens that the target reached.
        by_probability: the same pair for each bin of the draft model's probabilities, see `EDGES`.
        is_graded: whether any drafted token had a probability.
        memory: factor that ``accepted`` and ``tried`` decay by with each draft.
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
        """The share of the drafted tokens reached by the target that were accepted."""
        return min(0.98, self.accepted / self.tried)

    def chance(self, probability: float) -> float:
        """The acceptance rate of tokens with a probability like this."""
        accepted, tried = self.by_probability[bisect(EDGES, probability)]
        return accepted / tried

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was drafted yet."""
        return self.tried == FRESH[1]

    def begin_like(self, other: Acceptance) -> None:
        """Start from the counts of the drafter's other texts."""
        self.accepted, self.tried, self.is_graded = other.rate * FRESH[1], FRESH[1], other.is_graded
        self.by_probability = [*other.by_probability]

    def note(self, drafted: int, accepted: int, probabilities: Sequence[float] = ()) -> None:
        """Record a draft whose first ``accepted`` tokens were accepted.

        ``probabilities`` : the draft model's probabilities of its tokens.
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
    """Ends a draft when a further token would not pay.

    Args:
        acceptance: the counts of the sequence.
        least: the draft ends when the probability that all its tokens are accepted falls below this.
        clock: the time in seconds.

    Attributes:
        probabilities: the draft model's probabilities of its tokens.
        survival: the probability that all tokens so far are accepted.
    """

    def __init__(
        self, acceptance: Acceptance, least: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.probabilities: list[float] = []
        self.survival: float = 1.0
        self._acceptance, self._least, self._clock = acceptance, least, clock
        self._first = self._last = 0.0

    def goes_on(self, probability: float) -> bool:
        """Record a drafted token; returns whether to draft another."""
        self._last = self._clock()
        if not self.probabilities:
            self._first = self._last
        self.probabilities.append(probability)
        self.survival *= self._acceptance.chance(probability)
        return self.survival >= self._least

    @property
    def pass_seconds(self) -> float | None:
        """Seconds of each token after the first; None without such a token."""
        n = len(self.probabilities) - 1
        return (self._last - self._first) / n if n > 0 else None


@dataclass(frozen=True)
class Plan:
    """The number of tokens that each sequence drafts (0: none pays), and the expected tokens a second."""

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
    """Plan the drafts of a step which has ``n_rows`` rows without drafts.

    Args:
        most: the maximum draft length of each sequence.
        pass_seconds: for each sequence, the seconds of its drafter's pass.
        start: seconds of any draft beyond its passes.
        budget: seconds that the step with drafts may take longer than the step without.
    """
    worth = sorted(
        (-(acceptance.rate**depth), depth, i)
        for i, acceptance in enumerate(sequences)
        for depth in range(1, most[i] + 1)
    )
    n_best, drafting = 0, start
    lengths, plain = [0] * len(sequences), costs.seconds(n_rows)
    if not plain:  # no step was measured yet
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
            break  # further tokens are worth less at the same cost
    for _, _, i in worth[:n_best]:
        lengths[i] += 1
    return Plan(lengths, best_rate)
