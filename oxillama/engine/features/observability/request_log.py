"""The log of requests: one line at each turn of a request's life, each with the name of the request.

No line has any text or token of a user's; an error of level WARNING is named by its class alone, and its
message, which may quote a prompt or a grammar, is a line of level DEBUG.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from oxillama.base.faults import note
from oxillama.engine.protocols import Observer

if TYPE_CHECKING:
    from oxillama.engine.request import Request

log: logging.Logger = logging.getLogger(__name__)


class RequestLog(Observer):
    """Writes to the logger of this module; each record has the attribute ``request_id``."""

    @classmethod
    def of(cls, model: object) -> RequestLog:
        """The log of a model's requests."""
        return cls()

    def queued(self, request: Request) -> None:
        if not log.isEnabledFor(logging.DEBUG):
            return
        n, priority = len(request.prompt), request.priority
        note(
            log, logging.DEBUG, "request %d: %d tokens, priority %d", request.id, n, priority,
            request=request.name,
        )  # fmt: skip

    def refused(self, n: int) -> None:
        note(log, logging.WARNING, "the queue is full: requests refused: %d", n)

    def admitted(self, request: Request) -> None:
        if not log.isEnabledFor(logging.DEBUG):
            return
        waited = request.admitted_at - request.submitted_at
        note(
            log, logging.DEBUG, "request %d: runs after %.3f s, %d tokens of it are known",
            request.id, waited, request.sequence.cached_len, request=request.name,
        )  # fmt: skip

    def preempted(self, request: Request) -> None:
        note(
            log, logging.DEBUG, "request %d: gives up its pages and waits for others", request.id,
            request=request.name,
        )  # fmt: skip

    def ended(self, request: Request, now: float) -> None:
        if request.error is not None and request.finish_reason == "error":
            kind, error = type(request.error).__name__, request.error
            note(log, logging.WARNING, "request %d: %s", request.id, kind, request=request.name)
            note(log, logging.DEBUG, "request %d: %s", request.id, error, request=request.name)
        if not log.isEnabledFor(logging.INFO):
            return
        first = request.first_token_at
        until_first = "no token" if math.isnan(first) else f"first after {first - request.submitted_at:.3f} s"
        note(
            log, logging.INFO, "request %d: ended with %s, %d + %d tokens (%d known), %s, %.3f s in all",
            request.id, request.finish_reason, len(request.prompt),
            len(request.sequence.accepted) - len(request.prompt), request.n_cached, until_first,
            now - request.submitted_at, request=request.name,
        )  # fmt: skip
