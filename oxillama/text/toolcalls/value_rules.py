"""Grammars of arguments: what a tool's parameters allow, by their JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from oxillama.errors import GrammarError
from oxillama.text.grammar.analysis import rebuilt
from oxillama.text.grammar.grammar_text import errors_under
from oxillama.text.grammar.json_schema import JsonSchemaCompiler
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rulebook import RuleBook
from oxillama.text.grammar.rules import Alt, Chars, Distinct, Member, Node, Repeat, Rules, Seq, Text, Tokens
from oxillama.text.grammar.schema.strings import without_text
from oxillama.text.toolcalls.parameters import (
    ENFORCED,
    OF_MEMBERS,
    Tool,
    Value,
    is_object,
    refers,
    takes_others,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

BREAK = Repeat(Chars(((10, 10), (32, 32))), 0, 2)
"""White space between the parts of a call."""
SPACE = Repeat(Text(" "), 0, 1)
"""White space in JSON."""
WIDE = Repeat(Chars(((10, 10), (32, 32))), 0, 10)
"""White space between the lines of a list of calls."""
DIGITS = Repeat(Chars(((48, 57),)), 1, 3)
LETTERS = ((48, 57), (65, 90), (97, 122))
_JSON_LIKE = {
    "null": r"[ \t\n\r]*null[ \t\n\r]*",
    "boolean": r"[ \t\n\r]*(true|false)[ \t\n\r]*",
    "number": r"[ \t\n\r]*-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?[ \t\n\r]*",
    "array": r"[ \t\n\r]*\[[^]*",
    "object": r"[ \t\n\r]*\{[^]*",
}
"""Texts that are parsed as a value of this type, or may be, as regular expressions."""


class ValueRules:
    """Writes the rules of patterns and of arguments into a book.

    Args:
        book: of the grammar.
        grammar: the format.
        special: ids of the special tokens that delimiters may be made of, by their texts.
    """

    def __init__(self, book: RuleBook, grammar: ToolCallGrammar, special: Mapping[str, int]) -> None:
        self.book = book
        self.grammar = grammar
        self._special = special
        self._schemas: dict[str, Any] = {}  # parameters, by the addresses of their tools
        self._compiler = JsonSchemaCompiler(
            open_objects=False,
            plain_integers=True,
            any_order=True,
            mark=grammar.quote,
            registry=self._schemas,
            whitespace="flexible" if grammar.spread else "single",
        )
        self._known: dict[str, Node] = {}

    # --- patterns -----------------------------------------------------------------------------------

    def mark(self, text: str) -> Node:
        """A delimiter: its text, or the special tokens that are spelled so."""
        texts = sorted(map(re.escape, self._special), key=len, reverse=True)
        pieces = re.split(f"({'|'.join(texts)})", text) if texts else [text]
        items = [
            Alt((Text(one), Tokens((self._special[one],)))) if one in self._special else Text(one)
            for one in filter(None, pieces)
        ]
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def written(self, parts: Sequence[str], words: Mapping[str, Node | str]) -> Node:
        """Parts of a pattern, with the replacement of each word."""
        known: dict[str, Node | str] = {
            "~": WIDE if self.grammar.spread else SPACE if parts[0][0] in "{,;" else BREAK,
            "$number": DIGITS,
            "$kind": "function",
            "$id": Repeat(Chars(LETTERS), 9, 9),
            "$code": Repeat(Chars((LETTERS[0], LETTERS[2])), 10, 10),
            **words,
        }
        items: list[Node] = []
        for part in parts:
            node = known.get(part)
            if isinstance(node, str):
                node = Text(escape(node) if self.grammar.escaped else node)
            items.append(self.mark(part) if node is None else node)
        return Seq(tuple(items))

    # --- arguments ----------------------------------------------------------------------------------

    def arguments(self, tool: Tool) -> Node:
        """All arguments as one object. Raises GrammarError, which names the tool."""
        with errors_under(f"tool {tool.name}"):
            if not is_object(tool.parameters):
                got = f"type {tool.parameters['type']!r:.80}"
                raise GrammarError(f"parameters: expected an object's schema, got {got}")
            return self._schema({**tool.parameters, "type": "object"}, tool.strict)

    def each(
        self,
        tool: Tool,
        writable: Callable[[str], bool],
        others: str,
        write: Callable[[str | Node, Value], Node],
        separator: Node | None = None,
    ) -> Node:
        """The arguments one by one, in any order: each at most once, and those that the schema requires.

        Args:
            writable: whether the format can write the name of a parameter.
            others: a regular expression of names that the schema does not list and the format can write.
                These may repeat: the last value counts, as in JSON.
            write: writes an argument, by its name or the node of its names.

        Raises GrammarError, which names the tool, also for keywords that cannot be enforced so.
        """
        with errors_under(f"tool {tool.name}"):
            schema = tool.parameters
            self._schemas[tool.address] = schema
            unknown = sorted(ENFORCED.intersection(schema) - OF_MEMBERS - {"type"}) if tool.strict else []
            if unknown:
                raise GrammarError(f"parameters: {unknown[0]} cannot be enforced in this format")
            places = tool.listed()
            listed = {key: tool.value(*places[key]) for key in places if tool.is_possible(places[key])}
            for key in listed:
                if key != key.strip() or not key or not writable(key):
                    wanted = "names that this format can write"
                    raise GrammarError(f"parameters: expected {wanted}, got {key!r:.80}")
            for key in schema.get("required") or ():
                if key not in listed:
                    raise GrammarError(f"parameters: requires {key!r:.80}, which is not among its properties")
            known = {key: write(key, value) for key, value in listed.items()}
            try:
                kinds = tool.others(others)
            except GrammarError:
                if tool.strict:
                    raise
                kinds = []
            more = [write(kind.automaton(), tool.value(*at)) for kind, at in kinds]
            return in_any_order(schema, known, separator, more)

    def string(
        self, tool: Tool, value: Value, stop: str, types: frozenset[str], absent: Sequence[str] = ()
    ) -> Node:
        """Strings as they are, without ``stop``; not those that would be parsed as a value of another type.

        Args:
            types: JSON types that the parser takes the text for.
            absent: regular expressions of further texts that they are not.
        """
        like = [*(_JSON_LIKE[kind] for kind in sorted(types - {"string"})), *absent]
        without = frozenset(parse_regex(text, search=False) for text in like)
        conjuncts = self._compiler.strings(value.schema, tool.strict)
        return Alt(tuple(without_text(conjunct, stop, without) for conjunct in conjuncts))

    def json(self, tool: Tool, value: Value, types: frozenset[str] | None = None) -> Node:
        """Values in JSON; with ``types``, only values of these types, without strings."""
        schema = value.schema
        if types is not None:
            schema = {"allOf": [schema], "type": sorted(types - {"string"})}
        return self._schema(schema, tool.strict)

    def _schema(self, schema: Mapping[str, Any], strict: bool) -> Node:
        key = json.dumps([schema, strict], sort_keys=False)
        if key not in self._known:
            rules = self._compiler.compile(schema, strict)
            if self.grammar.quote:
                marked = {name: self._with_marks(node) for name, node in rules.rules.items()}
                rules = Rules(rules.root, marked)
            self._known[key] = self.book.include(rules)
        return self._known[key]

    def _with_marks(self, node: Node) -> Node:
        """A node whose marks around strings may be special tokens."""
        if isinstance(node, Text) and self.grammar.quote in node.text:
            return self.mark(node.text)
        return node if isinstance(node, Distinct) else rebuilt(node, self._with_marks)


def in_any_order(
    parameters: Mapping[str, Any],
    members: Mapping[str, Node],
    separator: Node | None = None,
    others: Sequence[Node] = (),
) -> Node:
    """Each member at most once, and those that the schema requires; ``others`` any number of times."""
    required = frozenset(parameters.get("required") or ())
    known = sorted(members, key=lambda key: key not in required)
    place = [Member(members[key], "mark", mark=i) for i, key in enumerate(known)]
    place += [Member(node, "nothing") for node in others]
    if not place:
        return Seq(())
    needed = tuple([members[key] for key in known if key in required])
    found = Distinct((tuple(place),), (True,), separator, marks=len(needed), needed=needed)
    return found if needed else Alt((Seq(()), found))


def is_plain(schema: Any, kind: str, keywords: frozenset[str]) -> bool:
    """Whether a schema is one of an object or array, by some keywords only, which refers to no other."""
    if not isinstance(schema, Mapping) or schema.get("type") != kind or refers(schema):
        return False
    properties = schema.get("properties", {})
    names = properties if isinstance(properties, Mapping) else ()
    required = schema.get("required") or ()
    is_closed = not takes_others(schema) and set(required) <= set(names)
    is_written = all(key and key == key.strip() and is_tag(key) for key in names)
    return is_closed and is_written and ENFORCED.intersection(schema) <= keywords


def is_tag(name: str) -> bool:
    """Whether a name can begin a tag."""
    return not set("<>\n").intersection(name) and not name.startswith("/")
