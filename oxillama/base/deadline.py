"""A deadline for a piece of work, which the work checks itself.

`check_deadline` is called at each step of work that can take long: for each rule and each state of a grammar.
Without a deadline the call does nothing. A step that makes no check is not interrupted. Renderings of chat
templates have a time limit of their own, which they check at each output (`oxillama.text.chat.sandbox`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from oxillama.errors import OxiLlamaError

_DEADLINE: ContextVar[tuple[float, float] | None] = ContextVar("oxillama deadline", default=None)
"""The moment by `time.monotonic` at which the work of this context must be done, and the seconds allowed."""


class DeadlineExceeded(OxiLlamaError, TimeoutError):
    """Work took longer than its deadline allows."""


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Gives the block a deadline; an earlier one of an outer block still counts. None changes nothing."""
    outer, found = _DEADLINE.get(), None
    if seconds is not None:
        found = time.monotonic() + seconds, seconds
    token = _DEADLINE.set(min((each for each in (outer, found) if each is not None), default=None))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def check_deadline() -> None:
    """Raises DeadlineExceeded if the deadline of this context has passed."""
    found = _DEADLINE.get()
    if found is not None and time.monotonic() > found[0]:
        raise DeadlineExceeded(f"it took longer than {found[1]:g} s")
