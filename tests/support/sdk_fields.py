"""The fields and values of requests, read from the types that clients' packages publish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel

PLAIN: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: True, object: {}, Any: "x", bytes: "aGk="}
PLAIN[datetime] = "2026-01-01T00:00:00Z"
UNIONS = (Union, UnionType)
DISCRIMINATORS = ("type", "role")


class Sample(NamedTuple):
    """A value of a type, as JSON has it, and the place of what is special in it: ``.text.verbosity=low``."""

    place: str
    value: Any


@cache
def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The fields of a TypedDict or a pydantic model by their names in JSON: type, whether it is required."""
    if not is_typed_dict(kind):
        fields = kind.model_fields.items()
        return {each.alias or name: (each.annotation, each.is_required()) for name, each in fields}
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        alias = next((part.alias for part in _parts(hint) if getattr(part, "alias", None)), name)
        is_required = name in kind.__required_keys__ or get_origin(hint) is Required
        found[alias] = (
            get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint,
            is_required,
        )
    return found


def _parts(hint: Any) -> Iterator[Any]:
    """The annotations of a hint."""
    for part in get_args(hint):
        yield part
        if get_origin(hint) is not Literal:
            yield from _parts(part)


def is_typed_dict(kind: Any) -> bool:
    """Whether a type is a TypedDict, also one of `typing_extensions`."""
    return hasattr(kind, "__required_keys__")


def is_object(kind: Any) -> bool:
    return is_typed_dict(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel))


def label(kind: Any) -> str:
    """The discriminators of an object: ``<type=text>``; "" without one."""
    found = fields_of(kind)
    for name in DISCRIMINATORS:
        if name in found and get_origin(found[name][0]) is Literal and len(get_args(found[name][0])) == 1:
            return f"<{get_args(found[name][0])[0]}>"
    return ""


def samples(kind: Any, skipped: tuple[Any, ...] = ()) -> Iterator[Sample]:
    """A value for each field and each literal of a type, once for each way to it.

    Args:
        skipped: objects that this one is part of, which may be recursive.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        yield Sample("", PLAIN[kind])
    elif origin is Annotated:
        yield from samples(parts[0], skipped)
    elif origin in UNIONS:
        for part in parts:
            if part is not NoneType:
                yield from samples(part, skipped)
    elif origin is Literal:
        yield from (Sample(f"={value}", value) for value in parts)
    elif is_object(kind):
        if kind not in skipped:
            yield from _samples_of_object(kind, (*skipped, kind))
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        for found in samples(parts[1], skipped):
            yield Sample(found.place, {"x": found.value})
    elif origin is not None and parts:  # a list of some kind
        for found in samples(parts[0], skipped):
            yield Sample(found.place, [found.value])
    else:
        yield Sample("", "x")


def _samples_of_object(kind: Any, skipped: tuple[Any, ...]) -> Iterator[Sample]:
    found, mark = fields_of(kind), label(kind)
    base = {name: first(hint, skipped) for name, (hint, required) in found.items() if required}
    if not found:
        yield Sample(mark, {})
    for name, (hint, _) in found.items():
        for inner in samples(hint, skipped):
            yield Sample(f"{mark}.{name}{inner.place}", {**base, name: inner.value})


def first(kind: Any, skipped: tuple[Any, ...] = ()) -> Any:
    """The simplest value of a type."""
    return next(samples(kind, skipped), Sample("", "x")).value
