"""How many masks grammars were asked for, and the time that they took."""

from __future__ import annotations


class MaskTimer:
    """Adds up the masks of all states that it is given to.

    Attributes
    ----------
    masks : so far. seconds : that they took together.
    """

    def __init__(self) -> None:
        self.masks = 0
        self.seconds = 0.0

    def note(self, start: float, end: float) -> None:
        """A mask was asked for at ``start`` and there at ``end``, by `time.perf_counter`."""
        self.masks += 1
        self.seconds += end - start
