"""HTTP/1.1 as h11 reads it, with bounds of heads and chunks; targets that are URLs; the log of both."""

from __future__ import annotations

import logging
import math
import re
import time
from typing import Any
from urllib.parse import unquote

import h11
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl

log: logging.Logger = logging.getLogger(__name__)

MOST_HEAD = 16_384
"""Bytes of a head, or of the headers behind a body."""

MOST_HEADERS = 256
"""Headers of a request."""

PIECE = 4096
"""Bytes that h11 gets at a time, except for a body of known length. Each event costs some 20 microseconds."""

SMALL, MOST_SMALL = 64, 16_384
"""Bytes that the chunks of a body must have on average, once there are more of them than this."""


class Messages(h11.Connection):
    """h11's reader of requests, which refuses very many headers, and bodies of very many small chunks.

    Attributes:
        fault: what was refused; "" if h11 itself has refused something.
        n_known: bytes of a body of known length that are still to come.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MOST_HEAD)
        self.fault: str = ""
        self.n_known: int = 0
        self._n_chunks = self._n_bytes = 0

    def next_event(self) -> Any:
        """The next event. Raises RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._n_chunks = self._n_bytes = 0
            headers = dict(event.headers)
            is_chunked = b"transfer-encoding" in headers
            self.n_known = 0 if is_chunked else int(headers.get(b"content-length", 0))  # h11 has checked it
            if len(event.headers) > MOST_HEADERS:
                self._refuse(f"headers: expected at most {MOST_HEADERS}, got {len(event.headers)}")
        elif isinstance(event, h11.Data):
            self.n_known = max(0, self.n_known - len(event.data))
            self._n_chunks += event.chunk_start
            self._n_bytes += len(event.data)
            if self._n_chunks > MOST_SMALL and self._n_bytes < SMALL * self._n_chunks:
                self._refuse(f"body: expected chunks of at least {SMALL} bytes on average, got smaller ones")
        return event

    @property
    def is_paused(self) -> bool:
        """Whether what follows a request waits for the end of its answer."""
        return self.their_state is h11.DONE and self.our_state is not h11.DONE

    def _refuse(self, fault: str) -> None:
        self.fault = fault
        raise h11.RemoteProtocolError(fault)


class Flow(FlowControl):
    """uvicorn's, which reads on only where nothing is left that was read.

    Args:
        unread: what the protocol has not given to h11 yet.
    """

    def __init__(self, transport: Any, unread: bytearray) -> None:
        super().__init__(transport)
        self._unread = unread

    def resume_reading(self) -> None:
        self.read_paused = False
        if not self._unread:
            self._transport.resume_reading()


class Repeated:
    """A warning that repeats: at most one line a second, with the number of repetitions since the last line.

    Args:
        text: of the line, with places for the number and the last reason.
    """

    def __init__(self, text: str) -> None:
        self._text, self._logged_at, self._n = text, -math.inf, 0

    def add(self, n: int, reason: object) -> None:
        self._n += n
        if time.monotonic() - self._logged_at >= 1:
            log.warning(self._text, self._n, reason)
            self._logged_at, self._n = time.monotonic(), 0


class ProtocolLogger(logging.Logger):
    """uvicorn's, with one line a second at most about requests that are no HTTP."""

    def __init__(self) -> None:
        super().__init__("uvicorn.error", logging.WARNING)
        self.parent = logging.getLogger(self.name)
        self._repeated = Repeated("%d requests were not understood: %s")

    def warning(self, msg: object, *args: object, **how: Any) -> None:
        self._repeated.add(1, msg)


def in_origin_form(scope: Scope) -> Scope:
    """The scope of a request whose target is a URL: its host replaces the header's (RFC 9112, 3.2.2)."""
    found = re.fullmatch(rb"https?://([^/]*)(/.*)?", scope["raw_path"], re.IGNORECASE)
    if found is None:
        return scope
    host, path = found[1], found[2] or b"/"
    headers = [(b"host", host), *(each for each in scope["headers"] if each[0] != b"host")]
    return {**scope, "path": unquote(path.decode("ascii")), "raw_path": path, "headers": headers}
