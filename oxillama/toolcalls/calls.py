"""Emits the events of a message: `Part` those of text and reasoning, `Calls` those of calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.events import (
    ArgumentsPart,
    CallEnd,
    CallFailed,
    CallStart,
    Event,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from oxillama.toolcalls.schemas import loads, parameter_types
from oxillama.toolcalls.source import MalformedCall, Parsing, Source
from oxillama.toolcalls.tool_grammar import ToolCallGrammar


class Part:
    """Text or reasoning, whose whitespace at both ends is held back and dropped next to another part."""

    def __init__(self, add: Callable[[Event], None], kind: type[TextPart] | type[ReasoningPart]) -> None:
        self.emit = add
        self._kind = kind
        self._held = ""
        self._fresh = False  # behind another part: leading whitespace is dropped
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

    Attributes
    ----------
    source : what they are parsed from. It keeps the text behind the last complete call.
    grammar : the format.
    tools : names of the tools that there are; None if they are not known.
    schemas : JSON schemas of the tools' arguments by name.
    types : JSON types by names of tool and parameter.
    constrained : whether calls follow their grammar, so that one without arguments is cut off.
    n_begun, n_failed : calls of the message that have begun, and that failed.
    name : of the tool that the last call is of.
    """

    source: Source
    emit: Callable[[Event], None]
    grammar: ToolCallGrammar
    tools: frozenset[str] | None
    schemas: Mapping[str, Any]
    constrained: bool = False

    def __post_init__(self) -> None:
        self.types: dict[tuple[str, str], frozenset[str]] = parameter_types(self.schemas)
        self.n_begun: int = 0
        self.n_failed: int = 0
        self.name: str = ""
        self._open: CallStart | None = None
        self._pieces: list[str] = []

    def begin(self, name: str, id: str | None = None) -> None:
        """Raises MalformedCall for a name that is none."""
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
        """What was parsed is no call."""
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
    """A piece of a string, as JSON has it between quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def closed(source: Source, close: str) -> Parsing[None]:
    """The closing text; it may be missing at the end of the message. Raises MalformedCall for another one."""
    yield from source.spaces()
    if (yield from source.next()):
        yield from source.expect((close,))
