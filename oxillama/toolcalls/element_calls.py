"""Calls in nested tags, as MiniMax M3 writes them: a tag for each argument, member and item.

A value whose text begins with a tag is an object, or an array if the tag is ``item``; other values are JSON
or strings, as the tool's schema says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oxillama.toolcalls.calls import Calls, container, inner
from oxillama.toolcalls.schemas import ANY, json_of, part_at, types_of
from oxillama.toolcalls.source import MAX_DEPTH, MalformedCall, Reading, Source
from oxillama.toolcalls.tool_grammar import ToolCallGrammar

ITEM = "item"
EMPTY = (("string", '""'), ("array", "[]"), ("object", "{}"))
"""What a value without text is, by the first type that it may have."""


def elements(source: Source, calls: Calls, grammar: ToolCallGrammar) -> Reading[None]:
    """Calls in ``invoke``, up to the closing text. Every tag stands behind a mark."""
    mark = grammar.tags[0]
    invoke = f'{mark}<invoke name="'
    while (yield from source.expect((invoke, grammar.close))) == invoke:
        name, stop = yield from source.text_until(('">', "<"))
        if stop != '">':
            raise MalformedCall(f"expected a name in quotes, got {name[:80]!r}")
        calls.begin(name)
        schema = calls.schemas.get(name.strip())
        yield from Elements(source, calls, mark, schema).members(schema, f"{mark}</invoke>", 1)
        calls.end()
        yield from source.spaces()
        if not (yield from source.next()):
            return


class Elements:
    """Reads the arguments of one call and hands them out as JSON."""

    def __init__(self, source: Source, calls: Calls, mark: str, root: Any) -> None:
        self._source = source
        self._calls = calls
        self._mark = mark
        self._root = root

    def members(self, schema: Any, close: str, depth: int) -> Reading[None]:
        """The members of an object, up to ``close``."""
        seen: set[str] = set()
        self._calls.arguments("{")
        while (yield from self._source.expect((f"{self._mark}<", close))) != close:
            key = yield from self._key()
            if key in seen:
                raise MalformedCall(f"expected every member once, got {key[:80]!r} twice")
            self._calls.arguments(f"{', ' if seen else ''}{json.dumps(key, ensure_ascii=False)}: ")
            seen.add(key)
            yield from self._value(member_of(schema, key, self._root), f"{self._mark}</{key}>", depth)
        self._calls.arguments("}")

    def _key(self) -> Reading[str]:
        key, stop = yield from self._source.text_until((">", "<", "\n"))
        if stop != ">" or not key.strip():
            raise MalformedCall(f"expected a tag, got {key[:80]!r}")
        return key

    def _items(self, schema: Any, close: str, depth: int) -> Reading[None]:
        """The items of an array whose first tag was read, up to ``close``."""
        item, end = f"{self._mark}<{ITEM}>", f"{self._mark}</{ITEM}>"
        self._calls.arguments("[")
        while True:
            yield from self._value(items_of(schema, self._root), end, depth)
            if (yield from self._source.expect((item, close))) == close:
                self._calls.arguments("]")
                return
            self._calls.arguments(", ")

    def _value(self, schema: Any, close: str, depth: int) -> Reading[None]:
        """A value, up to ``close``."""
        if depth > MAX_DEPTH:
            raise MalformedCall(f"expected at most {MAX_DEPTH} levels, got more")
        source, emit = self._source, self._calls.arguments
        types = types_of(schema, self._root)
        if types == {"string"}:
            emit('"')
            yield from source.quoted(close, lambda text: emit(inner(text)))
            emit('"')
            return
        nested = types & {"array", "object"}
        space = yield from source.spaces() if nested else source.one_of(())
        tag = yield from source.one_of((f"{self._mark}<", f"{self._mark}</") if nested else ())
        if tag == f"{self._mark}<":
            key = yield from self._key()
            if key == ITEM and "array" in types:
                yield from self._items(schema, close, depth + 1)
                return
            source.unread(f"{self._mark}<{key}>")
            yield from self.members(schema, close, depth + 1)
            return
        source.unread(space + tag)
        text, stop = yield from container(source, (close,), self._calls.constrained) if nested else _nothing()
        if not stop:
            text, stop = yield from source.text_until((close,))
        if not stop:
            raise MalformedCall(f"expected {close}, got the end of the text")
        empty = [written for kind, written in EMPTY if kind in types]
        is_empty = not text if "string" in types else not text.strip()
        emit(empty[0] if empty and is_empty else json_of(text, types))


def _nothing() -> Reading[tuple[str, str]]:
    return "", ""
    yield


def member_of(schema: Any, key: str, root: Any) -> Any:
    """The schema of an object's member; None if nothing is known of it."""
    found = alternative(schema, "object", root)
    properties = found.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    return found.get("additionalProperties")


def items_of(schema: Any, root: Any) -> Any:
    """The schema of an array's items; None if nothing is known of them."""
    return alternative(schema, "array", root).get("items")


def alternative(schema: Any, kind: str, root: Any, depth: int = 0) -> Mapping[str, Any]:
    """What a schema says of values of one type: itself, what it refers to, or its first part for these."""
    if not isinstance(schema, Mapping) or depth > 8:
        return {}
    if isinstance(schema.get("$ref"), str):
        return alternative(part_at(root, schema["$ref"]), kind, root, depth + 1)
    for key in ("anyOf", "oneOf"):
        for part in schema[key] if isinstance(schema.get(key), list) else ():
            if kind in types_of(part, root) and types_of(part, root) != ANY:
                return alternative(part, kind, root, depth + 1)
    return schema
