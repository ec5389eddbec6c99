"""JSON schemas of Python types: dataclasses, `TypedDict`s, enumerations, annotations of builtin types.

Classes that provide their own schema are called for it (`model_json_schema` of pydantic's models,
`json_schema` of its type adapters). In `Annotated`, a mapping adds keywords, ``Annotated[int, {"minimum":
0}]``, and a text is the description.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError

_SIMPLE: dict[object, dict[str, object]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    decimal.Decimal: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    Any: {},
    object: {},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
}
_ARRAYS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS = (set, frozenset, collections.abc.Set)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
MAX_TYPES = 1_000
_PYDANTIC = ("pydantic", "pydantic_core", "annotated_types")


def schema_of_type(kind: object) -> object:
    """The JSON schema of a type.

    Raises:
        GrammarError: a type has no JSON schema, or its annotations cannot be resolved.
    """
    for method in ("model_json_schema", "json_schema"):
        ask = getattr(kind, method, None)
        if callable(ask):
            return ask()
    converter = _Converter()
    schema = converter.schema(kind)
    return {**schema, "$defs": converter.definitions} if converter.definitions else schema


def schema_of_arguments(hints: Mapping[str, object], required: list[str]) -> dict[str, Any]:
    """The JSON schema of an object with one property for each annotation.

    Raises:
        GrammarError: a type has no JSON schema.
    """
    converter = _Converter()
    properties = {name: converter.schema(hint) for name, hint in hints.items()}
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {**schema, "$defs": converter.definitions} if converter.definitions else schema


class _Converter:
    """Converts types; classes with fields become definitions, so that they may refer to themselves."""

    def __init__(self) -> None:
        self.definitions: dict[str, object] = {}
        self.names: dict[object, str] = {}

    def schema(self, kind: object) -> dict[str, object]:
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin is None:
            return self.plain(kind)
        if origin is typing.Annotated:
            if any(type(extra).__module__.partition(".")[0] in _PYDANTIC for extra in args[1:]):
                return self.of_pydantic(kind)
            added = [extra for extra in args[1:] if isinstance(extra, Mapping)]
            added += [{"description": extra} for extra in args[1:] if isinstance(extra, str)]
            return {key: value for part in (self.schema(args[0]), *added) for key, value in part.items()}
        if origin is typing.Literal:
            return {"enum": [self.constant(value) for value in args]}
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.schema(arg) for arg in args]}
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return {"type": "array", "items": self.schema(args[0])}
            items = [self.schema(arg) for arg in args]
            fixed = {"type": "array", "items": False, "minItems": len(items)}
            return {**fixed, "prefixItems": items} if items else {"type": "array", "maxItems": 0}
        if origin in _ARRAYS:
            return {"type": "array", "items": self.schema(args[0])}
        if origin in _SETS:
            return {"type": "array", "items": self.schema(args[0]), "uniqueItems": True}
        if origin in _MAPPINGS and args[0] is str:
            return {"type": "object", "additionalProperties": self.schema(args[1])}
        raise GrammarError(f"schema: no JSON schema is known for the type {kind}")

    def plain(self, kind: object) -> dict[str, object]:
        """The schema of a type without arguments."""
        if isinstance(kind, collections.abc.Hashable) and kind in _SIMPLE:
            return dict(_SIMPLE[kind])
        if hasattr(kind, "__supertype__"):  # typing.NewType
            return self.schema(kind.__supertype__)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [self.constant(member) for member in kind]}
        ask = getattr(kind, "model_json_schema", None)
        if callable(ask):
            return self.embedded(kind, ask())
        if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)):
            return self.record(kind)
        raise GrammarError(f"schema: no JSON schema is known for {shown(kind):.80}")

    def constant(self, value: object) -> object:
        if isinstance(value, enum.Enum):
            value = value.value
        if value is not None and not isinstance(value, (str, int, float, bool)):
            raise GrammarError(f"schema: expected a constant of JSON, got {shown(value):.80}")
        return value

    def embedded(self, kind: object, schema: dict[str, object]) -> dict[str, object]:
        """The schema that a class provides, as its own resource: its references are relative to itself."""
        if kind not in self.names:
            self.names[kind] = self.new_name(kind)
            self.definitions[self.names[kind]] = {"$id": f"type:{self.names[kind]}", **schema}
        return {"$ref": f"#/$defs/{self.names[kind]}"}

    def of_pydantic(self, kind: Any) -> dict[str, object]:
        """The schema of an annotation with pydantic fields or constraints, made by pydantic itself."""
        from pydantic import TypeAdapter

        schema = TypeAdapter(kind).json_schema()
        found = self.embedded(("annotated", len(self.names)), schema)
        return {**found, "description": schema["description"]} if "description" in schema else found

    def record(self, kind: type) -> dict[str, object]:
        """The schema of a class with fields."""
        if kind not in self.names:
            self.names[kind] = self.new_name(kind)
            try:
                hints = typing.get_type_hints(kind, include_extras=True)
            except (NameError, TypeError) as error:
                reason = str(error)
                if "unhashable" in reason:  # typing hashes the parts of a union
                    reason += "; a union of Annotated[A, {...}] is written Annotated[A | B, {...}]"
                raise GrammarError(
                    f"schema: the annotations of {kind.__name__} are unknown: {reason}"
                ) from None
            fields, required = _fields(kind, hints)
            self.definitions[self.names[kind]] = {
                "type": "object",
                "properties": {name: self.schema(_bare(hints[name])) for name in fields},
                "required": required,
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{self.names[kind]}"}

    def new_name(self, kind: object) -> str:
        if len(self.names) >= MAX_TYPES:
            raise GrammarError(f"schema: more than {MAX_TYPES} types")
        name = getattr(kind, "__name__", "type")
        return name if name not in self.names.values() else f"{name}-{len(self.names)}"


def _fields(kind: type, hints: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """The names of a class's fields, and the names of its required fields."""
    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if field.init]
        missing = dataclasses.MISSING
        must = [f.name for f in fields if f.default is missing and f.default_factory is missing]
        return [f.name for f in fields], must
    required = getattr(kind, "__required_keys__", frozenset(hints))
    return list(hints), [name for name in hints if name in required]


def _bare(hint: object) -> object:
    """A TypedDict's annotation without `Required` or `NotRequired`."""
    origin = typing.get_origin(hint)
    name = getattr(origin, "__name__", getattr(origin, "_name", ""))
    return typing.get_args(hint)[0] if name in ("Required", "NotRequired", "ReadOnly") else hint
