"""Arguments in tags, one by one: a value's text is the string itself, or JSON, as the tool's schema says."""

from __future__ import annotations

import json
import re
from html import unescape

from oxillama.text.grammar.rulebook import SPACE
from oxillama.text.grammar.rules import Alt, Node, Seq, Text
from oxillama.text.toolcalls.calls import Calls, inner
from oxillama.text.toolcalls.incoming_text import MalformedCall, Parsing
from oxillama.text.toolcalls.parameters import Tool, Value
from oxillama.text.toolcalls.patterns import parse_heads, pattern
from oxillama.text.toolcalls.schemas import ANY, json_of
from oxillama.text.toolcalls.value_rules import ValueRules

STRING = frozenset({"string"})


def argument_rules(values: ValueRules, tool: Tool) -> Node:
    """The grammar of a tool's arguments."""
    grammar = values.grammar
    found = pattern(grammar.argument)
    forbidden = '">' if found.heads[0].stop.startswith('"') else "<>\n"
    told = next(part for part in found.parts if part in ("$string", "$type", "$value"))
    at, end = found.parts.index(told), found.parts.index("$value")

    def write(key: str | Node, value: Value) -> Node:
        others = value.types - STRING
        ways: list[tuple[str, Node]] = []
        if told == "$value":
            ways = [("", _value(values, tool, value, found.ends[0]))]
        elif others and told == "$string":
            ways = [("false", values.json(tool, value, value.types))]
        elif told == "$type":
            ways = [(kind, values.json(tool, value, frozenset({kind}))) for kind in sorted(others)]
        if told != "$value" and "string" in value.types:
            word = "true" if told == "$string" else "string"
            ways.append((word, values.string(tool, value, found.ends[0], STRING)))
        between = values.written(found.parts[at + 1 : end], {}) if told != "$value" else Seq(())
        inside = Alt(tuple(Seq((Text(word), between, node)) if word else node for word, node in ways))
        before = values.written(found.parts[:at], {"$key": key})
        return values.book.rule(Seq((before, inside, values.written(found.parts[end + 1 :], {}))))

    others = names_without(f"{forbidden}&'\"<" if grammar.escaped else forbidden)
    return values.each(tool, lambda key: not set(forbidden) & set(key), others, write)


def names_without(chars: str) -> str:
    """A regular expression of names with none of these characters, and no white space at their ends."""
    inside = f"[^{re.escape(chars)}]"
    edge = f"[^{re.escape(chars)}{SPACE[1:-1]}]"
    return f"{edge}({inside}*{edge})?"


def _value(values: ValueRules, tool: Tool, value: Value, stop: str) -> Node:
    """A value's text, which its schema tells from a string."""
    ways: list[Node] = []
    types = value.types
    if "string" in types:
        wrapping = values.grammar.wrapping
        absent = [re.escape(wrapping[0]) + "[^]*"] if wrapping else []
        ways.append(values.string(tool, value, stop, types, absent))
        if wrapping:
            inside = values.string(tool, value, wrapping[1], STRING)
            ways.append(Seq((Text(wrapping[0]), inside, Text(wrapping[1]))))
    if types != STRING:
        ways.append(values.json(tool, value, types))
    return values.book.rule(Alt(tuple(ways)))


def parse_arguments(calls: Calls, end: str) -> Parsing[None]:
    """The arguments of a call, which has begun, up to its end."""
    source, grammar = calls.source, calls.grammar
    patterns = [pattern(text) for text in (grammar.argument, *grammar.also)]
    patterns = [one for one in patterns if one.body == "value"]
    begin = patterns[0].begin
    keys: set[str] = set()
    while (yield from _more(calls, begin, end, bool(keys) and end == grammar.close)):
        found, words = yield from parse_heads(source, patterns)
        key = unescape(words["key"]) if grammar.escaped else words["key"]
        if not key or (key in keys and not calls.may_repeat(calls.name, key)):
            raise MalformedCall(f"expected every argument once, with a name, got {key[:80]!r}")
        calls.arguments(f"{', ' if keys else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        keys.add(key)
        types = _told(words, calls.types_of(key) if len(words) == 1 else ANY)
        yield from source.one_of(("\n",) if found.padded else ())
        stops = (*((f"\n{found.ends[0]}",) if found.padded else ()), found.ends[0])
        if grammar.wrapping and (yield from source.one_of(grammar.wrapping[:1])):
            inside = STRING if "string" in types else types
            yield from _text(calls, grammar.wrapping[1:], inside)
            yield from source.expect(stops)
        else:
            yield from _text(calls, stops, types)
    calls.arguments("}" if keys else "{}")


def _more(calls: Calls, begin: str, end: str, may_lack: bool) -> Parsing[bool]:
    """Whether another argument begins; else the end of the call is parsed, which the last one may lack."""
    source = calls.source
    yield from source.spaces()
    if may_lack and not calls.constrained and not (yield from source.next()):
        return False
    return (yield from source.expect((begin, end))) == begin


def _told(words: dict[str, str], types: frozenset[str]) -> frozenset[str]:
    """The types that an argument's tag names, or the types of the tool's schema."""
    if "string" in words:
        return STRING if words["string"] == "true" else ANY
    named = words.get("type", "")
    return frozenset({"number" if named == "integer" else named}) & ANY or types


def _text(calls: Calls, stops: tuple[str, ...], types: frozenset[str]) -> Parsing[None]:
    """A value up to one of ``stops``. What can only be a string is emitted as it comes."""
    if types == STRING:
        yield from string(calls, stops)
        return
    calls.arguments(json_of((yield from value_text(calls, stops, types)), types))


def string(calls: Calls, stops: tuple[str, ...]) -> Parsing[None]:
    """The text up to one of ``stops``, as a string in JSON. Raises MalformedCall if no stop follows."""
    calls.arguments('"')
    if not (yield from calls.source.until(stops, lambda text: calls.arguments(inner(text)))):
        raise MalformedCall(f"expected {stops[-1]}, got the end of the text")
    calls.arguments('"')


def value_text(calls: Calls, stops: tuple[str, ...], types: frozenset[str]) -> Parsing[str]:
    """The text up to one of ``stops``; strings of an array or object in JSON may hold one.

    Raises MalformedCall if no stop follows, or if a text that follows its grammar (`Calls.constrained`)
    begins as an array or object that has no end.
    """
    source = calls.source
    if types & {"array", "object"}:
        pieces = [(yield from source.spaces())]
        stop = ""
        if (yield from source.next()) in ("[", "{"):
            try:
                yield from source.json(pieces.append)
                pieces.append((yield from source.spaces()))
                stop = yield from source.one_of(stops)
            except MalformedCall:
                if calls.constrained:
                    raise
        if stop:
            return "".join(pieces)
        source.unread("".join(pieces))
    text, stop = yield from source.text_until(stops)
    if not stop:
        raise MalformedCall(f"expected {stops[-1]}, got the end of the text")
    return text
