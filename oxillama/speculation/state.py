"""The drafter of a request, and the counts of its drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from oxillama.engine.request import Request
from oxillama.engine.sampling.sampler import Distribution, Sampler, Xorshift64
from oxillama.speculation.drafters import Drafter
from oxillama.speculation.length import Acceptance, Outlook
from oxillama.speculation.sampling import DraftSampler

SPECULATION = "speculation"
"""The key in `Request.parts`."""


@dataclass
class SpeculationStats:
    """Counts of the drafts of a request.

    Attributes:
        drafted: tokens that were proposed and run.
        accepted: drafted tokens that the model also chose.
        passes: passes that had drafts.
    """

    drafted: int = 0
    accepted: int = 0
    passes: int = 0

    @property
    def rejected(self) -> int:
        """Drafted tokens that are not in the text."""
        return self.drafted - self.accepted

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were accepted; 0.0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class SpeculationState:
    """The state of a request's drafts, for a snapshot.

    Attributes:
        random: state of the rejection rule's random numbers; None for the seeded rule.
        drafted, accepted, passes: as in `SpeculationStats`.
    """

    random: Annotated[int, (1, 2**64 - 1)] | None
    drafted: Annotated[int, (0, 2**62)]
    accepted: Annotated[int, (0, 2**62)]
    passes: Annotated[int, (0, 2**62)]


@dataclass
class Speculation:
    """The drafts of one request.

    Attributes:
        drafter: proposes the tokens.
        most: max tokens of a draft.
        random: random numbers for drafts and residuals of the rejection rule; None for the seeded rule.
        distributions: the distributions that the tokens of the last draft were drawn from; rejection rule
            only.
        stats, acceptance: counts of all drafts so far.
        least: a draft ends when the probability of its acceptance falls below this.
        outlook: the `Outlook` of the last draft.
    """

    drafter: Drafter
    most: int
    random: Xorshift64 | None = None
    distributions: list[Distribution] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    acceptance: Acceptance = field(default_factory=Acceptance)
    least: float = 0.0
    outlook: Outlook | None = None

    def draft_sampler(self, sampler: Sampler) -> DraftSampler:
        """A sampler for the next draft."""
        self.outlook = Outlook(self.acceptance, self.least)
        return DraftSampler(sampler, self.random, self.outlook.goes_on)

    def note(self, drafted: int, accepted: int) -> None:
        """Record the drafted tokens that a pass has run, and how many were accepted."""
        self.acceptance.note(drafted, accepted, self.outlook.probabilities if self.outlook else ())
        self.stats.drafted += drafted
        self.stats.accepted += accepted
        self.stats.passes += bool(drafted)

    def state(self) -> SpeculationState:
        """The state to pass to `restore`, possibly in another process."""
        return SpeculationState(None if self.random is None else self.random.state, **vars(self.stats))

    def restore(self, state: SpeculationState | None) -> None:
        """Continue with the counts of other drafts, and with their random numbers if both have them.

        ``state`` None: the other request had no drafts.
        """
        if state is None:
            return
        if self.random is not None and state.random is not None:
            self.random.state = state.random
        self.stats = SpeculationStats(state.drafted, state.accepted, state.passes)


def speculation_of(request: Request) -> Speculation | None:
    """The drafts of a request; None if it does not speculate."""
    found: Speculation | None = request.parts.get(SPECULATION)
    return found
