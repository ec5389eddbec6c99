"""Grammars of arguments: what a tool's parameters allow, by their JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.rulebook import RuleBook
from oxillama.grammar.rules import Alt, Chars, Distinct, Member, Node, Repeat, Rules, Seq, Text, Tokens
from oxillama.toolcalls.schemas import types_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oxillama.toolcalls.tool_grammar import ToolCallGrammar

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
_NOTES = {"title", "description", "examples", "default"}
OBJECT_KEYWORDS = {"$schema", "$id", "$defs", "definitions", "$comment", "strict"} | _NOTES
OBJECT_KEYWORDS |= {"type", "properties", "required", "additionalProperties"}
"""Keywords of parameters that formats of tags know."""
ARRAY_KEYWORDS = {"type", "items", "minItems", "maxItems"} | _NOTES
"""Keywords of arrays whose items may stand in tags of their own."""


@dataclass(frozen=True)
class Tool:
    """A tool as the grammar needs it.

    Attributes
    ----------
    name : of the tool.
    parameters : JSON schema of its arguments, an object's.
    strict : what cannot be enforced is an error.
    """

    name: str
    parameters: Mapping[str, Any]
    strict: bool = True

    @classmethod
    def of(cls, function: Mapping[str, Any]) -> Tool:
        """Of a function as chat templates take it. One that tells of no parameters takes none."""
        schema = function.get("parameters") or {}
        named = set(schema) - {"$schema", "type", "title", "description", "additionalProperties"}
        is_open = bool(schema.get("additionalProperties"))
        if (
            schema.get("type", "object") == "object"
            and not is_open
            and not (named - {"properties", "required"} or schema.get("properties") or schema.get("required"))
        ):
            schema = {"type": "object", "properties": {}, "additionalProperties": False}
        return cls(function["name"], schema, function.get("strict") is not False)

    def argument(self, key: str) -> Mapping[str, Any]:
        """The schema of one argument; one that refers to others stands inside a copy of the whole."""
        found, head = self.parameters["properties"][key], {}
        if "$schema" in self.parameters:
            head = {"$schema": self.parameters["$schema"]}
        if not _refers(found):
            return {**head, "allOf": [found]}
        pointer = quote(key.replace("~", "~0").replace("/", "~1"))
        resource = {"$id": "tool:parameters", **self.parameters}
        return {**head, "$defs": {"tool": resource}, "$ref": f"{resource['$id']}#/properties/{pointer}"}

    def with_argument(self, schema: Any) -> Tool:
        """The same tool with one argument, of its own name."""
        return Tool(self.name, {**self.parameters, "properties": {self.name: schema}}, self.strict)


class ValueRules:
    """Writes the rules of patterns and of arguments into a book.

    Parameters
    ----------
    book : of the grammar.
    grammar : the format.
    special : ids of the special tokens that delimiters may be made of, by their texts.
    """

    def __init__(self, book: RuleBook, grammar: ToolCallGrammar, special: Mapping[str, int]) -> None:
        self.book = book
        self.grammar = grammar
        self._special = special
        self._compiler = JsonSchemaCompiler(
            open_objects=False,
            plain_integers=True,
            any_order=True,
            mark=grammar.quote,
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
        """Parts of a pattern, with what stands in the place of each word."""
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
        with named(tool):
            kind = tool.parameters.get("type", "object")
            if kind != "object":
                raise GrammarError(f"parameters: expected an object's schema, got type {kind!r:.80}")
            return self._schema({**tool.parameters, "type": "object"}, tool.strict)

    def each(self, tool: Tool, writable: Callable[[str], bool], write: Callable[[str], Node],
             separator: Node | None = None) -> Node:  # fmt: skip
        """The arguments one by one, in any order: each at most once, and those that the schema requires.

        ``writable`` says whether the format can write a name. Raises GrammarError, which names the tool, also
        for keywords that cannot be enforced so.
        """
        with named(tool):
            schema = tool.parameters
            unknown = sorted(set(schema) - OBJECT_KEYWORDS) if tool.strict else []
            if unknown or (tool.strict and schema.get("additionalProperties") not in (None, False)):
                keyword = unknown[0] if unknown else "additionalProperties"
                raise GrammarError(f"parameters: {keyword} cannot be enforced in this format")
            properties = schema.get("properties") or {}
            for key in properties:
                if key != key.strip() or not key or not writable(key):
                    wanted = "names that this format can write"
                    raise GrammarError(f"parameters: expected {wanted}, got {key!r:.80}")
            for key in schema.get("required") or ():
                if key not in properties:
                    raise GrammarError(f"parameters: requires {key!r:.80}, which is not among its properties")
            return in_any_order(schema, {key: write(key) for key in properties}, separator)

    def types(self, tool: Tool, key: str) -> frozenset[str]:
        """JSON types that the parser takes the value for."""
        return types_of(tool.parameters["properties"][key], tool.parameters)

    def string(
        self, tool: Tool, key: str, stop: str, types: frozenset[str], absent: Sequence[str] = ()
    ) -> Node:
        """Strings as they are, without ``stop``; not those that would be parsed as a value of another type.

        ``absent`` : regular expressions of further texts that they are not.
        """
        like = [*(_JSON_LIKE[kind] for kind in sorted(types - {"string"})), *absent]
        without = frozenset(parse_regex(text, search=False) for text in like)
        conjuncts = self._compiler.strings(tool.argument(key), tool.strict)
        return Alt(tuple(conjunct.without_text(stop, without) for conjunct in conjuncts))

    def json(self, tool: Tool, key: str, types: frozenset[str] | None = None) -> Node:
        """Values in JSON; with ``types`` those of these types that are no strings."""
        schema = tool.argument(key)
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
        if isinstance(node, (Seq, Alt)):
            return type(node)(tuple(map(self._with_marks, node.items)))
        if isinstance(node, Repeat):
            return Repeat(self._with_marks(node.item), node.least, node.most)
        return node


def in_any_order(
    parameters: Mapping[str, Any], members: Mapping[str, Node], separator: Node | None = None
) -> Node:
    """Each member at most once, and those that the schema requires."""
    required = frozenset(parameters.get("required") or ())
    known = sorted(members, key=lambda key: key not in required)
    if not known:
        return Seq(())
    place = tuple([Member(members[key], "mark", mark=i) for i, key in enumerate(known)])
    needed = tuple([members[key] for key in known if key in required])
    found = Distinct((place,), (True,), separator, marks=len(needed), needed=needed)
    return found if needed else Alt((Seq(()), found))


@contextmanager
def named(tool: Tool) -> Iterator[None]:
    """Puts the name of a tool before the message of a GrammarError."""
    try:
        yield
    except GrammarError as error:
        raise GrammarError(f"tool {tool.name}: {error}") from error


def is_plain(schema: Any, kind: str, keywords: set[str]) -> bool:
    """Whether a schema is one of an object or array, by some keywords only, which refers to no other."""
    if not isinstance(schema, Mapping) or schema.get("type") != kind or _refers(schema):
        return False
    properties = schema.get("properties", {})
    names = properties if isinstance(properties, Mapping) else ()
    written = all(key and key == key.strip() and not set("<>\n").intersection(key) for key in names)
    closed = schema.get("additionalProperties") in (None, False)
    required = schema.get("required") or ()
    return written and closed and not set(schema) - keywords and set(required) <= set(names)


def _refers(schema: Any) -> bool:
    """Whether a schema refers to others."""
    if isinstance(schema, Mapping):
        return any(key.endswith(("$ref", "Ref")) or _refers(value) for key, value in schema.items())
    return isinstance(schema, (list, tuple)) and any(map(_refers, schema))
