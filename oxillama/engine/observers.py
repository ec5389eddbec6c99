"""Tells observers what happens; an error of one of them goes no further."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from oxillama.engine.protocols import Observer
from oxillama.faults import note

log = logging.getLogger(__name__)

EVENTS = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Observers:
    """Calls the methods of some observers. What one of them raises is logged.

    Attributes
    ----------
    hearers : by event, those whose method is not `Observer`'s own.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        every = tuple(observers)
        self.hearers = {
            event: [o for o in every if getattr(type(o), event) is not getattr(Observer, event)]
            for event in EVENTS
        }

    def notify(self, event: str, *facts: object) -> None:
        """Calls every observer's method for an event."""
        for observer in self.hearers[event]:
            try:
                getattr(observer, event)(*facts)
            except Exception:
                note(log, logging.ERROR, "an observer failed", exc_info=True)
