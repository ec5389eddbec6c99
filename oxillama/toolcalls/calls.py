"""`Calls`: hands out the events of calls, whatever they are written in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from oxillama.events import ArgumentsPart, CallEnd, CallFailed, CallStart, Event, ToolCall
from oxillama.toolcalls.schemas import ANY, json_of, loads, parameter_types
from oxillama.toolcalls.source import MalformedCall, Reading, Source


class Calls:
    """Hands out the events of calls.

    Attributes
    ----------
    source : what they are read from. It keeps the text behind the last complete call.
    tools : names of the tools that there are; None if they are not known.
    schemas : JSON schemas of the tools' arguments by name.
    types : JSON types by names of tool and parameter.
    constrained : whether calls follow their grammar, so that one without arguments is cut off.
    n_begun, n_failed : calls of the message that have begun, and that failed.
    """

    def __init__(
        self,
        source: Source,
        emit: Callable[[Event], None],
        tools: frozenset[str] | None,
        schemas: Mapping[str, Any],
        constrained: bool = False,
    ) -> None:
        self.source = source
        self.constrained = constrained
        self.emit = emit
        self.tools = tools
        self.schemas = schemas
        self.types = parameter_types(schemas)
        self.n_begun = self.n_failed = 0
        self._open: CallStart | None = None
        self._pieces: list[str] = []

    def begin(self, name: str, id: str | None = None) -> None:
        """Raises MalformedCall for a name that is none."""
        name = name.strip()
        if not name or any(c.isspace() or c in "<>{}\"'" for c in name):
            raise MalformedCall(f"expected the name of a tool, got {name[:80]!r}")
        self._open, self._pieces = CallStart(self.n_begun, name, id), []
        self.n_begun += 1
        self.emit(self._open)

    def arguments(self, text: str) -> None:
        assert self._open is not None
        if text:
            self._pieces.append(text)
            self.emit(ArgumentsPart(self._open.index, text))

    def end(self, id: str | None = None) -> None:
        """Raises MalformedCall if the arguments are not an object."""
        assert self._open is not None
        text = "".join(self._pieces)
        if not text and self.constrained:
            raise MalformedCall("expected arguments, got the end of the text")
        if not text:
            self.arguments(text := "{}")
        args = parsed_object(text)
        call = ToolCall(self._open.name, args, id or self._open.id, text)
        self.emit(CallEnd(self._open.index, call))
        self._open = None
        self.source.keep("")

    @property
    def has_open(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._open is not None

    def fail(self, text: str, reason: str) -> None:
        """What was read is no call."""
        self.n_failed += 1
        self.emit(CallFailed(self._open.index if self._open else None, text, reason))
        self._open = None


def parsed_object(text: str) -> dict[str, object]:
    """Arguments as an object. Raises MalformedCall."""
    try:
        args = loads(text)
    except ValueError as error:
        raise MalformedCall(f"arguments: expected JSON, got {text[:80]!r}: {error}") from None
    if not isinstance(args, dict):
        raise MalformedCall(f"arguments: expected an object, got {text[:80]!r}")
    return args


class Arguments:
    """Arguments one by one, handed out as the members of an object."""

    def __init__(self, calls: Calls, tool: str, wrapping: tuple[str, str] | None = None) -> None:
        """``wrapping`` : texts between which a string may stand."""
        self.calls = calls
        self.tool = tool
        self.keys: set[str] = set()
        self._wrapping = wrapping

    def add(
        self, source: Source, key: str, stops: tuple[str, ...], types: frozenset[str] | None = None
    ) -> Reading[None]:
        """The value of ``key``, up to one of ``stops``. What can only be a string is handed out as it comes.

        ``types`` are told here, or those of the tool's schema.
        """
        key = key.strip()
        if key in self.keys or not key:
            raise MalformedCall(f"expected every argument once, with a name, got {key[:80]!r}")
        self.calls.arguments(f"{', ' if self.keys else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self.keys.add(key)
        types = self.calls.types.get((self.tool, key), ANY) if types is None else types
        if self._wrapping and (yield from source.one_of(self._wrapping[:1])):
            yield from self._wrapped(source, types, self._wrapping[1])
            stop = yield from source.expect(stops)
        elif types == {"string"}:
            self.calls.arguments('"')
            stop = yield from source.until(stops, lambda text: self.calls.arguments(inner(text)))
            self.calls.arguments('"')
        else:
            text, stop = ("", "")
            if types & {"array", "object"}:
                text, stop = yield from container(source, stops, self.calls.constrained)
            if not stop:
                text, stop = yield from source.text_until(stops)
            self.calls.arguments(json_of(text, types))
        if not stop:
            raise MalformedCall(f"expected {stops[-1]}, got the end of the text")

    def _wrapped(self, source: Source, types: frozenset[str], close: str) -> Reading[None]:
        """The text up to ``close``: a string, where the types have one."""
        if "string" in types:
            self.calls.arguments('"')
            yield from source.quoted(close, lambda text: self.calls.arguments(inner(text)))
            self.calls.arguments('"')
            return
        text, stop = yield from source.text_until((close,))
        if not stop:
            raise MalformedCall(f"expected {close}, got the end of the text")
        self.calls.arguments(json_of(text, types))

    def end(self) -> None:
        self.calls.arguments("}" if self.keys else "{}")
        self.calls.end()


def container(source: Source, stops: tuple[str, ...], surely: bool) -> Reading[tuple[str, str]]:
    """An array or object in JSON, whose strings may hold a stop, and the stop behind it.

    Both are "", and nothing is read, where something else comes first. If what begins as one is ``surely``
    one, MalformedCall is raised where it has no end.
    """
    pieces = [(yield from source.spaces())]
    stop = ""
    if (yield from source.next()) in ("[", "{"):
        try:
            yield from source.json(pieces.append)
            pieces.append((yield from source.spaces()))
            stop = yield from source.one_of(stops)
        except MalformedCall:
            if surely:
                raise
    text = "".join(pieces)
    if not stop:
        source.unread(text)
        text = ""
    return text, stop


def inner(text: str) -> str:
    """A piece of a string, as JSON has it between quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def closed(source: Source, close: str) -> Reading[None]:
    """The closing text; it may be missing at the end of the message. Raises MalformedCall for another one."""
    yield from source.spaces()
    if (yield from source.next()):
        yield from source.expect((close,))
