"""The codec of snapshots, receipts and options: dataclasses to plain data and arrays, and back with checks.

Plain data are dicts, lists, text, numbers, booleans and None, which JSON holds without loss. A field's type
defines how its value is encoded, and which values decoding accepts:

    int, float              a number; ``Annotated[int, (low, high)]`` has a range
    bool, str               unchanged; ``Annotated[str, ("a", "b")]`` is one of the values,
                            ``Annotated[str, 64]`` has 64 hexadecimal digits,
                            ``Annotated[str, ANY_TEXT]`` may contain lone surrogates
    bytes                   hexadecimal digits; ``Annotated[bytes, 32]`` has 32 bytes
    list[T], tuple[T, ...]  a list; ``Annotated[list[int], TOKENS]`` has token ids
    tuple[A, B], NamedTuple a list of as many values
    a dataclass             a dict of its fields; fields without a default are required
    np.ndarray              ``Annotated[np.ndarray, "<f4", 2]``: its shape. The numbers are stored apart from
                            the plain data, named by the path to the field, joined by dots
    T | None                None, or as T
    other types             unchanged; a path becomes text

`Hooks` override the encoding of named fields. A class may check more than types when it is constructed.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from oxillama.base.config import checks
from oxillama.errors import ConfigError

T = TypeVar("T")
Plain = dict[str, Any]
ANY_TEXT, TOKENS = "text", "token ids"

Hook = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""Encodes and decodes a field's values other than None."""
Hooks = Mapping[str, Hook | None]
"""Hooks by field name. Fields with None in place of a hook are left out; decoding refuses them."""
NO_HOOKS: Hooks = {}

ReadArray = Callable[[str, str, tuple[int, ...]], np.ndarray]
"""Returns the array with a name, dtype and shape."""


def encode(
    kind: Any,
    value: Any,
    hooks: Hooks = NO_HOOKS,
    arrays: dict[str, np.ndarray] | None = None,
    name: str = "",
) -> Any:
    """Encode a value of a type as plain data; adds its arrays to ``arrays``."""
    kind, rules = _resolved(kind)
    if value is None:
        return None
    if kind is float:
        return float(value)
    if kind is bytes:
        return value.hex()
    if kind is np.ndarray and arrays is not None:
        arrays[name] = np.ascontiguousarray(value, rules[0])
        return list(value.shape)
    if _is_dataclass(kind):
        found = {}
        for field, of in _kinds(kind).items():
            part, hook = getattr(value, field), hooks.get(field)
            if field not in hooks:
                found[field] = encode(of, part, hooks, arrays, f"{name}.{field}".lstrip("."))
            elif hook is not None:
                found[field] = None if part is None else hook[0](part)
        return found
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, (list, tuple)):
        return [encode(of, item, hooks) for of, item in zip(_items(kind, len(value)), value)]
    return value


def decode(
    kind: Callable[..., T],
    plain: Any,
    hooks: Hooks = NO_HOOKS,
    array: ReadArray | None = None,
    name: str = "",
) -> T:
    """Decode plain data to a value of a type, with checks.

    Args:
        array: returns the arrays.
        name: the value's name in messages.

    Raises:
        ConfigError: the data are not such a value; the message names the path to the error. Also the errors
            of hooks, of ``array``, and of the constructed classes.
    """
    found: T = _decoded(kind, plain, hooks, array, name)
    return found


def _decoded(kind: Any, plain: Any, hooks: Hooks, array: ReadArray | None, name: str) -> Any:
    optional = type(None) in get_args(kind)
    kind, rules = _resolved(kind)
    if kind is Any or (plain is None and optional):
        return plain
    if kind is np.ndarray:
        assert array is not None
        shape = [checks.integer(name, n, 0, checks.INT_MAX) for n in checks.instance(name, plain, list)]
        if len(shape) != rules[1]:
            raise checks.refuse(name, f"a shape of {rules[1]} numbers", plain)
        return array(name.replace(": ", "."), rules[0], tuple(shape))
    if _is_dataclass(kind):
        return plain if isinstance(plain, kind) else _made(kind, plain, hooks, array, name)
    origin = get_origin(kind) or kind
    if origin in (list, tuple) or _is_named_tuple(kind):
        listed = (
            plain if isinstance(plain, tuple) and origin is not list else checks.instance(name, plain, list)
        )
        if rules == (TOKENS,):
            if not all(type(token) is int and 0 <= token < 2**31 for token in listed):
                raise checks.refuse(name, TOKENS, listed)
            return list(listed)
        of, item_rules = _resolved(get_args(kind)[0]) if origin is list and get_args(kind) else (None, ())
        if of in (int, str):  # long lists: look up the check only once
            checked = CHECKS[of]
            return [checked(name, item, *item_rules) for item in listed]
        wanted = _items(kind, len(listed))
        if len(wanted) != len(listed):
            raise checks.refuse(name, f"{len(wanted)} values", plain)
        items = [_decoded(of, item, hooks, array, name) for of, item in zip(wanted, listed)]
        return kind(*items) if _is_named_tuple(kind) else origin(items)
    check = CHECKS.get(origin)
    if check is not None:
        return check(name, plain, *rules)
    return tuple(plain) if isinstance(plain, list) and kind is Union else plain


