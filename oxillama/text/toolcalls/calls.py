"""Emitters of the events of a message: `TextEmitter` for text and reasoning, `Calls` for calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.base.events import (
    ArgumentsPart,
    CallEnd,
    CallFailed,
    CallStart,
    Event,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from oxillama.text.toolcalls.incoming_text import IncomingText, MalformedCall, Parsing
from oxillama.text.toolcalls.parameters import member, names_of, takes_others
from oxillama.text.toolcalls.schemas import loads, types_of
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar


class TextEmitter:
    """Emits text or reasoning. Whitespace at both ends is held back, and dropped next to another part."""

    def __init__(self, add: Callable[[Event], None], kind: type[TextPart] | type[ReasoningPart]) -> None:
        self.emit = add
        self._kind = kind
        self._held = ""
        self._fresh = False  # leading whitespace is dropped, for another part came before
        self.has_begun: bool = False

    def add(self, text: str) -> None:
        text = text.lstrip() if self._fresh else self._held + text
        kept = text.rstrip()
        if kept:
            self.emit(self._kind(kept))
            self._fresh = False
            self.has_begun = True
        self._held = "" if self._fresh else text[len(kept) :]

    def part(self) -> None:
        """Another part begins here."""
        self._held, self._fresh = "", True

    def end(self) -> None:
        """The text is at its end."""
        if self._held:
            self.emit(self._kind(self._held))
        self._held = ""


@dataclass(eq=False, repr=False)
class Calls:
    """Emits the events of calls.

    Attributes:
        source: the text that is parsed. It keeps the text after the last complete call.
        grammar: the format.
        tools: names of the tools; None if they are not known.
        schemas: JSON schemas of the tools' arguments by name.
        constrained: whether the text follows its grammar, so that a call without arguments was cut off.
        n_begun, n_failed: calls of the message that have begun, and that failed.
        name: the tool of the last call.
    """

    source: IncomingText
    emit: Callable[[Event], None]
    grammar: ToolCallGrammar
    tools: frozenset[str] | None
    schemas: Mapping[str, Any]
    constrained: bool = False

    def __post_init__(self) -> None:
        self._types: dict[tuple[str, str], frozenset[str]] = {}
        self.n_begun: int = 0
        self.n_failed: int = 0
        self.name: str = ""
        self._open: CallStart | None = None
        self._pieces: list[str] = []

    def types_of(self, key: str) -> frozenset[str]:
        """JSON types that an argument of the last call may have."""
        schema, place = self.schemas.get(self.name), (self.name, key)
        if place not in self._types:
            self._types[place] = types_of(member(schema, key), schema)
        return self._types[place]

    def may_repeat(self, name: str, key: str) -> bool:
        """Whether an argument of a tool may come twice: the tool's schema allows it without listing it."""
        return takes_others(self.schemas.get(name)) and key not in names_of(self.schemas[name])

    def begin(self, name: str, id: str | None = None) -> None:
        """Raises MalformedCall for an invalid name."""
        if not name or any(c.isspace() or c in "<>{}\"'" for c in name):
            raise MalformedCall(f"expected the name of a tool, got {name[:80]!r}")
        self.name = name
        self._open = CallStart(self.n_begun, name, id)
        self._pieces = []
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
        """Ends the open call, whose text turned out not to be a call."""
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


def inner(text: str) -> str:
    """A piece of a string, escaped for JSON, without quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def closed(source: IncomingText, close: str) -> Parsing[None]:
    """Reads the closing text, which may be missing at the end. Raises MalformedCall for other text."""
    yield from source.spaces()
    if (yield from source.next()):
        yield from source.expect((close,))
