"""The result of checking a receipt."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Verification:
    """The result of checking a receipt; truthy if verified.

    Attributes
    n_tokens : number of tokens of the text, from the receipt.
    cause : "" if verified. Otherwise what differs: "model", "adapters", "media", "logits", "token", or "end"
        if the text ends earlier or later than it should.
    at : index of the first token that differs, from 0; None if none does.
    message : the result in words.
    text : the text of the verified tokens.
    n_checked : number of sampled tokens that were chosen again; None: all.
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
        """The probability that the check misses a text with ``n_changed`` tokens that differ from the
        sampler's choices."""
        return missed(self.n_tokens, self.n_tokens if self.n_checked is None else self.n_checked, n_changed)

    def __bool__(self) -> bool:
        return self.verified


def missed(n: int, n_checked: int, n_changed: int = 1) -> float:
    """The probability that a random sample of ``n_checked`` of ``n`` tokens contains none of ``n_changed``
    changed tokens; each set of positions is equally likely."""
    if n_changed < 1:
        return 1.0
    return math.comb(n - n_changed, n_checked) / math.comb(n, n_checked) if n_changed <= n else 0.0


class Difference(Exception):
    """Ends a check; ``cause``, ``at`` and ``message`` as in `Verification`."""

    def __init__(self, cause: str, at: int, message: str) -> None:
        super().__init__(message)
        self.cause: str = cause
        self.at: int = at
        self.message: str = message
