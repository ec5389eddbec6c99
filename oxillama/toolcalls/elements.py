"""Arguments in nested tags, as MiniMax M3 writes them: a tag for each argument, member and item.

A value whose text begins with a tag is an object, or an array if the tag is ``item``; other values are JSON
or strings, as the tool's schema says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from oxillama.grammar.rulebook import SPACE
from oxillama.grammar.rules import Alt, Node, Repeat, Seq
from oxillama.toolcalls.calls import Calls
from oxillama.toolcalls.schemas import alternative, json_of, types_of
from oxillama.toolcalls.source import MAX_DEPTH, MalformedCall, Parsing
from oxillama.toolcalls.tags import STRING, string, value_text
from oxillama.toolcalls.value_rules import (
    ARRAY_KEYWORDS,
    OBJECT_KEYWORDS,
    Tool,
    ValueRules,
    in_any_order,
    is_plain,
)

ITEM = "item"
_EMPTY = (("string", '""'), ("array", "[]"), ("object", "{}"))
"""What a value without text is, by the first type that it may have."""


def element_rules(values: ValueRules, tool: Tool) -> Node:
    """The grammar of a tool's arguments.

    Objects and arrays that are described by plain keywords stand in tags, too, all others in JSON.
    """
    mark, properties = values.grammar.mark, tool.parameters.get("properties") or {}

    def element(schema: Any, tag: str) -> Node:
        close = f"{mark}</{tag}>"
        return values.book.rule(
            Seq((values.mark(f"{mark}<{tag}>"), value(schema, close), values.mark(close)))
        )

    def value(schema: Any, close: str) -> Node:
        if is_plain(schema, "object", OBJECT_KEYWORDS) and schema.get("properties"):
            members = {key: element(part, key) for key, part in schema["properties"].items()}
            return in_any_order(schema, members)
        if is_plain(schema, "array", ARRAY_KEYWORDS) and "items" in schema:
            return Repeat(element(schema["items"], ITEM), schema.get("minItems", 0), schema.get("maxItems"))
        one = tool.with_argument(schema)
        types = values.types(one, tool.name)
        begins = [f"{SPACE}*{re.escape(mark)}<[^]*"] if types - STRING else []
        ways: list[Node] = []
        if "string" in types:
            ways.append(values.string(one, tool.name, close, types, begins))
        if types != STRING:
            ways.append(values.json(one, tool.name, types))
        return values.book.rule(Alt(tuple(ways)))

    return values.each(
        tool, lambda key: not set("<>\n") & set(key), lambda key: element(properties[key], key)
    )


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
        properties = found.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        seen: set[str] = set()
        self._calls.arguments("{")
        while (yield from self._source.expect((f"{self._mark}<", close))) != close:
            key = yield from self._key()
            if key in seen:
                raise MalformedCall(f"expected every member once, got {key[:80]!r} twice")
            self._calls.arguments(f"{', ' if seen else ''}{json.dumps(key, ensure_ascii=False)}: ")
            seen.add(key)
            part = known[key] if key in known else found.get("additionalProperties")
            yield from self._value(part, f"{self._mark}</{key}>", depth)
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
