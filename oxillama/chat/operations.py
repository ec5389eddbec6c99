"""The table of everything that a chat template may use, and what each operation costs.

A name is written as in a template: an operator (`+`), a filter (`|trim`), a test (`is odd`), a method or an
attribute of a type (`str.strip`), a function (`range()`). Its cost is a function of the operands: the units
of work that are charged before the operation runs, for what it handles and for what it makes. Operands for
which there is no bound are refused. Names that are not in the table are not available.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext, Undefined
from markupsafe import Markup

from oxillama.chat.budget import (
    MAX_BITS,
    NUMBERS,
    OBJECT,
    PLAIN,
    SCALAR,
    SEQUENCES,
    STEP,
    Budget,
)

MAX_WIDTH = 999  # characters to which a format or an indent may pad
MAX_NUMERAL = 1000  # characters of a string that is read as a number
MAX_ATTRIBUTE = 256  # characters of an attribute that a filter looks up
MAX_PRECISION = 100  # digits to which a number may be rounded
MAX_JSON_INDENT = 16
MAX_KEY = 1 << 20  # magnitude of an integer as key: larger ones can be made to collide


class Operation(NamedTuple):
    """What an operation costs, and whether it makes a string of its first operand before."""

    cost: Callable[..., int]
    text: bool = False


_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPACES = "".join(char for char in map(chr, range(0x3001)) if char.isspace())
_CONVERSION = re.compile(r"%([^A-Za-z%]*)(.?)", re.DOTALL)


def _plain(value: Any) -> None:
    """Refuse what is neither data nor undefined: functions, loops, namespaces."""
    if type(value) not in PLAIN:
        raise SecurityError(f"expected plain data, got {type(value).__name__}")


def _numbers(*values: Any) -> None:
    for value in values:
        if type(value) not in NUMBERS and not isinstance(value, Undefined):
            raise TypeError(f"expected a number, got {type(value).__name__}")


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected a string, got {type(value).__name__}")
    return value


def _length(value: Any) -> int:
    """Number of elements to iterate over; 0 where iterating fails."""
    _plain(value)
    return len(value) if hasattr(value, "__len__") else 0


def _free(budget: Budget, /, *values: Any, **options: Any) -> int:
    return 0


def _top(budget: Budget, value: Any, *values: Any) -> int:
    _plain(value)
    return 0


def _sizes(budget: Budget, /, *values: Any, **options: Any) -> int:
    return budget.size((values, options))


# --------------------------------------------------------------------------- operators


def _equals(budget: Budget, left: Any, right: Any) -> int:
    kind = type(left)
    if isinstance(left, str):
        return min(len(left), len(right)) if isinstance(right, str) else 0
    if (kind in SEQUENCES or kind is dict) and (type(right) in SEQUENCES or type(right) is dict):
        return budget.size((left, right)) if len(left) == len(right) else 0
    return 0


def _orders(budget: Budget, left: Any, right: Any) -> int:
    if type(left) in NUMBERS and type(right) in NUMBERS:
        return 0
    return budget.size((left, right))


def _contains(budget: Budget, value: Any, collection: Any) -> int:
    """`value in collection`."""
    _plain(value)
    _plain(collection)
    kind = type(collection)
    if isinstance(collection, str):
        return _search(collection, value) if isinstance(value, str) else 0
    if kind is dict:
        return budget.size(value)
    if kind in SEQUENCES:
        if isinstance(value, str):
            return len(collection) * (1 + len(value) // 8)
        return budget.size(collection) + budget.size(value)
    return len(collection) if kind is range else 0


def _search(text: str, part: str) -> int:
    """Units that looking for a part costs where everything but its last character is found everywhere."""
    return len(text) + max(0, len(text) - len(part) + 1) * len(part) // 16


def _add(budget: Budget, left: Any, right: Any) -> int:
    if isinstance(left, str) and isinstance(right, str):
        made = len(left) + len(right)
        return made if type(left) is type(right) is str else 6 * made  # marked strings escape the others
    if type(left) in SEQUENCES and type(right) in SEQUENCES:
        return 2 * (len(left) + len(right))
    return 0


def _arithmetic(budget: Budget, left: Any, right: Any) -> int:
    _numbers(left, right)
    return 0


def _multiply(budget: Budget, left: Any, right: Any) -> int:
    for many, times in ((left, right), (right, left)):
        if isinstance(many, (str, list, tuple)) and isinstance(times, int):
            return (1 if isinstance(many, str) else 2) * len(many) * max(0, times)
    return _arithmetic(budget, left, right)


def _power(budget: Budget, left: Any, right: Any) -> int:
    _numbers(left, right)
    whole = isinstance(left, int) and isinstance(right, int) and abs(left) > 1
    if whole and (left.bit_length() - 1) * right > MAX_BITS:
        raise SecurityError(f"expected an integer of at most {MAX_BITS} bits, got {left} ** {right}")
    return 0


def _modulo(budget: Budget, left: Any, right: Any) -> int:
    if not isinstance(left, str):
        return _arithmetic(budget, left, right)
    if type(left) is Markup:
        raise SecurityError("expected a plain string as format, got a marked one")
    conversions = 0
    for match in _CONVERSION.finditer(left):
        conversions += 1
        if re.search(r"\d{4}|[*(]", match[1]):
            raise SecurityError(f"expected a format with widths up to {MAX_WIDTH}, got {match[0]:.80}")
    return len(left) + conversions * (MAX_WIDTH + 400) + budget.walk(right, escaped=True).size


def _slice(budget: Budget, values: Any, part: slice) -> int:
    if not hasattr(values, "__len__") or type(values) in (range, Undefined):
        return 0
    count = len(range(*part.indices(len(values))))
    return count if isinstance(values, str) else 2 * count


def _item(budget: Budget, values: Any, index: Any) -> int:
    return budget.size(index)


# --------------------------------------------------------------------------- strings


def _chars(budget: Budget, text: str) -> int:
    return len(text)


def _case(budget: Budget, text: str) -> int:
    return 3 * len(text)  # one character has up to three in another case


def _title(budget: Budget, text: str) -> int:
    return OBJECT * len(text)


def _strip(budget: Budget, text: str, chars: Any = None) -> int:
    return len(text) * (1 if chars is None else 1 + len(_string(chars, "chars")))


def _escape(budget: Budget, text: str) -> int:
    return 5 * len(text)


def _find(budget: Budget, text: str, part: Any, *bounds: Any) -> int:
    return _search(text, _string(part, "part"))


def _replace(budget: Budget, text: str, old: Any, new: Any, count: Any = None) -> int:
    budget.spend(_search(text, _string(old, "old")))
    found = text.count(old)
    if isinstance(count, int) and count >= 0:
        found = min(found, count)
    return len(text) + found * len(_string(new, "new"))


def _split(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> int:
    budget.spend(2 * len(text) if sep is None else _search(text, _string(sep, "sep")))
    pieces = sum(map(text.count, _SPACES)) if sep is None else text.count(sep) if sep else 0
    if isinstance(maxsplit, int) and maxsplit >= 0:
        pieces = min(pieces, maxsplit)
    return len(text) + OBJECT * (pieces + 1)


def _lines(text: str) -> int:
    return 1 + sum(map(text.count, _LINE_ENDS))


def _splitlines(budget: Budget, text: str, *keepends: Any) -> int:
    return 2 * len(text) + OBJECT * _lines(text)


def _join(budget: Budget, text: str, parts: Any) -> int:
    return budget.size(parts) + _length(parts) * len(text)


def _format(budget: Budget, text: str, /, *values: Any, **named: Any) -> int:
    budget.spend(len(text))
    given = budget.walk((values, named), escaped=True).size
    cost = 0
    for literal, field, spec, _ in Formatter().parse(text):
        budget.spend(STEP)
        cost += len(literal)
        if field is None:
            continue
        if len(field) > MAX_ATTRIBUTE or re.search(r"\d{4}|\{", spec or ""):
            raise SecurityError(
                f"expected a format with widths up to {MAX_WIDTH}, got {{{field:.80}:{spec or '':.80}}}"
            )
        cost += STEP + MAX_WIDTH + 400 + given
    return cost


def _indent(budget: Budget, text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> int:
    if isinstance(text, Undefined):
        return 0
    if not isinstance(width, str) and (type(width) is not int or width > MAX_WIDTH):
        raise SecurityError(f"indent: expected a string or a width up to {MAX_WIDTH}, got {width!r:.80}")
    lines = 1 + _lines(_string(text, "indent"))
    return 3 * len(text) + lines * (OBJECT + (len(width) if isinstance(width, str) else max(0, width)))


def _truncate(budget: Budget, text: Any, *options: Any, **named: Any) -> int:
    if not isinstance(text, Undefined):
        _string(text, "truncate")
    return budget.size((text, options, named))


# --------------------------------------------------------------------------- numbers


def _absolute(budget: Budget, value: Any) -> int:
    _numbers(value)
    return 0


def _round(budget: Budget, value: Any, precision: Any = 0, method: Any = "common") -> int:
    _numbers(value)
    if type(precision) is not int or abs(precision) > MAX_PRECISION:
        raise SecurityError(f"round: expected a precision up to {MAX_PRECISION}, got {precision!r:.80}")
    return 0


def _numeral(budget: Budget, value: Any, *options: Any, **named: Any) -> int:
    _plain(value)
    if isinstance(value, str) and len(value) > MAX_NUMERAL:
        raise SecurityError(f"expected a number of up to {MAX_NUMERAL} characters, got {len(value)}")
    return SCALAR


# --------------------------------------------------------------------------- collections


def _elements(budget: Budget, values: Any) -> int:
    """A list of the elements."""
    return (2 if type(values) in SEQUENCES else OBJECT) * _length(values)


def _pairs(budget: Budget, values: Any) -> int:
    return OBJECT * _length(values)


def _small_key(value: Any) -> None:
    if isinstance(value, float) or (isinstance(value, int) and abs(value) > MAX_KEY):
        raise SecurityError(f"expected a string or a small integer as key, got {value!r:.80}")


def _key(budget: Budget, value: Any) -> int:
    """A key of a dict display."""
    _small_key(value)
    return budget.size(value)


def _attribute(attribute: Any) -> int:
    """Steps to look an attribute up, for each element; names in it are separated by dots."""
    if attribute is None or (type(attribute) is int and abs(attribute) <= MAX_KEY):
        return 1
    text = _string(attribute, "attribute")
    if len(text) > MAX_ATTRIBUTE:
        raise SecurityError(f"expected an attribute of up to {MAX_ATTRIBUTE} characters, got {len(text)}")
    return 2 + text.count(".") + text.count(",")


def _sort(
    budget: Budget, values: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None
) -> int:
    count = _length(values)
    return budget.size(values) * (4 + count.bit_length()) + STEP * count * _attribute(attribute)


def _dictsort(budget: Budget, values: Any, *options: Any, **named: Any) -> int:
    return _sort(budget, values) + OBJECT * _length(values)


def _groupby(
    budget: Budget, values: Any, attribute: Any, default: Any = None, case_sensitive: Any = False
) -> int:
    return 2 * _sort(budget, values, attribute=attribute) + (OBJECT + budget.size(default)) * _length(values)


def _least(budget: Budget, values: Any, case_sensitive: Any = False, attribute: Any = None) -> int:
    return 4 * budget.size(values) + STEP * _length(values) * _attribute(attribute)


def _unique(budget: Budget, values: Any, case_sensitive: Any = False, attribute: Any = None) -> int:
    count = _length(values)
    collisions = 0 if attribute is None and all(isinstance(v, str) for v in values) else count * count // 4
    return _least(budget, values, attribute=attribute) + OBJECT * count + collisions


def _sum(budget: Budget, values: Any, attribute: Any = None, start: Any = 0) -> int:
    _numbers(start)  # the sum of lists would copy the list for each element
    return STEP * _length(values) * _attribute(attribute)


def _map(budget: Budget, values: Any, /, *names: Any, attribute: Any = None, **named: Any) -> int:
    each = _attribute(attribute) if not names else 1
    return _length(values) * (STEP * each + budget.size((names, named)))


def _select(budget: Budget, values: Any, /, *names: Any, **named: Any) -> int:
    return _length(values) * (STEP + budget.size((names, named)))


def _selectattr(budget: Budget, values: Any, attribute: Any, *names: Any, **named: Any) -> int:
    return _select(budget, values, *names, **named) + STEP * _length(values) * _attribute(attribute)


def _joined(budget: Budget, values: Any, d: Any = "", attribute: Any = None) -> int:
    each = STEP * _attribute(attribute) if attribute is not None else 0
    separator = budget.walk(d, escaped=True).size if type(d) is not str else len(d)
    count = _length(values)
    if isinstance(values, str):
        return count * (8 + separator)
    if type(values) in SEQUENCES and all(isinstance(v, str) for v in values):
        budget.spend(count)
        return sum(map(len, values)) + count * (8 + separator + each)
    return budget.walk(values, escaped=True).size + count * (SCALAR + separator + each)


def _json(
    budget: Budget,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> int:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MAX_JSON_INDENT):
        raise SecurityError(f"tojson: expected an indent from 0 to {MAX_JSON_INDENT}, got {indent!r:.80}")
    size, elements, levels = budget.walk(value, escaped=True)
    each = 0 if indent is None else STEP + indent * levels  # with an indent, the encoder is written in Python
    if separators is not None:
        each += budget.walk(separators, escaped=True).size
    return size + elements * each + (elements * elements.bit_length() if sort_keys else 0)


def _count(budget: Budget, values: Any, value: Any, *bounds: Any) -> int:
    return budget.size(values) + budget.size(value)


def _get(budget: Budget, values: Any, index: Any, default: Any = None) -> int:
    return budget.size(index)


def _function(budget: Budget, /, *values: Any, **named: Any) -> int:
    return OBJECT * (len(values) + len(named))


def _mapping(budget: Budget, /, *values: Any, **named: Any) -> int:
    return _function(budget, *values, **named) + OBJECT * sum(map(_length, values))


def _cycle(budget: Budget, loop: Any, *values: Any) -> int:
    return OBJECT * len(values)


def _changed(budget: Budget, loop: Any, *values: Any) -> int:
    return OBJECT * len(values) + budget.size(values)


_LOOP_FACTS = (
    *("depth", "depth0", "first", "index", "index0", "last", "length"),
    *("nextitem", "previtem", "revindex", "revindex0"),
)
_STRING = Operation(_chars)
_FREE = Operation(_free)
_EQUALS = Operation(_equals)
_ORDERS = Operation(_orders)
_NUMBERS = Operation(_absolute)
_PAIR_OF_NUMBERS = Operation(_arithmetic)

TABLE: dict[str, Operation] = {
    # operators
    "+": Operation(_add),
    "-": _PAIR_OF_NUMBERS,
    "*": Operation(_multiply),
    "/": _PAIR_OF_NUMBERS,
    "//": _PAIR_OF_NUMBERS,
    "%": Operation(_modulo),
    "**": Operation(_power),
    "==": _EQUALS,
    "!=": _EQUALS,
    "<": _ORDERS,
    "<=": _ORDERS,
    ">": _ORDERS,
    ">=": _ORDERS,
    "in": Operation(_contains),
    "not in": Operation(_contains),
    "[:]": Operation(_slice),
    "[]": Operation(_item),
    "{}": Operation(_key),
    # filters
    "|abs": _NUMBERS,
    "|capitalize": Operation(_case, text=True),
    "|count": Operation(_top),
    "|d": _FREE,
    "|default": _FREE,
    "|dictsort": Operation(_dictsort),
    "|e": Operation(_escape, text=True),
    "|escape": Operation(_escape, text=True),
    "|first": Operation(_top),
    "|float": Operation(_numeral),
    "|groupby": Operation(_groupby),
    "|indent": Operation(_indent),
    "|int": Operation(_numeral),
    "|items": Operation(_pairs),
    "|join": Operation(_joined),
    "|last": Operation(_top),
    "|length": Operation(_top),
    "|list": Operation(_elements),
    "|lower": Operation(_case, text=True),
    "|map": Operation(_map),
    "|max": Operation(_least),
    "|min": Operation(_least),
    "|reject": Operation(_select),
    "|rejectattr": Operation(_selectattr),
    "|replace": Operation(_replace, text=True),
    "|reverse": Operation(_elements),
    "|round": Operation(_round),
    "|safe": Operation(_chars, text=True),
    "|select": Operation(_select),
    "|selectattr": Operation(_selectattr),
    "|sort": Operation(_sort),
    "|string": Operation(_free, text=True),
    "|sum": Operation(_sum),
    "|title": Operation(_title, text=True),
    "|tojson": Operation(_json),
    "|trim": Operation(_strip, text=True),
    "|truncate": Operation(_truncate),
    "|unique": Operation(_unique),
    "|upper": Operation(_case, text=True),
    # tests
    "is boolean": _FREE,
    "is callable": _FREE,
    "is defined": _FREE,
    "is divisibleby": _PAIR_OF_NUMBERS,
    "is escaped": _FREE,
    "is even": _NUMBERS,
    "is false": _FREE,
    "is filter": Operation(_sizes),
    "is float": _FREE,
    "is in": Operation(_contains),
    "is integer": _FREE,
    "is iterable": _FREE,
    "is lower": Operation(_chars, text=True),
    "is mapping": _FREE,
    "is none": _FREE,
    "is number": _FREE,
    "is odd": _NUMBERS,
    "is sameas": _FREE,
    "is sequence": _FREE,
    "is string": _FREE,
    "is test": Operation(_sizes),
    "is true": _FREE,
    "is undefined": _FREE,
    "is upper": Operation(_chars, text=True),
    **dict.fromkeys(("is ==", "is eq", "is equalto", "is !=", "is ne"), _EQUALS),
    **dict.fromkeys(("is <", "is lt", "is lessthan", "is <=", "is le"), _ORDERS),
    **dict.fromkeys(("is >", "is gt", "is greaterthan", "is >=", "is ge"), _ORDERS),
    # methods and attributes
    "str.capitalize": Operation(_case),
    "str.casefold": Operation(_case),
    "str.count": Operation(_find),
    "str.endswith": Operation(_sizes),
    "str.find": Operation(_find),
    "str.format": Operation(_format),
    "str.index": Operation(_find),
    "str.isalnum": _STRING,
    "str.isalpha": _STRING,
    "str.isascii": _STRING,
    "str.isdecimal": _STRING,
    "str.isdigit": _STRING,
    "str.islower": _STRING,
    "str.isnumeric": _STRING,
    "str.isspace": _STRING,
    "str.istitle": _STRING,
    "str.isupper": _STRING,
    "str.join": Operation(_join),
    "str.lower": Operation(_case),
    "str.lstrip": Operation(_strip),
    "str.partition": Operation(_find),
    "str.removeprefix": Operation(_sizes),
    "str.removesuffix": Operation(_sizes),
    "str.replace": Operation(_replace),
    "str.rfind": Operation(_find),
    "str.rindex": Operation(_find),
    "str.rpartition": Operation(_find),
    "str.rsplit": Operation(_split),
    "str.rstrip": Operation(_strip),
    "str.split": Operation(_split),
    "str.splitlines": Operation(_splitlines),
    "str.startswith": Operation(_sizes),
    "str.strip": Operation(_strip),
    "str.swapcase": Operation(_case),
    "str.title": Operation(_case),
    "str.upper": Operation(_case),
    "list.copy": Operation(_elements),
    "list.count": Operation(_count),
    "list.index": Operation(_count),
    "tuple.count": Operation(_count),
    "tuple.index": Operation(_count),
    "dict.copy": Operation(_pairs),
    "dict.get": Operation(_get),
    "dict.items": Operation(_top),
    "dict.keys": Operation(_top),
    "dict.values": Operation(_top),
    "loop.changed": Operation(_changed),
    "loop.cycle": Operation(_cycle),
    **dict.fromkeys((f"loop.{name}" for name in _LOOP_FACTS), _FREE),
    # functions
    "dict()": Operation(_mapping),
    "namespace()": Operation(_mapping),
    "raise_exception()": _FREE,
    "range()": _FREE,
    "strftime_now()": _FREE,
}

_TYPES = {str: "str", list: "list", tuple: "tuple", dict: "dict", LoopContext: "loop"}


def attribute_of(value: Any, name: str) -> Operation | None:
    """The table's entry for a method or an attribute, by the exact type of its owner."""
    return TABLE.get(f"{_TYPES.get(type(value))}.{name}")


def names(mark: str) -> list[str]:
    """Names in the table that start with `|` (filters) or `is ` (tests), without it."""
    return [name[len(mark) :] for name in TABLE if name.startswith(mark)]
