"""What became of checking a receipt."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Verification:
    """What became of checking a receipt; true where it was verified.

    Attributes
    ----------
    n_tokens : of the text, as the receipt says.
    cause : "" if it was verified. Otherwise what differs: "model", "adapters", "media", "logits", "token", or
        "end", where the text ends earlier or later than it should.
    at : number of the first token of the text that differs, counted from 0; None if none does.
    message : the finding in words.
    text : of the tokens that were verified.
    n_checked : tokens of a sample that were chosen again; None for all of them.
    """

    n_tokens: int
    cause: str
    at: int | None
    message: str
    text: str
    n_checked: int | None = None

    @property
    def verified(self) -> bool:
        """Whether nothing differs."""
        return not self.cause

    def missed(self, n_changed: int = 1) -> float:
        """The probability that the check misses a text of which ``n_changed`` tokens are not those that the
        sampler chooses."""
        return missed(self.n_tokens, self.n_tokens if self.n_checked is None else self.n_checked, n_changed)

    def __bool__(self) -> bool:
        return self.verified


def missed(n: int, n_checked: int, n_changed: int = 1) -> float:
    """The probability that none of ``n_changed`` of ``n`` tokens is among ``n_checked`` that are drawn at
    random, each set of positions as likely as any other."""
    if n_changed < 1:
        return 1.0
    return math.comb(n - n_changed, n_checked) / math.comb(n, n_checked) if n_changed <= n else 0.0


class Difference(Exception):
    """Ends a check: ``cause``, ``at`` and ``message`` as in `Verification`."""

    def __init__(self, cause: str, at: int, message: str) -> None:
        super().__init__(message)
        self.cause: str = cause
        self.at: int = at
        self.message: str = message
