"""Grammars of arguments: what a tool's parameters allow, as each format writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from keyword import iskeyword
from typing import Any
from urllib.parse import quote

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.rulebook import SPACE, RuleBook
from oxillama.grammar.rules import Alt, Distinct, Member, Node, Repeat, Rules, Seq, Text
from oxillama.toolcalls.element_calls import ITEM
from oxillama.toolcalls.schemas import types_of

_JSON_LIKE = {
    "null": r"[ \t\n\r]*null[ \t\n\r]*",
    "boolean": r"[ \t\n\r]*(true|false)[ \t\n\r]*",
    "number": r"[ \t\n\r]*-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?[ \t\n\r]*",
    "array": r"[ \t\n\r]*\[[^]*",
    "object": r"[ \t\n\r]*\{[^]*",
}
"""Texts that are read as a value of this type, or may be, as regular expressions."""

_TAGGED = {
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "$comment",
    "title",
    "description",
    "examples",
    "default",
}
_TAGGED |= {"type", "properties", "required", "additionalProperties", "strict"}
"""Keywords of parameters that formats of tags know."""


_PLAIN_OBJECT = _TAGGED
_PLAIN_ARRAY = {"type", "items", "minItems", "maxItems", "title", "description", "examples", "default"}
"""Keywords of objects and of arrays whose parts may stand in tags of their own."""


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


class ValueRules:
    """Writes the rules of arguments into a book.

    Parameters
    ----------
    book : of the grammar.
    delimiter : writes a text that may be made of special tokens.
    mark : the text around strings in the style "dict"; "" for JSON.
    whitespace : in JSON, as `JsonSchemaCompiler` has it.
    """

    def __init__(
        self, book: RuleBook, delimiter: Callable[[str], Node], mark: str = "", whitespace: str = "single"
    ) -> None:
        self._book = book
        self._delimiter = delimiter
        self._mark = mark
        self._compiler = JsonSchemaCompiler(
            open_objects=False, plain_integers=True, any_order=True, mark=mark, whitespace=whitespace
        )
        self._known: dict[str, Node] = {}

    def arguments(self, tool: Tool) -> Node:
        """The arguments as one object. Raises GrammarError, which names the tool."""
        with _named(tool):
            kind = tool.parameters.get("type", "object")
            if kind != "object":
                raise GrammarError(f"parameters: expected an object's schema, got type {kind!r:.80}")
            return self._schema({**tool.parameters, "type": "object"}, tool.strict)

    def tagged(
        self,
        tool: Tool,
        before: str,
        between: Node,
        stop: str,
        after: Node,
        wrapping: tuple[str, str] | None = None,
    ) -> Node:
        """The arguments one by one: ``before``, the key, ``between``, the value, ``stop`` and ``after``.

        Strings stand as they are, or between the texts of ``wrapping``, and all other values in JSON.
        """
        with _named(tool):
            members: dict[str, Node] = {}
            for key in self._keys(tool, ("<", ">", "\n", *before[-1:].strip(">="))):
                value = self._value(tool, key, stop.strip(), wrapping)
                members[key] = self._between(before + key, (between, value), stop, after)
            return self._in_any_order(tool.parameters, members)

    def attributed(
        self, tool: Tool, attribute: str, before: str, bracket: str, stop: str, after: str
    ) -> Node:
        """The same, where an attribute behind the key says whether the value is a string, or its type."""
        with _named(tool):
            members: dict[str, Node] = {}
            end = self._delimiter(f'"{bracket}')
            for key in self._keys(tool, ('"', ">")):
                types = self._types(tool, key)
                string = Seq((end, self._string(tool, key, stop, frozenset({"string"}))))
                ways: list[Node] = []
                if attribute == "string":
                    ways += [Seq((Text("true"), string))] if "string" in types else []
                    if types != {"string"}:
                        ways.append(Seq((Text("false"), end, self._json(tool, key, types))))
                else:
                    for kind in sorted(types - {"string"}):
                        ways.append(Seq((Text(kind), end, self._json(tool, key, frozenset({kind})))))
                    ways += [Seq((Text("string"), string))] if "string" in types else []
                name = escape(key) if attribute == "type" else key
                told = (Text(f'" {attribute}="'), Alt(tuple(ways)))
                members[key] = self._between(before + name, told, stop, Text(after))
            return self._in_any_order(tool.parameters, members)

    def elements(self, tool: Tool, mark: str) -> Node:
        """The arguments in tags that are named as they are, each behind ``mark``; see `element_calls`.

        Objects and arrays that are described by plain keywords stand in tags, too, all others in JSON.
        """
        with _named(tool):
            self._keys(tool, ("<", ">", "\n"))
            return self._members(tool, tool.parameters, mark)

    def _members(self, tool: Tool, schema: Mapping[str, Any], mark: str) -> Node:
        members = {
            key: self._element(tool, part, mark, key)
            for key, part in (schema.get("properties") or {}).items()
        }
        return self._in_any_order(schema, members)

    def _element(self, tool: Tool, schema: Any, mark: str, tag: str) -> Node:
        close = f"{mark}</{tag}>"
        return self._book.rule(
            Seq(
                (
                    self._delimiter(f"{mark}<{tag}>"),
                    self._nested(tool, schema, mark, close),
                    self._delimiter(close),
                )
            )
        )

    def _nested(self, tool: Tool, schema: Any, mark: str, close: str) -> Node:
        """The value of an element."""
        if _is_plain(schema, "object", _PLAIN_OBJECT) and schema.get("properties"):
            return self._members(tool, schema, mark)
        if _is_plain(schema, "array", _PLAIN_ARRAY) and "items" in schema:
            item = self._element(tool, schema["items"], mark, ITEM)
            return Repeat(item, schema.get("minItems", 0), schema.get("maxItems"))
        one = Tool(tool.name, {**tool.parameters, "properties": {tool.name: schema}}, tool.strict)
        types = self._types(one, tool.name)
        begins = (parse_regex(f"{SPACE}*{re.escape(mark)}<[^]*", search=False),) if types - {"string"} else ()
        ways: list[Node] = []
        if "string" in types:
            ways.append(self._string(one, tool.name, close, types, begins))
        if types != {"string"}:
            ways.append(self._json(one, tool.name, types))
        return self._book.rule(Alt(tuple(ways)))

    def keywords(self, tool: Tool) -> Node:
        """The arguments as those of a call in Python, whose values are JSON. Raises GrammarError."""
        with _named(tool):
            if not all(part.isidentifier() and not iskeyword(part) for part in tool.name.split(".")):
                raise GrammarError("expected a name that Python has for this format")
            members: dict[str, Node] = {}
            for key in self._keys(tool, ()):
                if not key.isidentifier() or iskeyword(key):
                    raise GrammarError(f"parameters: expected names that Python has, got {key!r:.80}")
                value = self._schema(_argument(tool, key), tool.strict)
                members[key] = self._book.rule(Seq((Text(f"{key}="), value)))
            comma = Seq((Text(","), Repeat(Text(" "), 0, 1)))
            return self._in_any_order(tool.parameters, members, comma)

    def _between(self, before: str, inner: tuple[Node, ...], stop: str, after: Node) -> Node:
        return self._book.rule(Seq((self._delimiter(before), *inner, self._delimiter(stop), after)))

    # --- one argument -------------------------------------------------------------------------------

    def _keys(self, tool: Tool, forbidden: tuple[str, ...]) -> list[str]:
        """The names of the arguments. Raises GrammarError for what tags cannot express."""
        schema = tool.parameters
        unknown = sorted(set(schema) - _TAGGED) if tool.strict else []
        open_ended = tool.strict and schema.get("additionalProperties") not in (None, False)
        if unknown or open_ended:
            keyword = unknown[0] if unknown else "additionalProperties"
            raise GrammarError(f"parameters: {keyword} cannot be enforced in this format")
        properties = schema.get("properties") or {}
        for key in properties:
            if key != key.strip() or not key or any(text in key for text in forbidden):
                raise GrammarError(f"parameters: expected names that this format can write, got {key!r:.80}")
        for key in schema.get("required") or ():
            if key not in properties:
                raise GrammarError(f"parameters: requires {key!r:.80}, which is not among its properties")
        return list(properties)

    def _types(self, tool: Tool, key: str) -> frozenset[str]:
        """JSON types that the reader of the format takes the value for."""
        return types_of(tool.parameters["properties"][key], tool.parameters)

    def _value(self, tool: Tool, key: str, stop: str, wrapping: tuple[str, str] | None = None) -> Node:
        types = self._types(tool, key)
        ways: list[Node] = []
        if "string" in types and wrapping:
            open, close = wrapping
            wrapped = parse_regex(re.escape(open) + "[^]*", search=False)
            ways.append(self._string(tool, key, stop, types, (wrapped,)))
            inside = self._string(tool, key, close, frozenset({"string"}))
            ways.append(Seq((Text(open), inside, Text(close))))
        elif "string" in types:
            ways.append(self._string(tool, key, stop, types))
        if types != {"string"}:
            ways.append(self._json(tool, key, types))
        return self._book.rule(Alt(tuple(ways)))

    def _string(
        self, tool: Tool, key: str, stop: str, types: frozenset[str], absent: tuple[Node, ...] = ()
    ) -> Node:
        """Strings as they are; not those that would be read as a value of another type, or are ``absent``."""
        like = [parse_regex(_JSON_LIKE[kind], search=False) for kind in sorted(types - {"string"})]
        boxes = self._compiler.strings(_argument(tool, key), tool.strict)
        return Alt(tuple(box.without_text(stop, frozenset((*like, *absent))) for box in boxes))

    def _json(self, tool: Tool, key: str, types: frozenset[str]) -> Node:
        """Values in JSON that are no strings."""
        argument = _argument(tool, key)
        return self._schema({"allOf": [argument], "type": sorted(types - {"string"})}, tool.strict)

    def _schema(self, schema: Mapping[str, Any], strict: bool) -> Node:
        key = json.dumps([schema, strict], sort_keys=False)
        if key not in self._known:
            rules = self._compiler.compile(schema, strict)
            if self._mark:
                marked = {name: self._with_marks(node) for name, node in rules.rules.items()}
                rules = Rules(rules.root, marked)
            self._known[key] = self._book.include(rules)
        return self._known[key]

    def _with_marks(self, node: Node) -> Node:
        """A node whose marks around strings may be special tokens."""
        if isinstance(node, Text) and self._mark in node.text:
            return self._delimiter(node.text)
        if isinstance(node, (Seq, Alt)):
            return type(node)(tuple(map(self._with_marks, node.items)))
        if isinstance(node, Repeat):
            return Repeat(self._with_marks(node.item), node.least, node.most)
        return node

    # --- their order --------------------------------------------------------------------------------

    @staticmethod
    def _in_any_order(
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


class _named:
    """Puts the name of a tool before the message of a GrammarError."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, GrammarError):
            raise GrammarError(f"tool {self._tool.name}: {error}") from error


def _argument(tool: Tool, key: str) -> Mapping[str, Any]:
    """The schema of one argument; one that refers to others stands inside a copy of the whole."""
    parameters = tool.parameters
    found, head = parameters["properties"][key], {}
    if "$schema" in parameters:
        head = {"$schema": parameters["$schema"]}
    if not _refers(found):
        return {**head, "allOf": [found]}
    pointer = quote(key.replace("~", "~0").replace("/", "~1"))
    resource = {"$id": "tool:parameters", **parameters}
    return {**head, "$defs": {"tool": resource}, "$ref": f"{resource['$id']}#/properties/{pointer}"}


def _is_plain(schema: Any, kind: str, keywords: set[str]) -> bool:
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
