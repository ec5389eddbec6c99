"""Bounds of what a tool server sends: how fast, how many values, how long lists, how many open requests."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import accumulate
from typing import Any

from oxillama.apps.mcp.configuration import McpLimits
from oxillama.apps.mcp.errors import ToolServerError

MESSAGE_RATE, BYTE_RATE = 200, 32 << 20
"""Messages and bytes of a server that are read in a second; what exceeds them waits."""
MOST_ITEMS = 1024
"""The maximum number of items of a list of a result: parts of content, tools of a page."""
MOST_ASKED = 64
"""The maximum number of a server's own requests (``ping`` and others) that wait for their answers."""
PIECE = 1 << 16
"""Bytes of a message that are counted at a time, so that other threads run meanwhile."""

UNUSED = ("notifications/message", "notifications/progress")
"""Log lines and progress, which nobody reads: the session would check each of them by several classes."""

OTHER = bytes(set(range(256)) - set(b'"[]{},'))
"""Bytes that change neither the number of values nor the level."""
LEVELS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
"""The end of a server-sent event."""


class Pace:
    """Slows down the reading from a server that sends more than `MESSAGE_RATE` and `BYTE_RATE` allow.

    One second's worth may come at once.
    """

    def __init__(self) -> None:
        self._free_at = 0.0

    async def spend(self, n_messages: int, n_bytes: int) -> None:
        """Waits until so many messages and bytes may be read; other tasks run in any case."""
        now = time.monotonic()
        cost = n_messages / MESSAGE_RATE + n_bytes / BYTE_RATE
        self._free_at = max(self._free_at, now - 1) + cost
        await asyncio.sleep(max(0.0, self._free_at - now))


class Shape:
    """Counts values and levels of a JSON text before it is parsed. Parsing holds Python's lock throughout.

    Each value but the first follows a comma or an opening bracket, so these are counted, outside of strings.
    For a text that is not JSON the counts hold up to the place where a parser stops.
    """

    def __init__(self, limits: McpLimits) -> None:
        self._limits = limits
        self._line_ends = b""
        self.begin()

    def begin(self) -> None:
        self._n_bytes = self._n_values = self._level = 0
        self._in_string = False
        self._rest = b""  # a backslash whose character is still to come

    def add(self, text: bytes) -> None:
        """Counts the next part of the text. Raises ToolServerError that names the limit."""
        self._n_bytes += len(text)
        if self._n_bytes > self._limits.message_bytes:
            raise self._error(self._limits.message_bytes, "bytes", "longer")
        for start in range(0, len(text), PIECE):
            self._count(text[start : start + PIECE])

    def _count(self, piece: bytes) -> None:
        piece = (self._rest + piece).replace(rb"\\", b"")
        self._rest = b"\\" if piece.endswith(b"\\") else b""
        if self._rest:
            piece = piece[:-1]
        parts = piece.replace(rb"\"", b"").translate(None, OTHER).split(b'"')
        marks = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        opened = marks.count(b"[") + marks.count(b"{")
        self._n_values += opened + marks.count(b",")
        if self._n_values > self._limits.message_values:
            raise self._error(self._limits.message_values, "values", "larger")
        levels = list(accumulate((LEVELS.get(mark, 0) for mark in marks), initial=self._level))
        self._level = levels[-1]
        if max(levels) > self._limits.message_levels:
            raise self._error(self._limits.message_levels, "levels", "deeper")

    def add_events(self, data: bytes) -> int:
        """`add` for the next part of a stream of events, each of which is a text; returns how many ended."""
        data = self._line_ends + data
        whole = data.rstrip(b"\r\n")
        self._line_ends = data[len(whole) :][-4:]  # an end may come in two parts
        first, *others = BLANK_LINE.split(whole)
        self.add(first)
        for part in others:
            self.begin()
            self.add(part)
        return len(others)

    def _error(self, most: int, unit: str, got: str) -> ToolServerError:
        return ToolServerError(f"expected messages of at most {most} {unit}, got a {got} one")


class Incoming:
    """The messages of a server on their way into the session, each checked; has the interface of a stream.

    Args:
        stream: of ``SessionMessage`` and exceptions, from the transport.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._n_asked = 0
        self._answered = asyncio.Event()

    async def __aenter__(self) -> Incoming:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Incoming:
        return self

    async def receive(self) -> Any:
        found = await self._stream.receive()
        while getattr(getattr(found, "message", None), "method", "") in UNUSED:
            found = await self._stream.receive()
        message = getattr(found, "message", None)
        if hasattr(message, "result"):
            found.message = without_long_lists(message)
        elif hasattr(message, "id") and hasattr(message, "method"):
            while self._n_asked >= MOST_ASKED:
                self._answered.clear()
                await self._answered.wait()
            self._n_asked += 1
        elif getattr(message, "method", "") == "notifications/cancelled":
            self.answered()
        return found

    async def __anext__(self) -> Any:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def answered(self) -> None:
        """Notes that a request of the server was answered."""
        self._n_asked = max(0, self._n_asked - 1)
        self._answered.set()


class Outgoing:
    """The messages to a server, with the interface of a stream; answers are noted in `Incoming`."""

    def __init__(self, stream: Any, incoming: Incoming) -> None:
        self._stream, self._incoming = stream, incoming

    async def __aenter__(self) -> Outgoing:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def send(self, item: Any) -> None:
        try:
            await self._stream.send(item)
        finally:
            if not hasattr(item.message, "method"):
                self._incoming.answered()


def without_long_lists(response: Any) -> Any:
    """A response, or an error in its place if a list of its result has more than `MOST_ITEMS` items.

    The session checks each item by several classes, which takes long and holds Python's lock.
    """
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError

    for name, value in response.result.items():
        if isinstance(value, list) and len(value) > MOST_ITEMS:
            text = f"{name[:40]}: expected at most {MOST_ITEMS} items in a result, got {len(value)}"
            return JSONRPCError(
                jsonrpc="2.0", id=response.id, error=ErrorData(code=INTERNAL_ERROR, message=text)
            )
    return response
