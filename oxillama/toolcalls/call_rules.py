"""Grammars of calls, for each style of `toolcalls/formats.py`: what `toolcalls/syntax.py` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from oxillama.grammar.rulebook import RuleBook
from oxillama.grammar.rules import Alt, Chars, Node, Repeat, Seq, Text, Tokens
from oxillama.toolcalls.formats import ToolCallGrammar
from oxillama.toolcalls.tag_calls import mark_of
from oxillama.toolcalls.value_rules import Tool, ValueRules

BREAK = Repeat(Chars(((10, 10), (32, 32))), 0, 2)
"""White space between the parts of a call."""
SPACE = Repeat(Text(" "), 0, 1)
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
        self._values = ValueRules(book, self.mark, grammar.quote)

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

    def _object(self, key: str, id: bool = False) -> Node:
        """A call as an object with a name and arguments."""

        def write(tool: Tool) -> Node:
            name = json.dumps(tool.name, ensure_ascii=False)
            head: list[Node] = [Text('{"name":'), SPACE, Text(f"{name},"), SPACE, Text(f'"{key}":'), SPACE]
            tail: list[Node] = []
            if id:
                digits = Repeat(Chars(((48, 57), (65, 90), (97, 122))), 9, 9)
                given = Seq((Text(","), SPACE, Text('"id":'), SPACE, Text('"'), digits, Text('"')))
                tail.append(Repeat(given, 0, 1))
            return Seq((*head, self.arguments(tool), *tail, Text("}")))

        return self.each(write)

    # --- styles -------------------------------------------------------------------------------------

    def _tagged(self, many: bool) -> Node:
        grammar = self.grammar
        close = Seq((BREAK, self.mark(grammar.close))) if grammar.close else Seq(())
        if "<function=" not in grammar.opens:
            item = self._object("arguments")
            if grammar.listed:
                item = Seq((Text("["), self._listed(item, Seq((Text(","), SPACE)), many), Text("]")))
            return Seq((self.mark(grammar.opens[0]), BREAK, item, close))

        def write(tool: Tool) -> Node:
            around = (">", "</parameter>") if grammar.tight else (">\n", "\n</parameter>")
            arguments = self._values.tagged(tool, "<parameter=", *around, "\n")
            return Seq((Text(f"<function={tool.name}>\n"), arguments, Text("</function>")))

        before = Repeat(Seq((self.mark(self.grammar.opens[0]), BREAK)), 0, 1)
        return Seq((before, self.each(write), close))

    def _keys(self, many: bool) -> Node:
        def write(tool: Tool) -> Node:
            between = "</arg_key>\n<arg_value>"
            arguments = self._values.tagged(tool, "<arg_key>", between, "</arg_value>", "\n")
            return Seq((Text(tool.name), Repeat(Text("\n"), 0, 1), arguments))

        return Seq((self.mark(self.grammar.opens[0]), self.each(write), self.mark(self.grammar.close)))

    def _mistral(self, many: bool) -> Node:
        given = Seq((self.mark("[CALL_ID]"), Repeat(Chars(((48, 57), (65, 90), (97, 122))), 9, 9)))
        between = Seq((Repeat(given, 0, 1), Repeat(self.mark("[ARGS]"), 0, 1)))
        named = self.each(lambda tool: Seq((Text(tool.name), between, self.arguments(tool))))
        items = self._listed(self._object("arguments", id=True), Seq((Text(","), SPACE)), many)
        return Seq((self.mark("[TOOL_CALLS]"), SPACE, Alt((named, Seq((Text("["), items, Text("]")))))))

    def _sections(self, many: bool) -> Node:
        outer, begin = self.grammar.opens
        _, middle, end = map(self.mark, self.grammar.inside)

        def write(tool: Tool) -> Node:
            if self.grammar.numbered:
                number = Repeat(Chars(((48, 57),)), 1, 3)
                return Seq((Text(f"functions.{tool.name}:"), number, middle, self.arguments(tool)))
            plain = Seq((Text(tool.name), middle, self.arguments(tool)))
            fence = Text(f"{tool.name}\n```json\n")
            return Alt((plain, Seq((Text("function"), middle, fence, self.arguments(tool), Text("\n```")))))

        call = self._book.rule(Seq((self.mark(begin), self.each(write), end)))
        calls = self._listed(call, Repeat(Text("\n"), 0, 1), many)
        before = Repeat(Seq((self.mark(outer), BREAK)), 0, 1)
        return Seq((before, calls, BREAK, self.mark(self.grammar.close)))

    def _invokes(self, many: bool) -> Node:
        ways = []
        for open in self.grammar.opens:
            space = mark_of(open)

            def write(tool: Tool, space: str = space) -> Node:
                before, stop = f'<{space}parameter name="', f"</{space}parameter>"
                if space:
                    arguments = self._values.attributed(tool, before, stop, "\n")
                else:
                    arguments = self._values.tagged(tool, before, '">', stop, "\n")
                return Seq((self.mark(f'<{space}invoke name="{tool.name}">\n'), arguments))

            call = Seq((self.each(write), self.mark(f"</{space}invoke>")))
            calls = self._listed(self._book.rule(call), Repeat(Text("\n"), 0, 1), many)
            ways.append(Seq((self.mark(open), BREAK, calls, BREAK, self.mark(f"</{open[1:]}"))))
        return Alt(tuple(ways))

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
        calls = self._listed(self._object("parameters"), Seq((Text(";"), SPACE)), many)
        return Seq((Repeat(open, 0, 1) if bare else open, calls))
