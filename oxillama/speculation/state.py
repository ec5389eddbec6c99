"""What a request drafts with, and what became of its drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from oxillama.sampling.logprobs import SampledToken
from oxillama.sampling.random import Xorshift64
from oxillama.sampling.sampler import Distribution, Sampler
from oxillama.speculation.drafters import Drafter
from oxillama.speculation.length import Acceptance, Outlook
from oxillama.speculation.sampling import DraftSampler, accept_or_replace


@dataclass
class SpeculationStats:
    """What became of the drafts of a request.

    Attributes
    ----------
    drafted : tokens that were proposed and run.
    accepted : those of them that the model chose, too.
    passes : that ran drafts.
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
    """The drafts of a request, for a snapshot.

    Attributes
    ----------
    random : the state of the rejection rule's random numbers; None for the seeded rule.
    drafted, accepted, passes : as in `SpeculationStats`.
    """

    random: Annotated[int, (1, 2**64 - 1)] | None
    drafted: Annotated[int, (0, 2**62)]
    accepted: Annotated[int, (0, 2**62)]
    passes: Annotated[int, (0, 2**62)]


@dataclass
class Speculation:
    """The drafts of one request.

    Attributes
    ----------
    drafter : what proposes its tokens.
    most : tokens of a draft.
    random : draws drafts and residuals by the rejection rule; None for the seeded rule.
    distributions : what the drafted tokens that are not verified yet were drawn from; of the rejection rule.
    n_drafted, n_accepted : drafted tokens of the last pass, and those that were right.
    least : probability that a draft is accepted below which it ends.
    outlook : of the last draft.
    """

    drafter: Drafter
    most: int
    random: Xorshift64 | None = None
    distributions: list[Distribution] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    acceptance: Acceptance = field(default_factory=Acceptance)
    n_drafted: int = 0
    n_accepted: int = 0
    least: float = 0.0
    outlook: Outlook | None = None

    def draft_sampler(self, sampler: Sampler) -> DraftSampler:
        """What samples the next draft."""
        self.outlook = Outlook(self.acceptance, self.least)
        return DraftSampler(sampler, self.random, self.outlook.goes_on)

    def verify(
        self, sampler: Sampler, row: np.ndarray, history: list[int], drafted: int, top: int | None
    ) -> int | SampledToken:
        """The next token by the rejection rule: the drafted one, or another in its place."""
        random, draft = self.random, self.distributions.pop(0)
        assert random is not None
        return sampler.sample_drafted(
            row, history, lambda target, u: accept_or_replace(target, draft, drafted, u, random), top
        )

    def pass_over(self) -> None:
        """The next drafted token is not verified: the grammar has chosen the token in its place."""
        if self.distributions:
            self.distributions.pop(0)

    def begin(self, n_drafted: int) -> None:
        """A pass has run so many drafted tokens, which are verified now."""
        self.n_drafted, self.n_accepted = n_drafted, 0

    def skip(self) -> None:
        """A pass has run none."""
        self.acceptance.note(0, 0)

    def end(self) -> tuple[int, int]:
        """Notes what became of them: how many there were, and how many were accepted."""
        drafted, accepted = self.n_drafted, self.n_accepted
        self.acceptance.note(drafted, accepted, self.outlook.probabilities if self.outlook else ())
        self.stats.drafted += drafted
        self.stats.accepted += accepted
        self.stats.passes += bool(drafted)
        return drafted, accepted

    def state(self) -> SpeculationState:
        """What `restore` takes, in another process too."""
        return SpeculationState(None if self.random is None else self.random.state, **vars(self.stats))

    def restore(self, state: SpeculationState) -> None:
        """Goes on with the counts of other drafts, and with their random numbers if both have any."""
        if self.random is not None and state.random is not None:
            self.random.state = state.random
        self.stats = SpeculationStats(state.drafted, state.accepted, state.passes)
