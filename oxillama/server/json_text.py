"""JSON in pieces: neither a large body nor a large answer holds up the event loop.

Python's own JSON functions, in C, do not let other threads run until they are done. What is large is
therefore read by Python's functions in Python, and written part by part.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from json.decoder import JSONArray, JSONObject, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, NoReturn

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oxillama.server.pieces import LARGE, PARTS, is_small
from oxillama.server.workers import pools

MOST_PARTS = 1 << 18
"""Lists and objects in a body."""

ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
"""Made once: a stream needs it for each token."""


def parsed(data: bytes, alone: bool = False) -> Any:
    """What a body holds. Raises ValueError, RecursionError.

    Parameters
    ----------
    alone : whether no other thread wants to run meanwhile.
    """
    is_quick = len(data) < LARGE or (alone and data.count(b"[") + data.count(b"{") <= MOST_PARTS)
    return json.loads(data.decode(), cls=PlainDecoder if is_quick else InterruptibleDecoder)


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which JSON does not have")


class PlainDecoder(json.JSONDecoder):
    """Of JSON, and nothing beside it."""

    def __init__(self) -> None:
        super().__init__(parse_constant=refuse_constant)


class InterruptibleDecoder(PlainDecoder):
    """Lets other threads run between two values; a limited number of them may be lists and objects."""

    def __init__(self) -> None:
        super().__init__()
        self._n_parts = 0
        self.parse_array: Any = self._counted(array)
        self.parse_object: Any = self._counted(JSONObject)
        self.parse_string = string
        self.scan_once = py_make_scanner(self)

    def _counted(self, parse: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            self._n_parts += 1
            if self._n_parts > MOST_PARTS:
                raise ValueError(f"more than {MOST_PARTS} lists and objects")
            return parse(*arguments)

        return counted


NUMBERS = re.compile(r"[-+.0-9eE\s,]*,")
"""The beginning of a list, as far as it has numbers alone; it ends with a comma."""


def array(start: tuple[str, int], scan_once: Any, *rest: Any) -> tuple[list[Any], int]:
    """`JSONArray`, which reads runs of numbers some thousand at a time."""
    text, end = start
    found: list[Any] = []
    while (run := NUMBERS.match(text, end, end + LARGE // 4)) is not None:
        numbers = json.loads(f"[{run[0][:-1]}]")
        if not numbers:
            raise json.JSONDecodeError("Expecting value", text, end)
        found += numbers
        end = run.end()
    values, close = JSONArray((text, end), scan_once, *rest)
    if found and not values:
        raise json.JSONDecodeError("Expecting value", text, end)
    return found + values, close


UNITS = re.compile(r"(?:[^\"\\]{1,1024}|\\u[0-9a-fA-F]{4}|\\.){0,1024}", re.DOTALL)
"""Characters of a string, each whole with its escape."""


def string(text: str, start: int, strict: bool = True) -> tuple[str, int]:
    """`scanstring`, some thousand characters at a time."""
    parts: list[str] = []
    end = start
    while True:
        units = UNITS.match(text, end)
        assert units is not None
        if not units[0] or text[units.end() : units.end() + 1] == '"':
            last, close = scanstring(text, end, strict)  # which also says what is wrong
            return joined([*parts, last]), close
        parts.append(scanstring(f'{units[0]}"', 0, strict)[0])
        end = units.end()


def joined(parts: list[str]) -> str:
    """A string of parts between two of which a surrogate pair may be cut."""
    for i in range(len(parts) - 1):
        if parts[i][-1:] >= "\ud800" and parts[i][-1:] < "\udc00" <= parts[i + 1][:1] < "\ue000":
            pair = (parts[i][-1] + parts[i + 1][0]).encode("utf-16", "surrogatepass").decode("utf-16")
            parts[i], parts[i + 1] = parts[i][:-1] + pair, parts[i + 1][1:]
    return "".join(parts)


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
        if is_small(self._content):
            self._pieces = [ENCODER.encode(self._content).encode()]
        else:
            self._pieces = await pools().parse.run(whole_pieces, self._content, size=LARGE)
        await super().__call__(scope, receive, send)


def whole_pieces(content: Any) -> list[bytes]:
    """The pieces of a large answer, of about `LARGE` bytes each."""
    found, waiting, n_bytes = [], [], 0
    for piece in encoded(content):
        waiting.append(piece)
        n_bytes += len(piece)
        if n_bytes >= LARGE:
            found.append("".join(waiting).encode())
            waiting, n_bytes = [], 0
    return [*found, "".join(waiting).encode()]
