"""Server-sent events: the stream of text for all interfaces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from json.encoder import encode_basestring
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError, api_error, stopping
from oxillama.apps.server.json_text import LONE
from oxillama.apps.server.pieces import ENCODER
from oxillama.apps.server.running import chosen, connected, in_thread, while_connected
from oxillama.base.events import Event
from oxillama.engine.generation import Generation
from oxillama.engine.wakers import waker_of_loop

log: logging.Logger = logging.getLogger(__name__)

PING = b": ping\n\n"
DONE = "data: [DONE]\n\n"


TURN = 4
"""Events that a stream writes before others have their turn. asyncio warns at the fifth that is written to a
connection that has gone."""


def as_json(value: Any) -> str:
    """A value as JSON in one line."""
    return ENCODER.encode(value)


def data_line(value: Any) -> str:
    """An event without a name."""
    return f"data: {ENCODER.encode(value)}\n\n"


class TextLine:
    """`data_line` of a value with a text in one place or more; the rest of the value is encoded once."""

    def __init__(self, value_of: Callable[[str], Any]) -> None:
        mark = uuid4().hex
        self._parts = data_line(value_of(mark)).split(f'"{mark}"')

    def __call__(self, text: str) -> str:
        return encode_basestring(text).join(self._parts)


def named_event(name: str, value: Any) -> str:
    """An event with a name."""
    return f"event: {name}\ndata: {as_json(value)}\n\n"


def error_lines(error: ApiError) -> str:
    """An error in the middle of a stream, as OpenAI sends it, and the end of the stream."""
    return data_line(error.body()) + DONE


class EventForwarder:
    """Sends the events of a generation, up to its end.

    When a step of the engine wakes the event loop, each relay formats and writes what has come for its
    client. The stream's task runs only for what could not be written at once, and at the end.

    Args:
        line_of: returns the line of an event; "" for an event that is not sent.
    """

    def __init__(self, generation: Generation, line_of: Callable[[Event], str]) -> None:
        self._generation, self._line_of = generation, line_of
        self._error: BaseException | None = None

    async def run(self, write: Callable[[str], bool], send: Callable[[str], Awaitable[None]]) -> None:
        """Returns when the generation has ended. Raises the error that ended it, if any.

        Args:
            write: sends lines at once; False if they could not be sent.
            send: sends lines as soon as the client takes them.
        """
        waker = self._generation._request.listener = waker_of_loop()
        self._write = write
        waker.watchers.add(self)
        try:
            while self._error is None and self._generation.finish_reason is None:
                self._rest: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self()
                await send(await self._rest)
            if self._error is not None:
                raise self._error
        finally:
            waker.watchers.discard(self)
            if self._generation.finish_reason is None:
                self._generation.cancel()

    def __call__(self) -> None:
        """Sends pending events, or leaves them to the task: at the end, and while the client is behind."""
        if self._rest.done():
            return
        lines = ""
        try:
            for part in self._generation.events().ready():
                lines += self._line_of(part)
            goes_on = self._generation.finish_reason is None
            if goes_on and (not lines or self._write(lines)):
                return
        except BaseException as error:
            self._error = error
        self._rest.set_result(lines)


@dataclass(eq=False)
class EventStream:
    """An answer that comes in pieces, of server-sent events or other lines, as an ASGI application.

    The status is sent with the first event, or after ``ping_seconds``: what goes wrong before is an answer of
    its own status, later it is an event. Comments are sent while nothing else is.

    Attributes:
        lines: texts of events, and relays of what comes of a generation. It is closed when the client goes
            away.
        ping_seconds: seconds without an event after which a comment is sent; None: no comments.
        failed: the last text of a stream that ends with an error.
        content_type: of the answer.
        ping: what is sent while nothing else is.
    """

    lines: AsyncIterator[str | EventForwarder]
    ping_seconds: float | None
    failed: Callable[[ApiError], str] = error_lines
    content_type: str = "text/event-stream; charset=utf-8"
    ping: bytes = PING
    _is_quiet: bool = field(default=True, init=False)
    _has_begun: bool = field(default=False, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._write_now: Callable[[bytes], bool] | None = scope.get("state", {}).get("write_now")
        try:
            await while_connected(receive, self._send_all(send))
        except asyncio.CancelledError:
            if not (self._has_begun and context().is_stopped):
                raise
            text = self.failed(stopping())
            await send({"type": "http.response.body", "body": text.encode(errors=LONE), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        first: asyncio.Future[str | EventForwarder | None] = asyncio.ensure_future(anext(self.lines, None))
        pinging = None
        try:
            await asyncio.wait({first}, timeout=self.ping_seconds)
            line = first.result() if first.done() else None  # an error before the first event is raised here
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (b"content-type", self.content_type.encode()),
                        (b"cache-control", b"no-cache"),
                        (b"x-accel-buffering", b"no"),
                    ],
                }
            )
            self._has_begun = True
            if self.ping_seconds is not None:
                pinging = asyncio.ensure_future(self._ping(send, self.ping_seconds, at_once=line is None))
            try:
                if line is None:
                    line = await first
                n_sent = 0
                while line is not None:
                    if isinstance(line, EventForwarder):
                        await line.run(self._write, partial(self._put, send))
                    else:
                        await self._put(send, line)
                    n_sent = TURN if isinstance(line, EventForwarder) else n_sent + 1  # a forwarder yields
                    if n_sent % TURN == 0:
                        await asyncio.sleep(0)  # others have their turn, and a client's leaving is noticed
                    line = await anext(self.lines, None)
            except Exception as error:
                found = api_error(error)
                if found.status == 500:
                    log.exception("a stream failed")
                text = self.failed(found)
                await send(
                    {"type": "http.response.body", "body": text.encode(errors=LONE), "more_body": True}
                )
            if pinging is not None:
                pinging.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for task in (first, pinging):
                if task is not None:
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task
            await self.lines.aclose()  # type: ignore[attr-defined]

    def _write(self, line: str) -> bool:
        """Sends a line at once, without the middleware; False if it was not sent."""
        self._is_quiet = False
        return self._write_now is not None and self._write_now(line.encode(errors=LONE))

    async def _put(self, send: Send, line: str) -> None:
        """Sends a line, after the client has taken the lines before it."""
        if line and not self._write(line):
            await send({"type": "http.response.body", "body": line.encode(errors=LONE), "more_body": True})

    async def _ping(self, send: Send, seconds: float, at_once: bool) -> None:
        self._is_quiet = at_once
        while True:
            if self._is_quiet:
                await send({"type": "http.response.body", "body": self.ping, "more_body": True})
            self._is_quiet = True
            await asyncio.sleep(seconds)


async def answered(request: Request, body: Any, make: Callable[..., Any]) -> Response | EventStream:
    """The answer to a body, which ``make`` makes in a thread: its ``whole``, or its ``lines`` as a stream.

    Raises ApiError, ClientGone, and errors of the library.
    """
    here, engine = await chosen(request, body.model)
    answer = await in_thread(make, engine, here.hosted, body)
    if body.stream:
        return EventStream(answer.lines(), here.config.ping_seconds)
    whole: Response = await connected(request, answer.whole())
    return whole
