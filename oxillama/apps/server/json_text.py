"""Answers of JSON, in pieces, so that a large answer does not hold up the event loop.

Python's JSON functions, in C, do not let other threads run until they are done. So a large answer is encoded
part by part.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oxillama.apps.server.pieces import ENCODER, LARGE, PARTS, Mapped, is_small
from oxillama.apps.server.workers import pools

LONE = "oxillama.lone"
"""The error handler of `str.encode` for answers: half a surrogate pair, which a model or a file can bring,
becomes U+FFFD."""


def replaced(error: UnicodeError) -> tuple[bytes, int]:
    """The bytes that stand for what `error` is about, and the end of it."""
    assert isinstance(error, UnicodeEncodeError)
    return "\ufffd".encode() * (error.end - error.start), error.end


codecs.register_error(LONE, replaced)


def encoded(value: Any) -> Iterator[str]:
    """The JSON of a value in pieces, which together are what `ENCODER` writes."""
    if is_small(value):
        yield ENCODER.encode(value)
    elif isinstance(value, str):
        yield '"'
        for start in range(0, len(value), LARGE):
            yield ENCODER.encode(value[start : start + LARGE])[1:-1]
        yield '"'
    elif isinstance(value, Mapping):
        separator = "{"
        for name, item in value.items():
            yield f"{separator}{ENCODER.encode(name)}:"
            yield from encoded(item)
            separator = ","
        yield "}"
    elif isinstance(value, Mapped):
        separator = "["
        for item in value:
            yield separator
            yield from encoded(item)
            separator = ","
        yield "]" if value else "[]"
    else:
        yield "["
        for start in range(0, len(value), PARTS):
            piece = value[start : start + PARTS]
            yield "," if start else ""
            if is_small(piece):
                yield ENCODER.encode(piece)[1:-1]
                continue
            for i, item in enumerate(piece):
                yield "," if i else ""
                yield from encoded(item)
        yield "]"


class WrittenAnswer(Response):
    """An answer of JSON that is written already, in pieces. It is sent as the client takes it."""

    def __init__(
        self, pieces: list[bytes], status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(b"", status_code, {**(headers or {})}, "application/json")
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["content-length"] = str(sum(map(len, self._pieces)))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if len(self._pieces) > 1:  # others have their turn even if the client takes all at once
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class JsonAnswer(WrittenAnswer):
    """An answer of JSON. What is large is written in a thread."""

    def __init__(
        self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__([], status_code, headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._pieces = await written(self._content)
        await super().__call__(scope, receive, send)


async def written(content: Any) -> list[bytes]:
    """The JSON of an answer in pieces. What is large is written in a thread."""
    if is_small(content):
        return [ENCODER.encode(content).encode(errors=LONE)]
    return await pools().parse.run(whole_pieces, content, size=LARGE)


def whole_pieces(content: Any) -> list[bytes]:
    """The pieces of a large answer, of about `LARGE` bytes each."""
    found, waiting, n_bytes = [], [], 0
    for piece in encoded(content):
        waiting.append(piece)
        n_bytes += len(piece)
        if n_bytes >= LARGE:
            found.append("".join(waiting).encode(errors=LONE))
            waiting, n_bytes = [], 0
    return [*found, "".join(waiting).encode(errors=LONE)]
