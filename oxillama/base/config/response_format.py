"""OpenAI's `response_format`: the field of `SamplerConfig` that each form of it comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oxillama.base.config import checks
from oxillama.errors import ConfigError

NAME = "response_format"
TYPES = ("text", "json_object", "json_schema", "structural_tag")

FORMS: dict[str, frozenset[str]] = {
    "text": frozenset(),
    "json_object": frozenset({"schema"}),  # llama-server's way
    "json_schema": frozenset({"json_schema", "schema"}),
    "structural_tag": frozenset({"format", "structures", "triggers"}),
}
"""The other keys that each type may have."""


def constraint_of(wanted: Any) -> dict[str, Any]:
    """What a response format asks for.

    Args:
        wanted: ``{"type": "text"}``, ``{"type": "json_object"}``, ``{"type": "json_schema", "json_schema":
            {...}}`` with ``name``, ``schema`` and ``strict``, or ``{"type": "structural_tag", ...}`` with the
            keys of one.

    Returns:
        dict: the field ``json_schema`` or ``structural_tag``; empty for "text".

    Raises:
        ConfigError: it has another form; the message names the key.
    """
    if not isinstance(wanted, Mapping):
        raise checks.refuse(NAME, f"an object with a type, one of {', '.join(TYPES)}", wanted)
    kind = wanted.get("type")
    if not isinstance(kind, str) or kind not in FORMS:
        raise checks.refuse(f"{NAME}.type", f"one of {', '.join(TYPES)}", kind)
    given = {key: value for key, value in wanted.items() if value is not None and key != "type"}
    _check_keys(NAME, given, FORMS[kind], f" for {kind}")
    if kind == "text":
        return {}
    if kind == "structural_tag":
        return {"structural_tag": dict(wanted)}
    if kind == "json_object":
        return {"json_schema": _schema(f"{NAME}.schema", given.get("schema", {"type": "object"}))}
    if len(given) != 1:
        found = "both json_schema and schema" if given else "none"
        raise ConfigError(f"{NAME}.json_schema: expected a schema, got {found}")
    if "schema" in given:
        return {"json_schema": _schema(f"{NAME}.schema", given["schema"])}
    return {"json_schema": _named_schema(given["json_schema"])}


def _named_schema(form: Any) -> Any:
    """The schema of OpenAI's object; it is enforced whether or not ``strict`` is set."""
    name = f"{NAME}.json_schema"
    if not isinstance(form, Mapping):
        raise checks.refuse(name, "an object with a schema", form)
    given = {key: value for key, value in form.items() if value is not None}
    _check_keys(name, given, frozenset({"name", "description", "schema", "strict"}))
    for key in ("name", "description"):
        if not isinstance(given.get(key, ""), str):
            raise checks.refuse(f"{name}.{key}", "a string", given[key])
    checks.boolean(f"{name}.strict", given.get("strict", False))
    return _schema(f"{name}.schema", given.get("schema", True))


def _check_keys(name: str, given: Mapping[Any, Any], known: frozenset[str], what: str = "") -> None:
    for key in given:
        if key not in known:
            wanted = ", ".join(sorted(known)) or "no other key"
            raise ConfigError(f"{name}: expected {wanted}{what}, got {checks.shown(key)}")


def _schema(name: str, schema: Any) -> Any:
    if not isinstance(schema, (Mapping, bool)):
        raise checks.refuse(name, "a JSON schema as an object or a boolean", schema)
    return schema


def same_constraint(one: Any, other: Any) -> bool:
    """Whether two values of a constraint say the same; the order of an object's keys counts."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        try:
            return json.dumps(one) == json.dumps(other)
        except (TypeError, ValueError, RecursionError):
            return False
    return type(one) is type(other) and bool(one == other)
