"""Checks of single options, with one form of message: ``name: expected X, got Y``.

NumPy's scalars and arrays are as good as Python's numbers and lists; bools are no numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sized
from numbers import Integral, Real
from typing import Any

from oxillama.errors import ConfigError

FLOAT_MAX = 3.4e38
"""The largest finite float32, rounded down."""
INT_MAX = 2**31 - 1
MAX_SEED = 2**64 - 1
MOST_ITEMS = 2**22
"""Values in a collection: a range may stand for more than there is memory for."""
MOST_SHOWN = 300
"""Characters of a wrong value in a message."""
NO_DECODE_WAIT = 1e9  # milliseconds: as good as no limit, in a number that JSON can express
ABOVE_ZERO = math.nextafter(0.0, 1.0)
BELOW_ONE = math.nextafter(1.0, 0.0)


def refuse(name: str, expected: str, value: object) -> ConfigError:
    """The error for an option that has a wrong value."""
    return ConfigError(f"{name}: expected {expected}, got {shown(value)}")


def expecting(
    expected: str, is_good: Callable[[Any], object], make: Callable[[Any], Any] = lambda value: value
) -> Callable[[str, Any], Any]:
    """A check: what ``make`` makes of a good value, and ConfigError for others."""

    def check(name: str, value: Any) -> Any:
        if not is_good(value):
            raise refuse(name, expected, value)
        return make(value)

    return check


def shown(value: object) -> str:
    """The beginning of what ``repr`` says; the type where ``repr`` fails, or gives an address in memory."""
    try:
        text = repr(value)
    except Exception:
        text = " at 0x"
    if " at 0x" in text and not isinstance(value, (str, bytes)):
        return f"a {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def integer(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> int:
    """``value`` as an int within [low, high]. Raises ConfigError."""
    if not _is(Integral, value) or not low <= value <= high:
        raise refuse(name, f"an integer{_range(low, high)}", value)
    return int(value)


def number(name: str, value: Any, low: float = -FLOAT_MAX, high: float = FLOAT_MAX) -> float:
    """``value`` as a float, or an int if it is one, within [low, high]. Raises ConfigError."""
    if not _is(Real, value) or not low <= value <= high:
        raise refuse(name, f"a number{_range(low, high)}", value)
    return int(value) if _is(Integral, value) else float(value)


def boolean(name: str, value: Any) -> bool:
    """``value`` if it is True or False. Raises ConfigError."""
    if not isinstance(value, bool):
        raise refuse(name, "True or False", value)
    return value


def encodable(name: str, value: Any) -> str:
    """``value`` if it is text that UTF-8 can express. Raises ConfigError."""
    try:
        instance(name, value, str).encode()
    except UnicodeEncodeError:
        raise refuse(name, "text that UTF-8 can express", value) from None
    return str(value)


def one_of(name: str, value: Any, names: Collection[str]) -> str:
    """``value`` if it is among ``names``. Raises ConfigError."""
    if not isinstance(value, str) or value not in names:
        raise refuse(name, f"one of {', '.join(names)}", value)
    return value


def path(name: str, value: Any, words: Collection[str] = ()) -> Any:
    """``value`` if it is a path or, as text, one of ``words``. Raises ConfigError."""
    if not isinstance(value, (str, os.PathLike)):
        listed = ", ".join(f'"{word}"' for word in words)
        raise refuse(name, f"{listed} or a path" if words else "a path", value)
    return value


def instance(name: str, value: Any, kind: type) -> Any:
    """``value`` if it is a ``kind``. Raises ConfigError."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")
    return value


def is_token(value: Any) -> bool:
    """Whether ``value`` can be a token id."""
    return _is(Integral, value) and 0 <= value < 2**31


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """``value``, an array or any collection of token ids, as a tuple of ints. Raises ConfigError."""
    found = items(value)
    if found is None or not all(map(is_token, found)):
        raise refuse(name, "token ids", value)
    return tuple(map(int, found))


def texts(name: str, value: Any, *, empty: bool) -> tuple[str, ...]:
    """``value``, a list or tuple of strings, as a tuple; ``empty`` says whether "" may be one. Raises
    ConfigError."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(t, str) and (t or empty) for t in value):
        raise refuse(name, "strings" if empty else "strings that are not empty", value)
    return tuple(value)


def items(value: Any) -> list[Any] | None:
    """What an array or a collection holds; None for text, bytes, mappings and single values."""
    if hasattr(value, "tolist"):  # an array: NumPy is not imported for the sake of options
        value = value.tolist()
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Collection):
        return None
    return list(value) if length(value) <= MOST_ITEMS else None


def length(value: Sized) -> float:
    """How much a collection holds; inf for a range that is longer than Python can say."""
    try:
        return len(value)
    except OverflowError:
        return math.inf


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _range(low: float, high: float) -> str:
    """The bounds of a range in words."""
    above = "" if low in (-math.inf, -FLOAT_MAX) else "> 0" if low == ABOVE_ZERO else f">= {low:.20g}"
    below = "" if high in (math.inf, FLOAT_MAX) else "< 1" if high == BELOW_ONE else f"<= {high:.20g}"
    return "".join(f" {bound}" for bound in (above, "and" if above and below else "", below) if bound)
