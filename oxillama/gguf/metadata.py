"""Typed reading of metadata values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import numpy as np

from oxillama.base.config.checks import shown
from oxillama.gguf.header import StringArray

T = TypeVar("T")
D = TypeVar("D")

REQUIRED: Any = object()
"""The default of a required key."""

_SCALARS: dict[Any, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, np.floating, int, np.integer),
}
_ARRAY_KINDS: dict[Any, str] = {list[int]: "iu", list[float]: "fiu", list[bool]: "b"}
_NAMES: dict[Any, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    np.ndarray: "an array of numbers",
    list[bool]: "an array of booleans",
    list[int]: "an array of integers",
    list[float]: "an array of numbers",
    list[str]: "an array of strings",
}


class Metadata:
    """The values of a mapping, each checked to be of the requested kind.

    Args:
        values: by key. Numbers, strings, arrays of numbers as NumPy arrays, and arrays of strings as
            `StringArray`, as `ModelFile.metadata` has them. Lists and bytes are taken too.
        error: makes the exception for (key, message).
    """

    def __init__(self, values: Mapping[str, Any], error: Callable[[str, str], Exception]) -> None:
        self.values = values
        self.error = error

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: Any, default: Any = REQUIRED) -> Any:
        """The value of a key as ``kind``; ``default`` (if given) where the key is absent.

        ``kind`` is int (of any width), float (or an integer: some converters write 10000 for 10000.0), bool,
        str, a list of one of these (``list[int]``), or np.ndarray for numbers as stored.

        Raises:
            error: of this object; the key is absent and has no default, or its value is of another kind.
        """
        if key not in self.values:
            if default is REQUIRED:
                raise self.error(key, f"expected {_NAMES[kind]}, got no such key")
            return default
        found = _converted(self.values[key], kind)
        if found is None:
            raise self.error(key, f"expected {_NAMES[kind]}, got {kind_of(self.values[key])}")
        return found

    def numbers(self, key: str, dtypes: tuple[str, ...]) -> np.ndarray | None:
        """An array (n,) of one of these types, None where the key is absent; a list becomes the first."""
        values = self.values.get(key)
        if values is None:
            return None
        wanted = f"expected an array of {' or '.join(dtypes)}"
        if isinstance(values, (list, tuple)):
            kinds = (int, np.integer) if dtypes[0].startswith(("int", "uint")) else (int, float, np.number)
            if not all(isinstance(value, kinds) for value in values):
                raise self.error(key, f"{wanted}, got a list with other elements")
            try:
                values = np.asarray(values, dtype=dtypes[0])
            except OverflowError as error:
                raise self.error(key, f"{wanted}, got a list with larger elements") from error
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.name not in dtypes:
            raise self.error(key, f"{wanted}, got {kind_of(values)}")
        return values


def kind_of(value: Any) -> str:
    """What a value is, for messages: an array's length and type, any other value itself."""
    if isinstance(value, StringArray):
        return f"an array of {len(value)} str"
    if isinstance(value, np.ndarray):
        return f"an array of {' x '.join(map(str, value.shape))} {value.dtype.name}"
    return f"a {type(value).__name__}" if isinstance(value, (list, tuple)) else f"{shown(value):.40}"


def _converted(value: Any, kind: Any) -> Any:
    """``value`` as ``kind``, or None where it is of another kind."""
    if kind in _SCALARS:
        wrong = kind is not bool and isinstance(value, bool)  # a bool is an int to Python
        return kind(value) if isinstance(value, _SCALARS[kind]) and not wrong else None
    if kind is str:
        return _text(value)
    if kind is np.ndarray:
        return value if isinstance(value, np.ndarray) else None
    if kind == list[str]:
        if isinstance(value, StringArray):
            return list(value)
        if not isinstance(value, (list, tuple)):
            return None
        texts = [_text(text) for text in value]
        return None if None in texts else texts
    if not (isinstance(value, np.ndarray) and value.dtype.kind in _ARRAY_KINDS[kind]):
        return None
    return (value.astype(np.float64) if kind == list[float] else value).tolist()


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if type(value) is str else str(value) if isinstance(value, str) else None
