"""Arguments in nested tags, as MiniMax M3 writes them: a tag for each argument, member and item.

A value whose text begins with a tag is an object, or an array if the tag is ``item``; other values are JSON
or strings, as the tool's schema says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from oxillama.text.grammar.rulebook import SPACE
from oxillama.text.grammar.rules import Alt, Node, Repeat, Seq, Text
from oxillama.text.toolcalls.calls import Calls
from oxillama.text.toolcalls.incoming_text import MAX_DEPTH, MalformedCall, Parsing
from oxillama.text.toolcalls.parameters import OF_MEMBERS, Steps, Tool, Value, member, part_at
from oxillama.text.toolcalls.schemas import alternative, json_of, types_of
from oxillama.text.toolcalls.tags import STRING, names_without, string, value_text
from oxillama.text.toolcalls.value_rules import ValueRules, in_any_order, is_plain, is_tag

ITEM = "item"
_OBJECT = OF_MEMBERS | {"type"}
_ARRAY = frozenset({"type", "items", "minItems", "maxItems"})
"""Keywords of objects and arrays that are written in tags."""
_EMPTY = (("string", '""'), ("array", "[]"), ("object", "{}"))
"""What a value without text is, by the first type that it may have."""


def element_rules(values: ValueRules, tool: Tool) -> Node:
    """The grammar of a tool's arguments.

    Objects and arrays with plain keywords are written in tags, too, all others in JSON.
    """
    mark, listed = values.grammar.mark, tool.listed()

    def element(tag: str, *places: Steps) -> Node:
        close = f"{mark}</{tag}>"
        return values.book.rule(
            Seq((values.mark(f"{mark}<{tag}>"), inside(places, close), values.mark(close)))
        )

    def inside(places: Sequence[Steps], close: str) -> Node:
        steps = places[0]
        schema: Any = True if len(places) > 1 else part_at(tool.parameters, steps)
        if is_plain(schema, "object", _OBJECT) and schema.get("properties"):
            members = {key: element(key, (*steps, "properties", key)) for key in schema["properties"]}
            return in_any_order(schema, members)
        if is_plain(schema, "array", _ARRAY) and "items" in schema:
            item = element(ITEM, (*steps, "items"))
            return Repeat(item, schema.get("minItems", 0), schema.get("maxItems"))
        return text(tool.value(*places), close)

    def text(value: Value, close: str) -> Node:
        begins = [f"{SPACE}*{re.escape(mark)}<[^]*"] if value.types - STRING else []
        ways: list[Node] = []
        if "string" in value.types:
            ways.append(values.string(tool, value, close, value.types, begins))
        if value.types != STRING:
            ways.append(values.json(tool, value, value.types))
        return values.book.rule(Alt(tuple(ways)))

    def write(key: str | Node, value: Value) -> Node:
        if isinstance(key, str):
            return element(key, *listed[key])
        name, end = Seq((key, Text(">"))), f"{mark}</"  # a grammar cannot say that both names are the same
        return values.book.rule(
            Seq((values.mark(f"{mark}<"), name, text(value, end), values.mark(end), name))
        )

    return values.each(tool, is_tag, names_without("<>\n/"), write)


class ElementParser:
    """Parses the arguments of one call, which has begun, and emits them as JSON."""

    def __init__(self, calls: Calls) -> None:
        self._source = calls.source
        self._calls = calls
        self._mark = calls.grammar.mark
        self._root = calls.schemas.get(calls.name)

    def arguments(self, close: str) -> Parsing[None]:
        """All arguments, up to ``close``."""
        yield from self._members(self._root, close, 1)

    def _members(self, schema: Any, close: str, depth: int) -> Parsing[None]:
        """The members of an object, up to ``close``."""
        found = alternative(schema, "object", self._root)
        seen: set[str] = set()
        self._calls.arguments("{")
        while (yield from self._source.expect((f"{self._mark}<", close))) != close:
            key = yield from self._key()
            if key in seen and (depth > 1 or not self._calls.may_repeat(self._calls.name, key)):
                raise MalformedCall(f"expected every member once, got {key[:80]!r} twice")
            self._calls.arguments(f"{', ' if seen else ''}{json.dumps(key, ensure_ascii=False)}: ")
            seen.add(key)
            end = f"{self._mark}</{key}>"
            if depth == 1 and self._calls.constrained and self._calls.may_repeat(self._calls.name, key):
                end = f"{self._mark}</"
            yield from self._value(member(found, key), end, depth)
            if end.endswith("/"):
                yield from self._key()
        self._calls.arguments("}")

    def _key(self) -> Parsing[str]:
        key, stop = yield from self._source.text_until((">", "<", "\n"))
        if stop != ">" or not key.strip():
            raise MalformedCall(f"expected a tag, got {key[:80]!r}")
        return key

    def _items(self, schema: Any, close: str, depth: int) -> Parsing[None]:
        """The items of an array whose first tag was parsed, up to ``close``."""
        item, end = f"{self._mark}<{ITEM}>", f"{self._mark}</{ITEM}>"
        self._calls.arguments("[")
        while True:
            yield from self._value(alternative(schema, "array", self._root).get("items"), end, depth)
            if (yield from self._source.expect((item, close))) == close:
                self._calls.arguments("]")
                return
            self._calls.arguments(", ")

    def _value(self, schema: Any, close: str, depth: int) -> Parsing[None]:
        """A value, up to ``close``."""
        if depth > MAX_DEPTH:
            raise MalformedCall(f"expected at most {MAX_DEPTH} levels, got more")
        source, emit = self._source, self._calls.arguments
        types = types_of(schema, self._root)
        if types == STRING:
            yield from string(self._calls, (close,))
            return
        if types & {"array", "object"}:
            space = yield from source.spaces()
            tag = yield from source.one_of((f"{self._mark}<", f"{self._mark}</"))
            if tag == f"{self._mark}<":
                key = yield from self._key()
                if key == ITEM and "array" in types:
                    yield from self._items(schema, close, depth + 1)
                    return
                source.unread(f"{self._mark}<{key}>")
                yield from self._members(schema, close, depth + 1)
                return
            source.unread(space + tag)
        text = yield from value_text(self._calls, (close,), types)
        empty = [written for kind, written in _EMPTY if kind in types]
        is_empty = not text if "string" in types else not text.strip()
        emit(empty[0] if empty and is_empty else json_of(text, types))
