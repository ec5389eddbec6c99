"""Calls in JSON: an object with a name and arguments, or a name and an object."""

from __future__ import annotations

import re

from oxillama.toolcalls.calls import Calls, closed, parsed_object
from oxillama.toolcalls.schemas import loads
from oxillama.toolcalls.source import MalformedCall, Reading, Source
from oxillama.toolcalls.tool_grammar import ToolCallGrammar

ARGUMENTS = ("arguments", "args", "parameters")
NAMES = ("name", "tool_name")
IDS = ("id", "call_id", "tool_call_id")
NUMBERED = re.compile(r"functions\.(.+):\d+", re.DOTALL)
"""A name with the number of its call."""


def envelopes(source: Source, calls: Calls) -> Reading[None]:
    """An object with the name and the arguments of a call, or a list of them."""
    yield from source.spaces()
    if (yield from source.next()) != "[":
        yield from envelope(source, calls)
        return
    yield from source.expect(("[",))
    while True:
        yield from envelope(source, calls)
        if (yield from source.expect((",", "]"))) == "]":
            return


def objects(source: Source, calls: Calls, surely: bool = True) -> Reading[None]:
    """Objects one after another, perhaps with semicolons or commas between them."""
    while True:
        yield from envelope(source, calls, surely)
        between = yield from source.spaces()
        between += yield from source.one_of((";", ","))
        between += yield from source.spaces()
        if (yield from source.next()) != "{":
            source.unread(between)
            return


def rows(source: Source, calls: Calls) -> Reading[None]:
    """MiniMax M1's: objects one after another."""
    while True:
        yield from envelope(source, calls)
        yield from source.spaces()
        if (yield from source.next()) != "{":
            return


def envelope(source: Source, calls: Calls, surely: bool = True) -> Reading[None]:
    """An object with the name and the arguments of a call.

    If not ``surely``, an object without arguments, or with the name of no tool, is none.
    """
    found = Envelope(calls, surely)
    yield from found.members(source)
    found.end()


class Envelope:
    """The members of an object that is a call. Arguments behind the name are handed out as they come."""

    def __init__(self, calls: Calls, surely: bool) -> None:
        self.calls = calls
        self.surely = surely
        self.name: str | None = None
        self.id: str | None = None
        self.held = ""  # arguments that came before the name
        self.has_arguments = self.begun = False

    def members(self, source: Source) -> Reading[None]:
        yield from source.expect(("{",))
        while True:
            key = yield from quoted(source, "a member's name")
            yield from source.expect((":",))
            yield from source.spaces()
            if key in ARGUMENTS:
                yield from self._arguments(source)
            elif key == "function" and (yield from source.next()) == "{":
                yield from self.members(source)
            elif key in ("function", *NAMES):
                self._once(key, self.name is not None)
                self.name = yield from quoted(source, "a name")
            elif key in IDS:
                self._once(key, self.id is not None)
                self.id = yield from quoted(source, "an id")
            elif key == "type":
                yield from quoted(source, "a type")
            else:
                raise MalformedCall(f"expected name and arguments, got {key[:80]!r}")
            if (yield from source.expect((",", "}"))) == "}":
                return

    def end(self) -> None:
        """Raises MalformedCall for an object that is no call."""
        if not self.begun:
            self._begin()
            self.calls.arguments(self.held)
        self.calls.end(self.id)

    def _begin(self) -> None:
        tools = self.calls.tools
        if self.name is None or not (self.surely or self.has_arguments):
            raise MalformedCall("expected a name and arguments, got an object without")
        if not self.surely and tools is not None and self.name not in tools:
            raise MalformedCall(f"expected the name of a tool, got {self.name[:80]!r}")
        self.calls.begin(self.name, self.id)
        self.begun = True

    def _once(self, key: str, is_known: bool) -> None:
        if is_known:
            raise MalformedCall(f"expected every member once, got {key} twice")

    def _arguments(self, source: Source) -> Reading[None]:
        self._once("arguments", self.has_arguments)
        self.has_arguments = True
        streamed = (yield from source.next()) == "{"
        if streamed and self.name is not None:
            self._begin()
            yield from source.json(self.calls.arguments)
            return
        pieces: list[str] = []
        yield from source.json(pieces.append)
        text = "".join(pieces)
        if not streamed:  # an object in quotes, or nothing
            try:
                value = loads(text)
            except ValueError as error:
                raise MalformedCall(f"arguments: expected JSON, got {text[:80]!r}: {error}") from None
            text = "{}" if value is None else value if isinstance(value, str) else text
            parsed_object(text)
        self.held = text


