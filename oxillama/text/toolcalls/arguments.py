"""Conversion of JSON values to the types of a function's annotations."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import json
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any

_OF_TEXT: dict[Any, Any] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
}
_SETS = {set: set, frozenset: frozenset, collections.abc.Set: frozenset}


def converted(value: Any, kind: Any, where: str = "arguments") -> Any:
    """A value in the type of its annotation: an enumeration, dataclass, pydantic model, date, tuple or set.

    Raises:
        ValueError, TypeError: the value does not fit; the message names ``where``. Pydantic raises its own.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return converted(value, args[0], where)
    if origin in (typing.Union, types.UnionType):
        return _of_union(value, args, where)
    if origin is typing.Literal:
        return _one_of(value, args, where)
    if hasattr(kind, "__supertype__"):  # typing.NewType
        return converted(value, kind.__supertype__, where)
    if origin is not None:
        return _of_container(value, origin, args, where)
    if not isinstance(kind, type):
        return value
    if issubclass(kind, enum.Enum):
        return _one_of(value, tuple(kind), where)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if dataclasses.is_dataclass(kind):
        return _made(value, kind, where)
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        return {k: converted(v, hints.get(k, Any), f"{where}.{k}") for k, v in value.items()}
    return _of_scalar(value, kind, where)


def parsed(text: str, schema: Any) -> Any:
    """The value of a JSON text that meets a schema; of the type, if the schema was given as one.

    Raises as `converted`.
    """
    value = json.loads(text)
    return value if isinstance(schema, (str, bytes, bool, Mapping)) else converted(value, schema, "answer")


def _of_scalar(value: Any, kind: type, where: str) -> Any:
    wanted = {str: str, bool: bool, int: int, list: list, dict: dict}.get(kind)
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is decimal.Decimal and isinstance(value, (int, float)) and not isinstance(value, bool):
        return decimal.Decimal(str(value))
    if kind in _OF_TEXT and isinstance(value, str):
        return _OF_TEXT[kind](value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    if kind in (object, type(None)):
        return value
    wrong = wanted is not None and (
        not isinstance(value, wanted) or (kind is int and isinstance(value, bool))
    )
    if wrong or kind in (float, decimal.Decimal, tuple) or kind in _OF_TEXT:
        raise TypeError(f"{where}: expected {kind.__name__}, got {value!r:.80}")
    return value


def _of_container(value: Any, origin: Any, args: tuple[Any, ...], where: str) -> Any:
    if isinstance(value, dict):
        inner = args[1] if len(args) > 1 else Any
        return {key: converted(item, inner, f"{where}.{key}") for key, item in value.items()}
    if not isinstance(value, list):
        raise TypeError(f"{where}: expected {getattr(origin, '__name__', origin)}, got {value!r:.80}")
    if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
        return tuple(converted(item, arg, f"{where}[{i}]") for i, (item, arg) in enumerate(zip(value, args)))
    items = [converted(item, args[0] if args else Any, f"{where}[{i}]") for i, item in enumerate(value)]
    return tuple(items) if origin is tuple else _SETS[origin](items) if origin in _SETS else items


def _of_union(value: Any, args: tuple[Any, ...], where: str) -> Any:
    """The value in the first type that fits; a type that the value already has comes before others."""
    if value is None and type(None) in args:
        return None
    kinds = [arg for arg in args if arg is not type(None)]
    exact = [arg for arg in kinds if isinstance(arg, type) and type(value) is arg]
    errors: list[str] = []
    for kind in (*exact, *kinds):
        try:
            return converted(value, kind, where)
        except (TypeError, ValueError) as error:
            errors.append(str(error))
    raise TypeError("; ".join(errors) or f"{where}: expected another type, got {value!r:.80}")


def _made(value: Any, kind: Any, where: str) -> Any:
    """An object of a dataclass."""
    if not isinstance(value, dict):
        raise TypeError(f"{where}: expected the fields of {kind.__name__}, got {value!r:.80}")
    hints = typing.get_type_hints(kind, include_extras=True)
    return kind(**{k: converted(v, hints.get(k, Any), f"{where}.{k}") for k, v in value.items()})


def _one_of(value: Any, constants: tuple[Any, ...], where: str) -> Any:
    """The constant, or the member of an enumeration, that a JSON value names: 1 is not True."""
    for constant in constants:
        plain = constant.value if isinstance(constant, enum.Enum) else constant
        if value == plain and isinstance(value, bool) == isinstance(plain, bool):
            return constant
    raise ValueError(f"{where}: expected one of {constants!r:.200}, got {value!r:.80}")
