"""What became of checking a receipt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verification:
    """What became of checking a receipt; true where it was verified.

    Attributes
    ----------
    n_tokens : of the text, as the receipt says.
    cause : "" if it was verified. Otherwise what differs: "model", "adapters", "logits", "token", or "end",
        where the text ends earlier or later than it should.
    at : number of the first token of the text that differs, counted from 0; None if none does.
    message : the finding in words.
    text : of the tokens that were verified.
    """

    n_tokens: int
    cause: str
    at: int | None
    message: str
    text: str

    @property
    def verified(self) -> bool:
        """Whether nothing differs."""
        return not self.cause

    def __bool__(self) -> bool:
        return self.verified


class Difference(Exception):
    """Ends a check: ``cause``, ``at`` and ``message`` as in `Verification`."""

    def __init__(self, cause: str, at: int, message: str) -> None:
        super().__init__(message)
        self.cause: str = cause
        self.at: int = at
        self.message: str = message
