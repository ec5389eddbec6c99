"""Calls with their delimiters, as a format's patterns describe them: their grammar, and their parser."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import unescape

from oxillama.text.grammar.rulebook import RuleBook
from oxillama.text.grammar.rules import Alt, Node, Repeat, Seq, Text
from oxillama.text.toolcalls.calls import Calls, closed
from oxillama.text.toolcalls.elements import ElementParser, element_rules
from oxillama.text.toolcalls.incoming_text import Parsing
from oxillama.text.toolcalls.members import parse_members
from oxillama.text.toolcalls.objects import parse_objects
from oxillama.text.toolcalls.parameters import Tool
from oxillama.text.toolcalls.patterns import Pattern, parse_heads, pattern
from oxillama.text.toolcalls.python_calls import keyword_rules, parse_python
from oxillama.text.toolcalls.tags import argument_rules, parse_arguments
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar
from oxillama.text.toolcalls.value_rules import BREAK, WIDE, ValueRules

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

    Args:
        grammar: the format.
        tools: that may be called.
        book: of the grammar.
        special: ids of the special tokens that the format's delimiters may be made of, by their texts.
    """

    def __init__(
        self, grammar: ToolCallGrammar, tools: Sequence[Tool], book: RuleBook, special: Mapping[str, int]
    ) -> None:
        self.grammar = grammar
        self._tools = tools
        self._values = ValueRules(book, grammar, special)
        self._blocks: dict[tuple[bool, bool], Node] = {}
        self.mark: Callable[[str], Node] = self._values.mark

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
            is_list = grammar.listed and text.endswith("[")  # its first character
            open = self.mark(text[:-1]) if is_list else Seq((self.mark(text), BREAK))
            close = grammar.closing(text)
            end = () if grammar.bare or close in ("", *ends) else (BREAK, self.mark(close))
            may_lack = bare or len(outer) < len(grammar.opens)
            ways.append(Seq((Repeat(open, 0, 1) if may_lack else open, body, *end)))
        return Alt(tuple(ways)) if ways else body

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


class CallParser:
    """Parses calls that follow a delimiter.

    Args:
        calls: emits their events.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls, self._source, self._grammar = calls, calls.source, calls.grammar
        patterns = [pattern(text) for text in (*self._grammar.calls, *self._grammar.also)]
        self._patterns = [one for one in patterns if not one.is_object and one.body != "value"]
        self._has_objects = any(one.is_object for one in patterns)
        self._begins = tuple({one.begin for one in self._patterns} - {""})

    def block(self, opened: str, name: str = "") -> Parsing[None]:
        """Calls after ``opened``, up to their closing text. ``name`` : the tool that a header names."""
        source, close = self._source, "" if self._grammar.bare else self._grammar.closing(opened)
        if self._grammar.listed and opened.endswith("["):  # the bracket of the list
            source.unread("[")
        if opened not in self._begins and (yield from self._list(close)):
            if close:
                yield from closed(source, close)
            return
        more = self._begins if self._grammar.separator else ()
        while True:
            end = yield from self._call(name)
            if end == close and close:
                return
            between = yield from source.spaces()
            if not close:  # what follows may be text
                if not (yield from source.one_of(more)):
                    source.unread(between)
                    return
            elif not (yield from source.next()) or (yield from source.expect((*more, close))) == close:
                return

    def _list(self, close: str) -> Parsing[bool]:
        """Parses objects, calls in Python or no call; else only what a call by a pattern begins with."""
        source = self._source
        yield from source.spaces()
        begun = yield from source.one_of(self._begins)
        is_object = self._has_objects and not begun
        if is_object and self._patterns and not self._begins:
            is_object = (yield from source.next()) in ("{", "[")
        if is_object:
            yield from parse_objects(self._calls)
        elif self._patterns[0].body == "keywords":
            yield from parse_python(self._calls, close)
        elif begun or not self._begins:
            return False
        elif (yield from source.expect((*self._begins, *filter(None, (close,))))) == close:
            source.unread(close)
        else:
            return False
        return True

    def _call(self, name: str) -> Parsing[str]:
        """A call after its first delimiter; returns the text that ends it."""
        source, calls, grammar = self._source, self._calls, self._grammar
        stops = {one.ends[-1] for one in self._patterns} | {grammar.close, *grammar.opens}
        stops.add(pattern(grammar.argument).begin)
        found, words = yield from parse_heads(source, self._patterns, tuple(stops - {""}))
        name = words.get("name", name)
        calls.begin(unescape(name) if grammar.escaped else name, words.get("id"))
        end = found.ends[-1]
        if found.body == "arguments":
            yield from parse_arguments(calls, found.ends[0])
        elif found.body == "elements":
            yield from ElementParser(calls).arguments(end)
        else:
            yield from source.spaces()
            yield from parse_members(calls) if found.body == "members" else source.json(calls.arguments)
            for text in filter(None, found.ends):
                yield from closed(source, text)
        if found.heads:  # else the end of the message, which is parsed elsewhere, ends the call
            calls.end()
        return end
