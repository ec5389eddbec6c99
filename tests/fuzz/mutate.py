"""What hostile inputs are made of: JSON values, so that one mutator and one minimizer serve all targets.

What JSON cannot hold, or only at length, is written as an object of one key: ``{"@repeat": [text, n]}``,
``{"@nest": [key, n, inner]}`` (key null: lists), ``{"@bytes": hex}``, ``{"@array": [dtype, values]}``,
``{"@tuple": values}``, ``{"@set": values}``, ``{"@object": 0}``. `built` makes the values.
"""

from __future__ import annotations

import copy
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np

Path = tuple[Any, ...]
MOST_PATHS = 3000


def words(text: str) -> list[str]:
    """A list that is written as one text."""
    return text.split()


class SkipInput(Exception):
    """An input that describes nothing which can be built."""


NONSENSE = (
    TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError, struct.error,
)  # fmt: skip
"""What building from an input raises that describes nothing."""


@contextmanager
def skipping() -> Iterator[None]:
    """Raises SkipInput in place of `NONSENSE`."""
    try:
        yield
    except NONSENSE as error:
        raise SkipInput(str(error)) from None


INTEGERS = [0, 1, -1, 2, 3, 7, 8, 31, 32, 33, 64, 255, 256, 1000, 65535, 2**20, 2**31 - 1, 2**31, -(2**31)]
INTEGERS += [2**32 - 1, 2**32, 2**53, 2**61, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, 10**30]
FLOATS = [0.0, -0.0, 0.5, 1.0, -1.5, 1e-320, 1e-45, 1e-9, 3.4e38, 1e39, 1e308, -1e308]
FLOATS += [float("inf"), float("-inf"), float("nan")]
STRINGS: list[Any] = [
    "", " ", "a", "\0", "\n", "\ud800", "\udcff", "\u00e9", "\U0001f999", "\ufeff", "\u2028", "the fox",
    "None", "../../x", "http://[", "#", "$ref", "{}", "[", "(", "(?:", "%s", "{{", "<|im_start|>", "<s>",
    "__class__", "0", "-1", "1e999", "a" * 40, {"@repeat": ["a", 5000]}, {"@repeat": ["(", 3000]},
    {"@repeat": ["\U0001f999", 999]},
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, [], {}, [[]], [None], {"a": 1}, {"": {}}, ["a", 1], {"@nest": ["a", 60, 1]},
    {"@nest": [None, 60, 1]}, {"@nest": ["a", 4000, 1]}, {"@nest": [None, 4000, 1]},
]  # fmt: skip
STRANGE: list[Any] = [
    {"@bytes": ""}, {"@bytes": "00ff"}, {"@tuple": []}, {"@tuple": [1, 2]}, {"@tuple": ["a", ""]},
    {"@set": [1]},
    {"@object": 0}, {"@array": ["int64", [1, 2]]}, {"@array": ["float32", [1.5]]}, {"@array": ["int32", []]},
    {"@array": ["bool", [True]]}, {"@array": ["int64", [[1, 2]]]}, {"@array": ["object", ["a"]]},
]  # fmt: skip
"""Python values that are no JSON."""


