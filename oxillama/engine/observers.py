"""What an engine tells of its requests and steps, and who is told: metrics, the log, a trace.

The loop tells each event once, in its own thread; what an observer does with it changes no request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from oxillama.faults import note

if TYPE_CHECKING:
    from oxillama.engine.request import Request
    from oxillama.engine.scheduler import ScheduledBatch

log = logging.getLogger(__name__)


class Observer:
    """Is told what happens, by the engine thread unless a method says otherwise. Each method may be left out.

    Times are seconds of the scheduler's clock.
    """

    def queue(self, request: Request) -> None:
        """A request has come in; it has its number now."""

    def refuse(self, n: int) -> None:
        """The queue was full for so many requests. Any thread tells it."""

    def admit(self, request: Request) -> None:
        """A request runs from now on, or again after a preemption."""

    def preempt(self, request: Request) -> None:
        """A request has given up its pages and waits for others."""

    def step(self, batch: ScheduledBatch, seconds: float) -> None:
        """A step has been run and sampled, in so many seconds."""

    def token(self, request: Request, now: float) -> None:
        """A request has got a token."""

    def draft(self, drafted: int, accepted: int) -> None:
        """So many drafted tokens of a request have been verified; the first ``accepted`` were right."""

    def end(self, request: Request, now: float) -> None:
        """A request has ended; its reader is told afterwards."""


EVENTS = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Observers(Observer):
    """Tells each event to those of some observers that have a method for it.

    What one of them raises is logged and goes no further.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        every = tuple(observers)
        self._hearers = {
            event: [o for o in every if getattr(type(o), event) is not getattr(Observer, event)]
            for event in EVENTS
        }

    def queue(self, request: Request) -> None:
        self._tell("queue", request)

    def refuse(self, n: int) -> None:
        self._tell("refuse", n)

    def admit(self, request: Request) -> None:
        self._tell("admit", request)

    def preempt(self, request: Request) -> None:
        self._tell("preempt", request)

    def step(self, batch: ScheduledBatch, seconds: float) -> None:
        for observer in self._hearers["step"]:  # not by `_tell`, which takes as long as what it tells
            try:
                observer.step(batch, seconds)
            except Exception:
                self._failed()

    def token(self, request: Request, now: float) -> None:
        for observer in self._hearers["token"]:
            try:
                observer.token(request, now)
            except Exception:
                self._failed()

    def draft(self, drafted: int, accepted: int) -> None:
        self._tell("draft", drafted, accepted)

    def end(self, request: Request, now: float) -> None:
        self._tell("end", request, now)

    def _tell(self, event: str, *facts: object) -> None:
        for observer in self._hearers[event]:
            try:
                getattr(observer, event)(*facts)
            except Exception:
                self._failed()

    def _failed(self) -> None:
        note(log, logging.ERROR, "an observer failed", exc_info=True)
