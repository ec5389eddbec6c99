"""Calls that are objects in JSON, with a name and arguments: parsed whatever the order of their members."""

from __future__ import annotations

from oxillama.text.toolcalls.calls import Calls, parsed_object
from oxillama.text.toolcalls.incoming_text import IncomingText, MalformedCall, Parsing
from oxillama.text.toolcalls.schemas import loads

ARGUMENTS = ("arguments", "args", "parameters")
NAMES = ("name", "tool_name")
IDS = ("id", "call_id", "tool_call_id")


def parse_objects(calls: Calls, surely: bool = True) -> Parsing[None]:
    """A list of objects, or one, or several if the format has a separator.

    Unless ``surely``, an object without arguments, or with the name of no tool, is not a call.
    """
    source, grammar = calls.source, calls.grammar
    yield from source.spaces()
    keyed = grammar.calls[0].startswith('{"$name"')
    listed = surely and bool((yield from source.one_of(("[",))))
    while True:
        found = Envelope(calls, surely)
        yield from found.members(source, keyed)
        found.end()
        if listed:
            if (yield from source.expect((",", "]"))) == "]":
                return
            continue
        between = yield from source.spaces()
        between += yield from source.one_of((";", ",") if grammar.separator else ())
        between += yield from source.spaces()
        if not grammar.separator or (yield from source.next()) != "{":
            source.unread(between)
            return


class Envelope:
    """The members of an object that is a call. Arguments behind the name are emitted as they come."""

    def __init__(self, calls: Calls, surely: bool) -> None:
        self.calls = calls
        self.surely = surely
        self.name: str | None = None
        self.id: str | None = None
        self.held: str = ""  # arguments that came before the name
        self.has_arguments: bool = False
        self.begun: bool = False

    def members(self, source: IncomingText, keyed: bool = False) -> Parsing[None]:
        """``keyed`` : the one member is named as the tool is."""
        yield from source.expect(("{",))
        while True:
            key = yield from quoted(source, "a member's name")
            yield from source.expect((":",))
            yield from source.spaces()
            if keyed:
                self.name, key = key, ARGUMENTS[0]
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
            if (yield from source.expect(("}",) if keyed else (",", "}"))) == "}":
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
        self.calls.begin(self.name.strip(), self.id)
        self.begun = True

    def _once(self, key: str, is_known: bool) -> None:
        if is_known:
            raise MalformedCall(f"expected every member once, got {key} twice")

    def _arguments(self, source: IncomingText) -> Parsing[None]:
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


def quoted(source: IncomingText, what: str) -> Parsing[str]:
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
