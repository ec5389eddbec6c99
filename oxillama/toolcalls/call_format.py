"""Calls with their delimiters, as a format's patterns describe them: their grammar, and their parser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import unescape

from oxillama.grammar.rulebook import RuleBook
from oxillama.grammar.rules import Alt, Node, Repeat, Seq, Text
from oxillama.toolcalls.calls import Calls, closed
from oxillama.toolcalls.elements import ElementParser, element_rules
from oxillama.toolcalls.members import parse_members
from oxillama.toolcalls.objects import parse_objects
from oxillama.toolcalls.patterns import Pattern, parse_heads, pattern
from oxillama.toolcalls.python_calls import keyword_rules, python_list
from oxillama.toolcalls.source import Parsing, Source
from oxillama.toolcalls.tags import argument_rules, parse_arguments
from oxillama.toolcalls.tool_grammar import ToolCallGrammar
from oxillama.toolcalls.value_rules import BREAK, WIDE, Tool, ValueRules

MANY = 128
"""Calls of a message, at most."""
_BODIES = {
    "json": ValueRules.arguments,
    "members": ValueRules.arguments,
    "keywords": keyword_rules,
    "elements": element_rules,
    "arguments": argument_rules,
}


class CallRules:
    """Writes the rules of calls into a book.

    Parameters
    ----------
    grammar : the format.
    tools : that may be called.
    book : of the grammar.
    special : ids of the special tokens that the format's delimiters may be made of, by their texts.
    """

    def __init__(
        self, grammar: ToolCallGrammar, tools: Sequence[Tool], book: RuleBook, special: Mapping[str, int]
    ) -> None:
        self.grammar = grammar
        self._tools = tools
        self._values = ValueRules(book, grammar, special)
        self._blocks: dict[tuple[bool, bool], Node] = {}
        self.mark = self._values.mark

    def block(self, many: bool, bare: bool = False) -> Node:
        """A call with its delimiters, or ``many`` where a format has several between them.

        ``bare`` : also a call that has no delimiter before it, where the format has such.
        """
        key = (many, bare and self.grammar.bare)
        if key not in self._blocks:
            self._blocks[key] = self._values.book.rule(self._block(*key, self._tools))
        return self._blocks[key]

    def turn(self) -> Node:
        """A message that is one call, with its header."""
        headers = [pattern(text).parts for text in self.grammar.headers]
        ways: list[Node] = []
        for tool in self._tools:
            heads = [self._values.written(parts, {"$name": tool.name}) for parts in headers]
            ways.append(Seq((Alt(tuple(heads)), self._block(False, False, [tool]))))
        return self._values.book.rule(Alt(tuple(ways)))

    def _block(self, many: bool, bare: bool, tools: Sequence[Tool]) -> Node:
        grammar, patterns = self.grammar, [pattern(text) for text in self.grammar.calls]
        begins, ends = {one.begin for one in patterns}, {one.ends[-1] for one in patterns}
        outer = [text for text in grammar.opens if text not in begins]
        listed = [one for one in patterns if grammar.listed and (one.is_object or one.body == "keywords")]
        others = [one for one in patterns if one not in listed]
        bodies: list[Node] = []
        if others:
            bodies.append(self._several(others, tools, many and not listed))
        if listed:
            gap = (WIDE,) if grammar.spread else ()
            bodies.append(Seq((Text("["), *gap, self._several(listed, tools, many), *gap, Text("]"))))
        body = Alt(tuple(bodies))
        ways: list[Node] = []
        for text in outer:
            is_list = text.endswith("[")  # its first character
            open = self.mark(text[:-1]) if is_list else Seq((self.mark(text), BREAK))
            close = "" if grammar.bare or grammar.closing(text) in ends else grammar.closing(text)
            may_lack = bare or len(outer) < len(grammar.opens)
            ways.append(Seq((Repeat(open, 0, 1) if may_lack else open, body, *self._close(close))))
        return Alt(tuple(ways)) if ways else body

    def _close(self, text: str) -> tuple[Node, ...]:
        return (BREAK, self.mark(text)) if text else ()

    def _several(self, patterns: Sequence[Pattern], tools: Sequence[Tool], many: bool) -> Node:
        """A call of any of the tools or, with ``many``, several."""
        ways = [self._call(one, tool) for tool in tools for one in patterns]
        call = self._values.book.rule(Alt(tuple(ways)))
        separator = pattern(self.grammar.separator).parts
        if not many or not separator:
            return call
        return Seq((call, Repeat(Seq((self._values.written(separator, {}), call)), 0, MANY - 1)))

    def _call(self, one: Pattern, tool: Tool) -> Node:
        name = json.dumps(tool.name, ensure_ascii=False)[1:-1] if one.is_object else tool.name
        words = {"$name": name, f"${one.body}": _BODIES[one.body](self._values, tool)}
        return self._values.written(one.parts, words)


def parse_calls(
    source: Source, calls: Calls, grammar: ToolCallGrammar, opened: str, name: str = ""
) -> Parsing[None]:
    """Calls from behind ``opened``, up to what closes them. ``name`` : of the tool, if a header has it."""
    patterns = [pattern(text) for text in (*grammar.calls, *grammar.also)]
    others = [one for one in patterns if not one.is_object and one.body != "value"]
    begins = tuple({one.begin for one in others} - {""})
    close = "" if grammar.bare else grammar.closing(opened)
    if opened.endswith("["):  # of the list
        source.unread("[")
    if opened not in begins:
        yield from source.spaces()
        begun = yield from source.one_of(begins)
        if (
            not begun
            and any(one.is_object for one in patterns)
            and (begins or not others or (yield from source.next()) in ("{", "["))
        ):
            yield from parse_objects(source, calls, grammar)
            if close:
                yield from closed(source, close)
            return
        if others[0].body == "keywords":
            yield from python_list(source, calls, close)
            return
        if (
            begins
            and not begun
            and (yield from source.expect((*begins, close) if close else begins)) == close
        ):
            return
    while True:
        end = yield from _parse_call(source, calls, grammar, others, name)
        if end == close and close:
            return
        between = yield from source.spaces()
        more = begins if grammar.separator else ()
        if not close:  # what follows may be text
            if not (yield from source.one_of(more)):
                source.unread(between)
                return
        elif not (yield from source.next()) or (yield from source.expect((*more, close))) == close:
            return


def _parse_call(
    source: Source, calls: Calls, grammar: ToolCallGrammar, patterns: Sequence[Pattern], name: str
) -> Parsing[str]:
    """A call from behind its first delimiter; returns what it ends with."""
    ends = {one.ends[-1] for one in patterns} | {grammar.close, *grammar.opens}
    if grammar.argument:
        ends.add(pattern(grammar.argument).begin)
    found, words = yield from parse_heads(source, patterns, tuple(ends - {""}))
    name = words.get("name", name)
    name = unescape(name) if grammar.escaped else name
    calls.begin(name, words.get("id"))
    if found.body == "arguments":
        yield from parse_arguments(source, calls, grammar, name, found.ends)
    elif found.body == "elements":
        schema = calls.schemas.get(name)
        yield from ElementParser(source, calls, grammar.mark, schema).members(schema, found.ends[-1])
    else:
        yield from source.spaces()
        if found.body == "members":
            yield from parse_members(source, calls, grammar.quote)
        else:
            yield from source.json(calls.arguments)
        for end in filter(None, found.ends):
            yield from closed(source, end)
    if found.heads:  # else the message's end, which the caller parses, ends the call
        calls.end()
    return found.ends[-1]