def built(value: Any) -> Any:
    """The value that an input describes."""
    if isinstance(value, list):
        return [built(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, what), *_ = value.items()
        if key.startswith("@"):
            with skipping():
                return _special(key, what)
    return {key: built(item) for key, item in value.items()}


def _special(key: str, what: Any) -> Any:
    if key == "@repeat":
        text, n = what
        return str(text) * min(int(n), 10**6)
    if key == "@nest":
        name, n, inner = what
        inner = built(inner)
        for _ in range(min(int(n), 10**4)):
            inner = [inner] if name is None else {str(name): inner}
        return inner
    if key == "@bytes":
        return bytes.fromhex(what)
    if key == "@array":
        with np.errstate(all="ignore"):
            return np.array(built(what[1])).astype(what[0]) if what[1] else np.array([], what[0])
    if key in ("@tuple", "@set"):
        return {"@tuple": tuple, "@set": set}[key](built(what))
    return object()


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where the parts of a value are, itself first."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*path, index))


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def replaced(value: Any, path: Path, new: Any) -> Any:
    """``value``, changed in place, or ``new`` for the empty path."""
    if not path:
        return new
    at(value, path[:-1])[path[-1]] = new
    return value


def hostile(rng: Random, old: Any = None, strange: bool = False) -> Any:
    """A value to put where ``old`` is: half the time of its kind."""
    kind = rng.random()
    if isinstance(old, bool) and kind < 0.5:
        return not old
    if isinstance(old, (int, float)) and kind < 0.7:
        if kind < 0.2:
            return old + rng.choice([-1, 1, 2, -2, 0.5, old])
        return rng.choice(INTEGERS if isinstance(old, int) else FLOATS)
    if isinstance(old, str) and kind < 0.6:
        return mutated_text(old, rng) if kind < 0.4 else copy.deepcopy(rng.choice(STRINGS))
    pool = rng.choice([INTEGERS, FLOATS, STRINGS, ODD, STRANGE if strange else ODD])
    return copy.deepcopy(rng.choice(pool))


def mutated(
    value: Any,
    rng: Random,
    *,
    keys: Sequence[str] = (),
    values: Sequence[Any] = (),
    donors: Sequence[Any] = (),
    fixed: Sequence[str] = (),
    strange: bool = False,
    times: int = 4,
) -> Any:
    """A copy of ``value`` with one change or some.

    Args:
        keys: names of object keys that mean something.
        values: values that mean something.
        donors: other inputs, of which parts are taken.
        fixed: keys at the top that are left alone.
        strange: whether Python values that are no JSON may come in.
    """
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, times])):
        places = [p for p, _ in zip(paths(value), range(MOST_PATHS)) if p and p[0] not in fixed]
        if not places:
            return value
        top = [p for p in places if len(p) <= 3]  # long lists of tokens would have it all
        path = rng.choice(top if top and rng.random() < 0.5 else places)
        old, parent, how = at(value, path), at(value, path[:-1]), rng.random()
        if how < 0.45:
            new = (
                copy.deepcopy(rng.choice(values))
                if values and rng.random() < 0.4
                else hostile(rng, old, strange)
            )
            replaced(value, path, new)
        elif how < 0.57:
            del parent[path[-1]]
        elif how < 0.67:
            other = rng.choice(donors) if donors and rng.random() < 0.5 else value
            spots = [p for p, _ in zip(paths(other), range(MOST_PATHS)) if p]
            if spots:
                replaced(value, path, copy.deepcopy(at(other, rng.choice(spots))))
        elif how < 0.8 and keys:
            inside = old if isinstance(old, dict) else parent if isinstance(parent, dict) else None
            if inside is not None:
                values_inside = list(inside.values())
                kin = rng.choice(values_inside) if values_inside and rng.random() < 0.4 else None
                fresh = (
                    copy.deepcopy(rng.choice(values))
                    if values and rng.random() < 0.6
                    else hostile(rng, kin, strange)
                )
                inside[rng.choice(keys)] = (
                    copy.deepcopy(kin) if kin is not None and rng.random() < 0.5 else fresh
                )
        elif how < 0.9 and isinstance(parent, list):
            n = rng.choice([1, 1, 2, 30])
            parent[path[-1] : path[-1]] = [copy.deepcopy(old) for _ in range(n)]
        elif how < 0.95 and isinstance(parent, list) and len(parent) > 1:
            other_index = rng.randrange(len(parent))
            parent[path[-1]], parent[other_index] = parent[other_index], parent[path[-1]]
        else:
            wrapped = rng.choice(
                [[copy.deepcopy(old)], {rng.choice(list(keys) or ["a"]): copy.deepcopy(old)}]
            )
            replaced(value, path, wrapped)
    return value


TOKEN = re.compile(r"\w+|\s+|\W")


def mutated_text(text: str, rng: Random, words: Sequence[str] = (), times: int = 4) -> str:
    """A text with tokens left out, repeated, exchanged or put in; ``words`` are those that mean something."""
    parts = TOKEN.findall(text)
    for _ in range(rng.choice([1, 1, 2, times])):
        index, how = rng.randrange(len(parts) + 1), rng.random()
        end = index + rng.choice([1, 1, 1, 2, 3, 8])
        if how < 0.2:
            del parts[index:end]
        elif how < 0.4:
            parts[index:index] = parts[index:end] * rng.choice([1, 1, 2, 3, 50])
        elif how < 0.5 and len(parts) > 1:
            i, j = rng.randrange(len(parts)), rng.randrange(len(parts))
            parts[i], parts[j] = parts[j], parts[i]
        elif how < 0.9:
            new = rng.choice(words) if words and rng.random() < 0.8 else rng.choice(ODD_PIECES)
            parts[index : end if rng.random() < 0.5 else index] = [new]
        else:
            start = rng.randrange(len(parts) + 1)
            parts[index:index] = parts[start : start + 12]
        if sum(map(len, parts)) > 20_000:
            break
    return "".join(parts)