def quoted(source: Source, what: str) -> Reading[str]:
    """A string in JSON."""
    yield from source.spaces()
    if (yield from source.next()) != '"':
        raise MalformedCall(f"expected {what} in quotes, got something else")
    pieces: list[str] = []
    yield from source.json(pieces.append)
    try:
        return str(loads("".join(pieces)))
    except ValueError as error:
        raise MalformedCall(f"expected {what} in quotes, got {''.join(pieces)[:80]!r}: {error}") from None


def mistral(source: Source, calls: Calls) -> Reading[None]:
    """A list of objects; or a name, perhaps ``[CALL_ID]`` and an id, ``[ARGS]``, and the arguments."""
    yield from source.spaces()
    if (yield from source.next()) in ("[", "{"):
        yield from envelopes(source, calls)
        return
    name, stop = yield from source.text_until(("[CALL_ID]", "[ARGS]", "{", "[TOOL_CALLS]"))
    id = None
    if stop == "[CALL_ID]":
        id, stop = yield from source.text_until(("[ARGS]", "{", "[TOOL_CALLS]"))
    if stop not in ("[ARGS]", "{"):
        raise MalformedCall(f"expected NAME[ARGS] and an object, got {name[:80]!r}")
    calls.begin(name, id.strip() if id else None)
    if stop == "{":
        source.unread("{")
    yield from source.spaces()
    yield from source.json(calls.arguments)
    calls.end()


def named(source: Source, calls: Calls) -> Reading[None]:
    """Apertus': an object whose one member is the tool's name and the arguments, or a list of them."""
    yield from source.spaces()
    listed = yield from source.one_of(("[",))
    while True:
        yield from source.expect(("{",))
        name = yield from quoted(source, "a name")
        yield from source.expect((":",))
        yield from source.spaces()
        calls.begin(name)
        yield from source.json(calls.arguments)
        yield from source.expect(("}",))
        calls.end()
        if not listed or (yield from source.expect((",", "]"))) == "]":
            return


def sections(source: Source, calls: Calls, grammar: ToolCallGrammar, opened: str) -> Reading[None]:
    """A name and JSON, perhaps an id before them; or "function", a name, and JSON in a block of code."""
    begin, middle, end = grammar.inside
    if opened != begin:
        yield from source.expect((begin,))
    while True:
        name, stop = yield from source.text_until((middle, end))
        if stop != middle:
            raise MalformedCall(f"expected NAME{middle}, got {name[:80]!r}")
        yield from source.spaces()
        fenced = grammar.fenced and (yield from source.next()) != "{"
        if fenced:
            name, stop = yield from source.text_until(("\n", end))
            yield from source.expect(("```json",))
            yield from source.spaces()
        numbered = NUMBERED.fullmatch(name.strip()) if grammar.numbered else None
        id = numbered[0] if numbered else None
        if grammar.identified and grammar.identified in name:
            id, _, name = name.partition(grammar.identified)
        calls.begin(numbered[1] if numbered else name, id and id.strip())
        yield from source.json(calls.arguments)
        yield from closed(source, "```") if fenced else source.spaces()
        yield from closed(source, end)
        calls.end()
        if not (yield from another(source, begin, grammar.close)):
            return


def another(source: Source, begin: str, close: str) -> Reading[bool]:
    """Whether another call begins, behind one that has ended; else what closes them all is read."""
    between = yield from source.spaces()
    if not close:  # without it, what follows may be text
        if (yield from source.one_of((begin,))):
            return True
        source.unread(between)
        return False
    return bool((yield from source.next())) and (yield from source.expect((begin, close))) == begin
