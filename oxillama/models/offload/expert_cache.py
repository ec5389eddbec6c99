"""The cache of experts in memory: those that are chosen most stay.

The generalized clock (Smith, "Sequentiality and prefetching in database systems", 1978): experts lie in a
circle, each with a count of its uses. An eviction walks round the circle: it decrements counts above zero,
and evicts the first expert whose count is zero. So frequently chosen experts stay; old uses are forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from oxillama.models.offload.parts import Part

MOST_USES = 15
"""Maximum count: an expert that is no longer used is evicted after so many rounds."""


class ExpertCache:
    """The circle of the experts in memory.

    Attributes:
        nbytes: of their memory.
        limit: maximum bytes.
    """

    def __init__(self) -> None:
        self.nbytes: int = 0
        self.limit = 0
        self._circle: deque[Part] = deque()

    def __len__(self) -> int:
        return len(self._circle)

    def add(self, part: Part) -> None:
        """Adds an expert that was given memory."""
        self._circle.append(part)
        self.nbytes += part.nbytes

    def remove(self, part: Part) -> None:
        """Removes an expert that lost its memory."""
        self._circle.remove(part)
        self.nbytes -= part.nbytes

    def count(self, part: Part) -> None:
        """Counts a use of an expert."""
        part.uses = min(part.uses + 1, MOST_USES)

    def victim(self, held: Container[Part]) -> Part | None:
        """Removes and returns the expert to evict; None if all are ``held``."""
        n_held = 0
        while n_held < len(self._circle):
            part = self._circle[0]
            if part in held:
                n_held += 1
            elif part.uses:
                part.uses -= 1
                n_held = 0
            else:
                self._circle.popleft()
                self.nbytes -= part.nbytes
                return part
            self._circle.rotate(-1)
        return None