def _made(kind: Any, plain: Any, hooks: Hooks, array: ReadArray | None, name: str) -> Any:
    """Decode a dataclass from a dict of its fields."""
    if not isinstance(plain, dict):
        raise ConfigError(f"{name}: expected a {kind.__name__}, got {type(plain).__name__}")
    before, found = f"{name}: " if name else "", {}
    kinds = {field: of for field, of in _kinds(kind).items() if hooks.get(field, ()) is not None}
    for key in plain:
        if key not in kinds:
            raise ConfigError(f"{before}{checks.shown(key)}: no such field")
    for field in fields(kind):
        if field.name in plain:
            part, hook = plain[field.name], hooks.get(field.name)
            if hook is not None:
                found[field.name] = None if part is None else hook[1](part)
            else:
                found[field.name] = _decoded(kinds[field.name], part, hooks, array, before + field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{before}{field.name!r}: is missing")
    return kind(**found)


def check_fields(value: Any) -> None:
    """Raise ConfigError unless the fields of a dataclass have values that `decode` would return.

    Fields of bytes and arrays are not supported.
    """
    of: Any = type(value)
    for field, kind in _kinds(of).items():
        _decoded(kind, getattr(value, field), NO_HOOKS, None, field)


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises ValueError or RecursionError if the text is not JSON, or contains NaN, an infinity or an object
    with duplicate keys, which other parsers would read differently.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key occurs twice")
        return found

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no number of JSON")

    return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)


# --- types ----------------------------------------------------------------------------------------------


@functools.cache
def _kinds(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


@functools.cache
def _resolved(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without None, and its annotation rules; `Union` if several types remain."""
    if get_origin(kind) in (Union, UnionType):
        kinds = [of for of in get_args(kind) if of is not type(None)]
        return _resolved(kinds[0]) if len(kinds) == 1 else (Union, ())
    if get_origin(kind) is Annotated:
        kind, *rules = get_args(kind)
        return kind, tuple(rules)
    return kind, ()


def _is_dataclass(kind: Any) -> bool:
    return hasattr(kind, "__dataclass_fields__")


def _is_named_tuple(kind: Any) -> bool:
    return hasattr(kind, "_fields")


def _items(kind: Any, n: int) -> list[Any]:
    """The types of the items of a list of ``n`` items."""
    if _is_named_tuple(kind):
        return list(get_type_hints(kind).values())
    of = get_args(kind)
    if get_origin(kind) is tuple and of[-1:] != (...,):
        return list(of)
    return [of[0] if of else Any] * n


def _integer(name: str, value: Any, bounds: tuple[float, float] = (-math.inf, math.inf)) -> int:
    return checks.integer(name, value, *bounds)


def _number(name: str, value: Any) -> float:
    return float(checks.number(name, value))


def _text(name: str, value: Any, rule: Any = None) -> str:
    if isinstance(rule, tuple):
        return checks.one_of(name, value, rule)
    if isinstance(rule, int):
        if not isinstance(value, str) or not re.fullmatch(rf"[0-9a-f]{{{rule}}}", value):
            raise checks.refuse(name, f"{rule} hexadecimal digits", value)
        return value
    found: str = checks.instance(name, value, str)
    return found if rule == ANY_TEXT else checks.encodable(name, value)


def _bytes(name: str, value: Any, n: int | None = None) -> bytes:
    try:
        found = bytes.fromhex(checks.instance(name, value, str))
    except ValueError as error:
        raise ConfigError(f"{name}: expected hexadecimal digits: {error}") from None
    if n is not None and len(found) != n:
        raise checks.refuse(name, f"{n} bytes", found)
    return found


def _dict(name: str, value: Any) -> Plain:
    found: Plain = checks.instance(name, value, dict)
    return found


CHECKS: dict[Any, Callable[..., Any]] = {
    int: _integer, float: _number, bool: checks.boolean, str: _text, bytes: _bytes, dict: _dict,
}  # fmt: skip
"""Checks of values that are not composed of others: called with (name, value, *rules)."""
