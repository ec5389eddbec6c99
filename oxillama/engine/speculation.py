"""What a request drafts with, and what became of its drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.engine.drafters import Drafter
from oxillama.speculative.length import Acceptance


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


@dataclass
class Speculation:
    """The drafts of one request.

    Attributes
    ----------
    drafter : what proposes its tokens.
    most : tokens of a draft.
    """

    drafter: Drafter
    most: int
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    acceptance: Acceptance = field(default_factory=Acceptance)

    def note(self, drafted: int, accepted: int) -> None:
        """Notes a pass with ``drafted`` drafted tokens, of which the first ``accepted`` were right."""
        self.acceptance.note(drafted, accepted)
        self.stats.drafted += drafted
        self.stats.accepted += accepted
        self.stats.passes += bool(drafted)