ODD_PIECES = [
    "\0", "\n", " ", "\\", "'", '"', "(", ")", "[", "]", "{", "}", "<", ">", "|", "*", "+", "?", "-", "^",
]  # fmt: skip
ODD_PIECES += [
    "0", "1", "99999", "4294967296", "-1", "a", "\u00e9", "\U0001f999", "\ud800", "\\u0000", "\x80", "%",
]  # fmt: skip


EXTREMES = [
    "-1", "0", "1e999", "-1e999", "9" * 400, "18446744073709551616", "2147483648", "1e-400", "NaN", "true",
]  # fmt: skip
EXTREMES += ["null", '"1"', "[]", "{}", "0.5", "-9223372036854775809", "1" + "0" * 5000]
NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
KEY = re.compile(rb'"[^"\\]*"\s*:')


def edits(rng: Random) -> list[list[Any]]:
    """Changes of bytes, whatever these are: [kind, where, ...], for `edited`."""
    found: list[list[Any]] = []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.choice([rng.randrange(64), rng.randrange(1000), rng.randrange(2**31)])
        n = rng.choice([1, 1, 2, 4, 8, 60])
        found.append(
            rng.choice(
                [
                    ["flip", at, rng.randrange(8)],
                    ["put", at, rng.randbytes(rng.choice([1, 2, 8])).hex()],
                    ["drop", at, n],
                    ["cut", at],
                    ["splice", at, rng.randrange(2**31), n],
                    ["number", at, rng.choice(EXTREMES)],
                    ["key", at, rng.choice(EXTREMES)],
                    ["no key", at],
                ]
            )
        )
    return found


def edited(data: bytes, changes: Any) -> bytes:
    """The bytes after changes by `edits`: places are taken modulo the length, or the count of what is meant.

    "number" writes another value in the place of a number, "key" repeats an object's key with another value
    before it, "no key" takes a key out. Raises SkipInput for what is no change.
    """
    found = bytearray(data)
    with skipping():
        for kind, at, *rest in changes:
            at = int(at)
            place = at % (len(found) + 1)
            if kind == "flip" and found:
                found[at % len(found)] ^= 1 << int(rest[0]) % 8
            elif kind == "put":
                found[place:place] = bytes.fromhex(rest[0])
            elif kind == "drop":
                del found[place : place + abs(int(rest[0]))]
            elif kind == "cut":
                del found[place:]
            elif kind == "splice":
                start = int(rest[0]) % (len(found) + 1)
                found[place:place] = found[start : start + abs(int(rest[1]))]
            elif kind in ("number", "key", "no key"):
                places = list((NUMBER if kind == "number" else KEY).finditer(found))
                if places:
                    met = places[at % len(places)]
                    new = str(rest[0]).encode() if rest else b""
                    start, end = met.span()
                    if kind == "key":
                        new, end = met[0] + new + b",", start
                    found[start:end] = new
    return bytes(found)


def smaller(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(where, what) of changes that make a value smaller, the largest first."""
    if isinstance(value, list) or (isinstance(value, str) and value):
        n = len(value)
        size = n
        while size:
            for start in range(0, n, size):
                if size < n or n == 1:
                    yield path, value[:start] + value[start + size :]
            size //= 2
    elif isinstance(value, dict):
        for key in value:
            yield path, {other: item for other, item in value.items() if other != key}
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value not in (0, 1):
        yield path, 0
        yield path, 1
    if isinstance(value, dict):
        for key, item in value.items():
            if item not in (None, {}, []):
                yield (*path, key), None
            yield from smaller(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from smaller(item, (*path, index))


def minimized(value: Any, fails: Any, tries: int = 400) -> Any:
    """A smaller value for which ``fails`` is still true, found greedily within so many tries."""
    shrunk = True
    while shrunk and tries > 0:
        shrunk = False
        for path, new in list(smaller(value)):
            if tries <= 0:
                break
            try:
                candidate = replaced(copy.deepcopy(value), path, new)
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took the place away
            if len(repr(candidate)) >= len(repr(value)) and not isinstance(new, int):
                continue
            tries -= 1
            if fails(candidate):
                value, shrunk = candidate, True
                break
    return value
