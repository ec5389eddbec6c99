"""How many tokens each sequence of a batch drafts: as many as make the most tokens a second.

Of a draft whose tokens are each accepted with probability a, the token at depth d is worth a^d (Leviathan et
al., 2023). What a row costs is measured: the rows of a step share its weights, so they are cheap until a step
waits for arithmetic and no longer for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SMOOTHING = 0.1  # weight of the newest step in what is measured
ROW_COST = 0.07  # of a step of one row: what a further one is taken to cost before that is measured
MEMORY = 0.9  # of what is known of a sequence's drafts, after each further draft
FIRST_PROBE, LAST_PROBE = 8, 64  # tokens without a draft after which one is tried again


class RowCosts:
    """What decode steps of some rows cost, relative to a step of one row, and how long that one takes now."""

    def __init__(self) -> None:
        self._shape: dict[int, float] = {}
        self._first = 0  # rows of the first step, to which all others are compared
        self._unit = 0.0

    def observe(self, n_rows: int, seconds: float) -> None:
        """Notes a step. The ratio is kept apart from the speed, which changes for all steps together."""
        relative = self._relative(n_rows)
        if not self._first:
            self._first, self._unit = n_rows, seconds / relative
        if n_rows == self._first:
            self._shape[n_rows] = relative
        else:
            self._shape[n_rows] = relative + SMOOTHING * (seconds / self._unit - relative)
        self._unit += SMOOTHING * (seconds / self._shape[n_rows] - self._unit)

    def seconds(self, n_rows: int) -> float:
        """What a step of so many rows takes; 0 before any was seen."""
        return self._unit * self._relative(n_rows)

    def _relative(self, n_rows: int) -> float:
        """As measured, or by the nearest that were."""
        known = self._shape.get(n_rows)
        if known is not None:
            return known
        prior = 1 + ROW_COST * (n_rows - 1)
        below = max((n for n in self._shape if n < n_rows), default=0)
        above = min((n for n in self._shape if n > n_rows), default=0)
        if below and above:
            share = (n_rows - below) / (above - below)
            return self._shape[below] + share * (self._shape[above] - self._shape[below])
        near = below or above
        return prior if not near else max(0.1, self._shape[near] + ROW_COST * (n_rows - near))


@dataclass
class Acceptance:
    """What became of the drafts of a sequence; the newest count most."""

    accepted: float = 1.2
    tried: float = 2.0
    idle: int = 0
    patience: int = FIRST_PROBE

    @property
    def rate(self) -> float:
        """The share of drafted tokens that are accepted, of those that the target came to."""
        return min(0.98, self.accepted / self.tried)

    def note(self, drafted: int, accepted: int) -> None:
        """Notes a draft of which the first ``accepted`` tokens were right."""
        if drafted == 0:
            self.idle += 1
            return
        self.accepted = MEMORY * self.accepted + accepted
        self.tried = MEMORY * self.tried + min(drafted, accepted + 1)
        self.idle = 0
        self.patience = FIRST_PROBE if accepted else min(LAST_PROBE, 2 * self.patience)

    @property
    def wants_probe(self) -> bool:
        """Whether it is time to try one token again, though it does not seem to pay."""
        return self.idle >= self.patience


def draft_lengths(
    n_rows: int,
    sequences: Sequence[Acceptance],
    most: Sequence[int],
    pass_seconds: Sequence[float],
    costs: RowCosts,
) -> list[int]:
    """How many tokens each sequence drafts in a step of ``n_rows`` rows without drafts.

    Parameters
    ----------
    most : of each sequence.
    pass_seconds : of each, what its drafter takes for one more token of all its sequences.
    """
    worth = sorted(
        (-(acceptance.rate**depth), depth, i)
        for i, acceptance in enumerate(sequences)
        for depth in range(1, most[i] + 1)
    )
    chosen = best = [0] * len(sequences)
    tokens, best_rate = float(n_rows), n_rows / max(costs.seconds(n_rows), 1e-9)
    for n, (value, depth, i) in enumerate(worth, 1):
        chosen = [*chosen[:i], depth, *chosen[i + 1 :]]
        tokens -= value
        drafting = max(d * seconds for d, seconds in zip(chosen, pass_seconds))
        rate = tokens / max(costs.seconds(n_rows + n) + drafting, 1e-9)
        if rate > best_rate:
            best, best_rate = chosen, rate
    return [
        n or int(acceptance.wants_probe and limit > 0) for n, acceptance, limit in zip(best, sequences, most)
    ]
