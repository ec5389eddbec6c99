"""Locates errors in a schema: the path of the schema, and the keyword."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from oxillama._kernels.grammar.nodes import references
from oxillama.text.grammar.rules import Node, Ref
from oxillama.text.grammar.schema.conditions import Choice, Condition, State, ordered
from oxillama.text.grammar.schema.references import Schema

# Keywords whose subschemas apply to the same value.
SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
# If a reason names no keyword: a word of the reason -> keywords that it may be about.
_NUMBERS = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const")
SUSPECTS: dict[str, tuple[str, ...]] = {
    "number": _NUMBERS,
    "regex": ("pattern", "patternProperties", "format", "enum", "const"),
    "automaton": ("pattern", "format", "patternProperties", "enum", "const"),
    "arrays": ("contains", "uniqueItems", "minItems", "maxItems", "items", "prefixItems"),
    "objects": ("minProperties", "maxProperties", "properties", "required"),
    "properties": ("patternProperties", "propertyNames", "additionalProperties", "properties"),
    "combinations": ("oneOf", "anyOf", "allOf", "not", "if", "uniqueItems"),
    "apart": ("uniqueItems", "maxProperties", "minProperties"),
    "deeply": ("uniqueItems",),
    "alternatives": ("oneOf", "anyOf", "allOf", "not", "if"),
}


def located(state: State, path: str, reason: str) -> str:
    """A reason with the path to the keyword that it is probably about.

    Args:
        state: the state whose rule was being written.
        path: path of the state's first schema. A reason that begins with another path is returned unchanged.
    """
    rest = reason.removeprefix(f"{path}: ").removeprefix("schema: ")
    if rest == reason and re.match(r"\S*#", reason):
        return reason
    named = [rest.partition(":")[0], *re.findall(r"\b[a-z]+[A-Z][A-Za-z]*", rest)]
    words = re.findall(r"[a-z]+", rest)
    wanted = [*named, *(word for key, found in SUSPECTS.items() if key in words for word in found)]
    for word in wanted:
        for schema in _of(ordered(state)):
            if word in schema.words and not word.startswith("$"):
                return f"{schema.path}/{word}: {rest}"
    return f"{path}: {rest}"


def unmet(root: Node, bodies: Mapping[str, Node], states: Mapping[str, State], productive: set[str]) -> str:
    """Why no text matches the root: names the innermost schemas that no value meets.

    Args:
        root: the node of the root rule.
        bodies: the rules by name. ``states``: the states of the rules, by name.
        productive: the names of the rules that match some text.
    """
    name, seen = "", set()
    found: str | None = root.name if isinstance(root, Ref) else None
    while found is not None:
        name = found
        seen.add(name)
        refs = [one for one in references(bodies[name]) if one not in productive and one not in seen]
        found = next((one for one in refs if one in states), refs[0] if refs else None)
    for schema in _of(ordered(states.get(name, frozenset()))):
        if isinstance(schema.value, dict):
            words = [word for word in schema.value if word in schema.words]
            return f"{schema.path}: no value meets {', '.join(words)}" + " together" * (len(words) > 1)
        return f"{schema.path}: no value meets false"
    return "#: no value meets the schema"


def _of(conditions: list[Condition]) -> Iterator[Schema]:
    """The schemas of conditions, and their subschemas that apply to the same value."""
    todo: list[Condition | Schema] = list(conditions)
    for one in todo:  # `todo` grows during the loop
        if isinstance(one, Condition):
            todo += one.what.options if isinstance(one.what, Choice) else [one.what]
        else:
            yield one
            todo += [below for keys, below in one.below.items() if keys[0] in SAME_VALUE]
