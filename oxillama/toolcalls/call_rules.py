"""Grammars of calls, for each style of `toolcalls/formats.py`: what `toolcalls/syntax.py` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape

from oxillama.grammar.rulebook import RuleBook
from oxillama.grammar.rules import Alt, Chars, Node, Repeat, Seq, Text, Tokens
from oxillama.toolcalls.tag_calls import CDATA, close_of
from oxillama.toolcalls.tool_grammar import ToolCallGrammar
from oxillama.toolcalls.value_rules import Tool, ValueRules

BREAK = Repeat(Chars(((10, 10), (32, 32))), 0, 2)
"""White space between the parts of a call."""
SPACE = Repeat(Text(" "), 0, 1)
WIDE = Repeat(Chars(((10, 10), (32, 32))), 0, 10)
"""White space between the lines of a list of calls."""
DIGITS = Repeat(Chars(((48, 57),)), 1, 3)
LINE = Repeat(Text("\n"), 0, 1)
LINES = Repeat(Text("\n"), 0, 2)
MANY = 128
"""Calls of a message, at most."""


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
        self._book = book
        self._special = special
        self._blocks: dict[tuple[bool, bool], Node] = {}
        self._values = ValueRules(book, self.mark, grammar.quote, "flexible" if grammar.spread else "single")

    def mark(self, text: str) -> Node:
        """A delimiter: its text, or the special tokens that are spelled so."""
        items: list[Node] = []
        plain = ""
        while text:
            found = max((t for t in self._special if text.startswith(t)), key=len, default="")
            if not found:
                plain, text = plain + text[0], text[1:]
                continue
            items += [Text(plain)] if plain else []
            items.append(Alt((Text(found), Tokens((self._special[found],)))))
            plain, text = "", text[len(found) :]
        items += [Text(plain)] if plain else []
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def block(self, many: bool, bare: bool = False) -> Node:
        """A call with its delimiters, or ``many`` where a format has several between them.

        ``bare`` : also a call that has no delimiter before it, in the style "bare".
        """
        bare = bare and self.grammar.style == "bare"
        key = (many, bare)
        if key not in self._blocks:
            self._blocks[key] = self._book.rule(self._written(many, bare))
        return self._blocks[key]

    def _written(self, many: bool, bare: bool) -> Node:
        writers: dict[str, Callable[[bool], Node]] = {
            "tagged": self._tagged,
            "keys": self._keys,
            "mistral": self._mistral,
            "sections": self._sections,
            "invoke": self._invokes,
            "elements": self._elements,
            "dict": self._dictionary,
            "python": self._python,
            "bare": partial(self._objects, bare=bare),
        }
        return writers[self.grammar.style](many)

    def each(self, write: Callable[[Tool], Node]) -> Node:
        """Any one of the tools."""
        return self._book.rule(Alt(tuple(write(tool) for tool in self._tools)))

    def arguments(self, tool: Tool) -> Node:
        """The arguments of a tool as one object."""
        return self._values.arguments(tool)

    def _listed(self, item: Node, between: Node, many: bool) -> Node:
        """One item or, with ``many``, several."""
        return Seq((item, Repeat(Seq((between, item)), 0, MANY - 1))) if many else item

    def _object(self, id: bool = False) -> Node:
        """A call as an object: with a name and arguments, or with the name as the name of the arguments."""
        members = self.grammar.members
        gap: Node = WIDE if self.grammar.spread else SPACE
        inner: list[Node] = [WIDE] if self.grammar.spread else []

        def write(tool: Tool) -> Node:
            name = json.dumps(tool.name, ensure_ascii=False)
            if not members:
                return Seq((Text(f"{{{name}:"), SPACE, self.arguments(tool), Text("}")))
            head: list[Node] = [Text("{"), *inner]
            for key in members[:-2]:
                head += [Text(f'"{key}":'), SPACE, Text('"'), DIGITS, Text('",'), gap]
            head += [Text(f'"{members[-2]}":'), SPACE, Text(f"{name},"), gap]
            tail: list[Node] = []
            if id:
                given = Seq((Text(","), SPACE, Text('"id":'), SPACE, Text('"'), _letters(9), Text('"')))
                tail.append(Repeat(given, 0, 1))
            head += [Text(f'"{members[-1]}":'), SPACE, self.arguments(tool)]
            return Seq((*head, *tail, *inner, Text("}")))

        return self.each(write)

    # --- styles -------------------------------------------------------------------------------------

    def _tagged(self, many: bool) -> Node:
        grammar = self.grammar
        close = Seq((BREAK, self.mark(grammar.close))) if grammar.close else Seq(())
        if "<function=" not in grammar.opens:
            item = self._object()
            open = grammar.opens[0]
            if grammar.listed:
                gap = WIDE if grammar.spread else SPACE
                item = self._listed(item, Seq((Text(","), gap)), many)
                inner = (WIDE,) if grammar.spread else ()
                item = Seq((Text("["), *inner, item, *inner, Text("]")))
            elif grammar.lines:
                item = self._listed(item, Text("\n"), many)
            between = () if open.endswith("[") else (BREAK,)
            return Seq((self.mark(open.removesuffix("[")), *between, item, close))

        def write(tool: Tool) -> Node:
            around = (">", "</parameter>") if grammar.tight else (">\n", "\n</parameter>")
            between, stop = around
            arguments = self._values.tagged(tool, "<parameter=", Text(between), stop, Text("\n"))
            return Seq((Text(f"<function={tool.name}>\n"), arguments, Text("</function>")))

        before = Repeat(Seq((self.mark(self.grammar.opens[0]), BREAK)), 0, 1)
        return Seq((before, self.each(write), close))

    def _keys(self, many: bool) -> Node:
        grammar = self.grammar
        begin, behind, end = grammar.inside
        key, end_key, value, end_value = grammar.tags

        def write(tool: Tool) -> Node:
            between = (self.mark(end_key), LINE, self.mark(value))
            arguments = self._values.tagged(tool, key, Seq(between), end_value, LINE)
            head = (self.mark(behind),) if behind else ()
            return Seq((Text(tool.name), *head, LINES, arguments))

        call = Seq((self.mark(begin), self.each(write), self.mark(end)))
        if grammar.close == end:
            return call
        calls = self._listed(self._book.rule(call), LINE, many)
        before = Repeat(Seq((self.mark(grammar.opens[0]), BREAK)), 0, 1)
        return Seq((before, calls, BREAK, self.mark(grammar.close)))

    def _mistral(self, many: bool) -> Node:
        given = Seq((self.mark("[CALL_ID]"), _letters(9)))
        between = Seq((Repeat(given, 0, 1), Repeat(self.mark("[ARGS]"), 0, 1)))
        named = self.each(lambda tool: Seq((Text(tool.name), between, self.arguments(tool))))
        items = self._listed(self._object(id=True), Seq((Text(","), SPACE)), many)
        return Seq((self.mark("[TOOL_CALLS]"), SPACE, Alt((named, Seq((Text("["), items, Text("]")))))))

    def _sections(self, many: bool) -> Node:
        grammar = self.grammar
        outer = grammar.opens[0]
        begin, middle, end = map(self.mark, grammar.inside)
        id: tuple[Node, ...] = ()
        if grammar.identified:
            id = (_letters(10, capitals=False), self.mark(grammar.identified))

        def write(tool: Tool) -> Node:
            if grammar.numbered:
                return Seq((Text(f"functions.{tool.name}:"), DIGITS, middle, self.arguments(tool)))
            plain = Seq((*id, Text(tool.name), middle, self.arguments(tool)))
            if not grammar.fenced:
                return plain
            fence = Text(f"{tool.name}\n```json\n")
            return Alt((plain, Seq((Text("function"), middle, fence, self.arguments(tool), Text("\n```")))))

        call = self._book.rule(Seq((begin, self.each(write), end)))
        if outer == grammar.inside[0]:
            return call
        calls = self._listed(call, LINE, many)
        before = Repeat(Seq((self.mark(outer), BREAK)), 0, 1)
        close = (BREAK, self.mark(grammar.close)) if grammar.close else ()
        return Seq((before, calls, *close))

    def _invokes(self, many: bool) -> Node:
        ways = []
        for open in self.grammar.opens:
            if open == self.grammar.tags[0]:  # each call stands alone
                ways.append(self.each(self.invoke))
                continue
            calls = self._listed(self.each(self.invoke), LINE, many)
            ways.append(Seq((self.mark(open), BREAK, calls, BREAK, self.mark(close_of(self.grammar, open)))))
        return Alt(tuple(ways))

    def invoke(self, tool: Tool) -> Node:
        """A call of a tool in tags with attributes."""
        grammar = self.grammar
        call, parameter, end_parameter, end_call, bracket = grammar.tags
        line = "" if grammar.tight else "\n"
        name = escape(tool.name) if grammar.typed == "type" else tool.name
        head: list[Node] = [self.mark(f'{call}{name}"')]
        if grammar.typed == "type":
            head += [Text(' index="'), DIGITS, Text('"')]
        head += [self.mark(bracket), Text(line)] if line else [self.mark(bracket)]
        if grammar.typed:
            arguments = self._values.attributed(tool, grammar.typed, parameter, bracket, end_parameter, line)
        else:
            wrapping = CDATA if grammar.cdata else None
            between = self.mark(f'"{bracket}')
            arguments = self._values.tagged(tool, parameter, between, end_parameter, Text(line), wrapping)
        return Seq((*head, arguments, self.mark(end_call)))

    def _elements(self, many: bool) -> Node:
        """MiniMax M3's tags, each behind a mark."""
        mark = self.grammar.tags[0]

        def write(tool: Tool) -> Node:
            head, end = self.mark(f'{mark}<invoke name="{tool.name}">'), self.mark(f"{mark}</invoke>")
            return Seq((head, self._values.elements(tool, mark), end))

        calls = self._listed(self.each(write), LINE, many)
        return Seq((self.mark(self.grammar.opens[0]), BREAK, calls, BREAK, self.mark(self.grammar.close)))

    def _dictionary(self, many: bool) -> Node:
        call = self.each(lambda tool: Seq((Text(f"call:{tool.name}"), self.arguments(tool))))
        return Seq((self.mark(self.grammar.opens[0]), call, self.mark(self.grammar.close)))

    def _python(self, many: bool) -> Node:
        call = self.each(lambda tool: Seq((Text(f"{tool.name}("), self._values.keywords(tool), Text(")"))))
        calls = self._listed(call, Seq((Text(","), SPACE)), many)
        return Seq(
            (self.mark(self.grammar.opens[0]), Text("["), calls, Text("]"), self.mark(self.grammar.close))
        )

    def _objects(self, many: bool, bare: bool) -> Node:
        open = self.mark(self.grammar.opens[0])
        calls = self._listed(self._object(), Seq((Text(";"), SPACE)), many)
        return Seq((Repeat(open, 0, 1) if bare else open, calls))


def _letters(n: int, capitals: bool = True) -> Node:
    """An id of ``n`` letters and digits."""
    ranges = ((48, 57), *(((65, 90),) if capitals else ()), (97, 122))
    return Repeat(Chars(ranges), n, n)
