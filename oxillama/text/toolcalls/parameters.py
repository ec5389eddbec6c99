"""The parameters of a tool: those that its JSON schema lists, and the others that the schema allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from oxillama.errors import GrammarError
from oxillama.text.grammar.dfa import language
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.schema.dialects import UNDECLARED
from oxillama.text.grammar.schema.references import pointer_step
from oxillama.text.grammar.schema.strings import Strings
from oxillama.text.toolcalls.schemas import types_of

ENFORCED = UNDECLARED.keywords - {"$defs", "definitions"}
"""Keywords that restrict values. All others are annotations (JSON Schema 2020-12, Core, section 6.5)."""
OF_MEMBERS = frozenset({"properties", "patternProperties", "required", "additionalProperties"})
MOST_PATTERNS = 8
"""Patterns of names in the schema of a tool whose arguments are written one by one."""

Steps = tuple[str, ...]
"""The keys that lead from a schema to one of its parts."""


@dataclass(frozen=True)
class Value:
    """What a value may be.

    Attributes:
        schema: JSON schema. References to other parts of a tool's schema begin with the tool's address.
        types: JSON types that the parser takes the value's text for.
    """

    schema: Mapping[str, Any]
    types: frozenset[str]


@dataclass(frozen=True)
class Tool:
    """A tool as the grammar needs it.

    Attributes:
        name: of the tool.
        parameters: JSON schema of its arguments, an object's.
        strict: what cannot be enforced is an error.
    """

    name: str
    parameters: Mapping[str, Any]
    strict: bool = True

    @classmethod
    def of(cls, function: Mapping[str, Any]) -> Tool:
        """The tool of a function definition in the form of chat templates; parameters may be missing.

        A schema that does not say which members its object has allows no member.
        """
        schema = function.get("parameters") or {}
        says = ENFORCED.intersection(schema) - {"type"}
        if is_object(schema) and not any(_is_given(schema, key) for key in says):
            schema = {"type": "object", "properties": {}, "additionalProperties": False}
        return cls(function["name"], schema, function.get("strict") is not False)

    @property
    def address(self) -> str:
        """The address of the parameters' schema."""
        return f"tool:{quote(self.name, safe='')}"

    def value(self, *places: Steps) -> Value:
        """A value that meets the parts of the schema at all of these places."""
        parts = [part_at(self.parameters, steps) for steps in places]
        types = types_of({"allOf": parts}, self.parameters)
        if any(map(refers, parts)):
            pointers = ["".join(f"/{quote(pointer_step(step))}" for step in steps) for steps in places]
            return Value({"allOf": [{"$ref": f"{self.address}#{each}"} for each in pointers]}, types)
        head = {"$schema": self.parameters["$schema"]} if "$schema" in self.parameters else {}
        return Value({**head, "allOf": parts} if parts else head, types)

    def listed(self) -> dict[str, list[Steps]]:
        """The places of what each listed parameter may be, by its name."""
        return {name: places_of(self.parameters, name) for name in names_of(self.parameters)}

    def is_possible(self, places: Sequence[Steps]) -> bool:
        """Whether none of the schemas at these places is ``false``."""
        return all(part_at(self.parameters, steps) is not False for steps in places)

    def others(self, writable: str) -> list[tuple[Strings, list[Steps]]]:
        """Names of parameters beside the listed ones, as sets, each with the places of what these may be.

        ``writable`` is a regular expression of the names that the format can write. Raises GrammarError for a
        pattern that is no regular expression, or if there are too many.
        """
        schema, listed = self.parameters, frozenset(self.listed())
        patterns = list(mapping(schema, "patternProperties"))
        if len(patterns) > MOST_PATTERNS:
            raise GrammarError(f"parameters: expected at most {MOST_PATTERNS} patternProperties, got more")
        names = Strings(patterns=frozenset({parse_regex(writable, search=False)}), excluded=listed)
        found = [(list[Steps](), names)] if takes_others(schema) else []
        for pattern in patterns:
            node, step = parse_regex(pattern, search=True), ("patternProperties", pattern)
            split = [
                each
                for steps, names in found
                for each in (
                    (steps, names._replace(absent=names.absent | {node})),
                    ([*steps, step], names._replace(patterns=names.patterns | {node})),
                )
            ]
            found = [(steps, names) for steps, names in split if not names.is_empty()]
        rest = [("additionalProperties",)] if _is_given(schema, "additionalProperties") else []
        is_open = schema.get("additionalProperties") is not False and bool(rest or not listed)
        kinds = [(names, steps or list(rest)) for steps, names in found if steps or is_open]
        return [(names, steps) for names, steps in kinds if self.is_possible(steps)]


def names_of(schema: Mapping[str, Any]) -> list[str]:
    """The names of members that an object's schema lists; names that it requires, if it takes others."""
    required = schema.get("required") if takes_others(schema) else ()
    return list(dict.fromkeys((*mapping(schema, "properties"), *(required or ()))))


def places_of(schema: Any, key: str) -> list[Steps]:
    """The places in an object's schema that say what the member ``key`` may be."""
    found: list[Steps] = [("properties", key)] if key in mapping(schema, "properties") else []
    for pattern in mapping(schema, "patternProperties"):
        try:
            if language(parse_regex(pattern, search=True)).accepts(key):
                found.append(("patternProperties", pattern))
        except GrammarError:  # a schema that is not enforced
            continue
    return found or ([("additionalProperties",)] if _is_given(schema, "additionalProperties") else [])


def member(schema: Any, key: str) -> Any:
    """The schema of an object's member."""
    parts = [part_at(schema, steps) for steps in places_of(schema, key)]
    return parts[0] if len(parts) == 1 else {"allOf": parts} if parts else {}


def part_at(schema: Any, steps: Steps) -> Any:
    """The part of a schema at a place."""
    for step in steps:
        schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    return schema


def mapping(schema: Any, keyword: str) -> Mapping[str, Any]:
    """The schemas under a keyword that names schemas; {} without the keyword."""
    found = schema.get(keyword) if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def takes_others(schema: Any) -> bool:
    """Whether an object by this schema may have members that the schema does not list."""
    return bool(mapping(schema, "patternProperties")) or _is_given(schema, "additionalProperties")


def is_object(schema: Mapping[str, Any]) -> bool:
    """Whether a schema has the type of an object, or no type."""
    kind = schema.get("type", "object")
    return "object" in kind if isinstance(kind, list) else bool(kind == "object")


def refers(schema: Any) -> bool:
    """Whether a schema refers to others."""
    if isinstance(schema, Mapping):
        return any(key.endswith(("$ref", "Ref")) or refers(value) for key, value in schema.items())
    return isinstance(schema, (list, tuple)) and any(map(refers, schema))


def _is_given(schema: Any, key: str) -> bool:
    """Whether a keyword of an object's members says something: it is not empty, and allows members."""
    value = schema.get(key) if isinstance(schema, Mapping) else None
    return value is not None and (value is not False if key == "additionalProperties" else bool(value))
