"""Text that arrives in pieces, parsed by generators that wait for more of it.

A parser yields when it needs more text. What it has emitted by then depends on the text alone, not on the
cuts between pieces: a piece is held back only while it may be the beginning of a stop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Parsing = Generator[None, None, T]
"""Parses something of a `IncomingText`; yields to wait for more text."""

MAX_DEPTH = 100
"""Of objects and arrays within each other."""

_SPACE = re.compile(r"\s*")
_OUTSIDE, _INSIDE = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,\]}<;]")


class MalformedCall(Exception):
    """The text is not a call; the message says why."""


class IncomingText:
    """Text to parse.

    Attributes:
        ended: whether no more text comes.
    """

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._kept: list[str] | None = None

    def push(self, text: str) -> None:
        self._text, self._at = self._text[self._at :] + text, 0

    def keep(self, before: str) -> None:
        """Keeps the text that is read from now on, after ``before``."""
        self._kept = [before]

    def kept(self) -> str:
        """The text read since `keep`, which is then no longer kept."""
        kept, self._kept = "".join(self._kept or ()), None
        return kept

    def unread(self, text: str) -> None:
        """Puts back the text that was read last."""
        self._text, self._at = text + self._text[self._at :], 0
        if self._kept is not None:
            whole = "".join(self._kept)
            self._kept = [whole[: len(whole) - len(text)]]

    def _take(self, n: int) -> str:
        text = self._text[self._at : self._at + n]
        self._at += n
        if self._kept is not None:
            self._kept.append(text)
        return text

    def until(self, stops: tuple[str, ...], emit: Callable[[str], None]) -> Parsing[str]:
        """Emits the text before the first of ``stops``, piece by piece; returns the stop, or "".

        Of stops that begin at one place the longest counts. "" says that the text is at its end.
        """
        pattern = _either(stops)
        while True:
            found = pattern.search(self._text, self._at)
            end = len(self._text) - _held(self._text, self._at, stops)
            if found and (found.start() < end or self.ended):
                emit(self._take(found.start() - self._at))
                return self._take(len(found[0]))
            end = len(self._text) if self.ended else end
            if end > self._at:
                emit(self._take(end - self._at))
            if self.ended:
                return ""
            yield

    def text_until(self, stops: tuple[str, ...]) -> Parsing[tuple[str, str]]:
        """The text before the first of ``stops``, and the stop."""
        pieces: list[str] = []
        stop = yield from self.until(stops, pieces.append)
        return "".join(pieces), stop

    def spaces(self) -> Parsing[str]:
        """Reads whitespace."""
        pieces = []
        while True:
            found = _SPACE.match(self._text, self._at)
            pieces.append(self._take(found.end() - found.start() if found else 0))
            if self._at < len(self._text) or self.ended:
                return "".join(pieces)
            yield

    def one_of(self, options: tuple[str, ...]) -> Parsing[str]:
        """The longest of ``options`` with which the text continues; "" if it continues otherwise."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, options), default=0)]
            waiting = not self.ended and any(o.startswith(rest) and len(o) > len(rest) for o in options)
            if not waiting:
                found = max((o for o in options if rest.startswith(o)), key=len, default="")
                return self._take(len(found))
            yield

    def next(self) -> Parsing[str]:
        """The next character, which stays unread; "" at the end."""
        while self._at >= len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def json(self, emit: Callable[[str], None]) -> Parsing[None]:
        """Emits one JSON value, piece by piece.

        Only its end is looked for: whoever puts the pieces together parses them. Raises MalformedCall where
        the value has no end.
        """
        first = yield from self.next()
        if first not in ("{", "[", '"'):
            yield from self._scalar(emit)
            return
        depth: list[str] = []
        quoted = escaped = False
        while True:
            start, end = self._at, len(self._text)
            at = start
            while at < end:
                if escaped:
                    escaped, at = False, at + 1
                    continue
                found = (_INSIDE if quoted else _OUTSIDE).search(self._text, at)
                if not found:
                    break
                at, mark = found.end(), found[0]
                if mark == "\\":
                    escaped = True
                elif mark == '"':
                    quoted = not quoted
                elif mark in "{[":
                    depth.append("}" if mark == "{" else "]")
                elif depth.pop() != mark:
                    emit(self._take(at - 1 - start))
                    raise MalformedCall(f"expected JSON, got {mark!r} out of place")
                if len(depth) > MAX_DEPTH:
                    emit(self._take(at - start))
                    raise MalformedCall(f"expected at most {MAX_DEPTH} levels of JSON, got more")
                if not depth and not quoted:
                    emit(self._take(at - start))
                    return
            if end > start:
                emit(self._take(end - start))
            if self.ended:
                raise MalformedCall("expected the end of a JSON value, got that of the text")
            yield

    def _scalar(self, emit: Callable[[str], None]) -> Parsing[None]:
        while True:
            found = _SCALAR_END.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            if end > self._at:
                emit(self._take(end - self._at))
            if found or self.ended:
                return
            yield

    def expect(self, options: tuple[str, ...]) -> Parsing[str]:
        """Reads whitespace and one of ``options``. Raises MalformedCall for other text."""
        yield from self.spaces()
        found = yield from self.one_of(options)
        if not found:
            got = yield from self.next()
            expected = " or ".join(options)
            raise MalformedCall(
                f"expected {expected}, got {got!r}" if got else f"expected {expected}, got the end"
            )
        return found


@lru_cache(maxsize=256)
def _either(stops: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(stop) for stop in sorted(stops, key=len, reverse=True)) or "(?!)")


def _held(text: str, at: int, stops: tuple[str, ...]) -> int:
    """How many last characters of ``text`` from ``at`` on may be the beginning of a stop."""
    longest = max(map(len, stops), default=0)
    for n in range(min(longest - 1, len(text) - at), 0, -1):
        end = text[-n:]
        if any(len(stop) > n and stop.startswith(end) for stop in stops):
            return n
    return 0
