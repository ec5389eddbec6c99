"""What types the parameters of tools have.

In formats of tags, a value's text does not say whether it is a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from oxillama.base.config import checks

ANY = frozenset({"object", "array", "string", "number", "boolean", "null"})


def parameter_schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON schemas of arguments by the names of their tools, which are given as chat templates take them.

    Raises ConfigError for what is no function with a name, inside ``function`` or bare.
    """
    found = {}
    for i, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else tool
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise checks.refuse(f"tools[{i}]", "a function with a name", tool)
        found[function["name"]] = function.get("parameters")
    return found


def types_of(
    schema: Any, root: Any = None, depth: int = 0, known: dict[int, frozenset[str]] | None = None
) -> frozenset[str]:
    """The types that a JSON schema allows, as far as its type, enum, const, $ref, allOf, anyOf and oneOf say.

    Args:
        root: the schema whose parts its references name.
        known: the types of schemas that were asked for before, by their ids.
    """
    if not isinstance(schema, Mapping) or depth > 8:
        return ANY
    known = {} if known is None else known
    if id(schema) in known:
        return known[id(schema)]
    known[id(schema)] = found = ANY  # a schema that refers to itself
    if "type" in schema:
        named = schema["type"]
        names = {name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)}
        found &= frozenset({"number" if name == "integer" else name for name in names}) & ANY or ANY
    if isinstance(schema.get("enum"), list):
        found &= frozenset(map(type_of, schema["enum"]))
    if "const" in schema:
        found &= {type_of(schema["const"])}
    if isinstance(schema.get("$ref"), str):
        found &= types_of(referred(root, schema["$ref"]), root, depth + 1, known)
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            parts = [types_of(part, root, depth + 1, known) for part in schema[key]]
            found &= frozenset.intersection(*parts) if key == "allOf" else frozenset().union(*parts)
    known[id(schema)] = found or ANY
    return known[id(schema)]


def referred(root: Any, reference: str) -> Any:
    """The part of a schema that a reference ``#/$defs/NAME`` names; None if the schema lacks it."""
    if not reference.startswith("#"):
        return None
    found = root
    for step in unquote(reference[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def alternative(schema: Any, kind: str, root: Any, depth: int = 0) -> Mapping[str, Any]:
    """What a schema says of values of one type: itself, what it refers to, or its first part for these."""
    if not isinstance(schema, Mapping) or depth > 8:
        return {}
    if isinstance(schema.get("$ref"), str):
        return alternative(referred(root, schema["$ref"]), kind, root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema[key] if isinstance(schema.get(key), list) else ():
            if kind in types_of(part, root) and types_of(part, root) != ANY:
                return alternative(part, kind, root, depth + 1)
    return schema


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    kinds: tuple[tuple[str, type | tuple[type, ...]], ...] = (
        *(("boolean", bool), ("number", (int, float)), ("string", str), ("array", list)),
        *(("object", dict), ("null", type(None))),
    )
    return next((name for name, kind in kinds if isinstance(value, kind)), "object")


def json_of(text: str, types: frozenset[str]) -> str:
    """A value's text as JSON: as it is where it is JSON of one of the types, else a string of it.

    A text in quotes is read as JSON only if the schema asks for no string.
    """
    try:
        kind = type_of(loads(text))
        if kind in types and kind != "string":
            return text.strip()
    except ValueError:
        pass
    return json.dumps(text, ensure_ascii=False)


def loads(text: str) -> Any:
    """A value by RFC 8259, which has no NaN. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
