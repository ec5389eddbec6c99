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
from typing import Any

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


Cost = Callable[..., int]
"""Units of work of an operation: a function of the budget and the operands."""

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


def _item(budget: Budget, values: Any, index: Any, default: Any = None) -> int:
    return budget.size(index)


# --------------------------------------------------------------------------- strings


def _each_character(units: int) -> Cost:
    def cost(budget: Budget, text: str) -> int:
        return units * len(text)

    return cost


_chars = _each_character(1)
_case = _each_character(3)  # one character has up to three in another case
_escape = _each_character(5)
_title = _each_character(OBJECT)


def _strip(budget: Budget, text: str, chars: Any = None) -> int:
    return len(text) * (1 if chars is None else 1 + len(_string(chars, "chars")))


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


def _function(budget: Budget, /, *values: Any, **named: Any) -> int:
    return OBJECT * (len(values) + len(named))


def _mapping(budget: Budget, /, *values: Any, **named: Any) -> int:
    return _function(budget, *values, **named) + OBJECT * sum(map(_length, values))


def _cycle(budget: Budget, loop: Any, *values: Any) -> int:
    return OBJECT * len(values)


def _changed(budget: Budget, loop: Any, *values: Any) -> int:
    return OBJECT * len(values) + budget.size(values)


_ROWS: tuple[tuple[str, Cost, str], ...] = (
    # how a name is written, its cost, and the names
    ("{}", _add, "+"),
    ("{}", _arithmetic, "- / //"),
    ("{}", _multiply, "*"),
    ("{}", _modulo, "%"),
    ("{}", _power, "**"),
    ("{}", _equals, "== !="),
    ("{}", _orders, "< <= > >="),
    ("{}", _contains, "in"),
    ("{} in", _contains, "not"),
    ("[{}]", _slice, ":"),
    ("{}", _item, "[]"),
    ("{}", _key, "{}"),
    ("|{}", _free, "d default string"),
    ("|{}", _absolute, "abs"),
    ("|{}", _case, "capitalize lower upper"),
    ("|{}", _title, "title"),
    ("|{}", _chars, "safe"),
    ("|{}", _escape, "e escape"),
    ("|{}", _strip, "trim"),
    ("|{}", _replace, "replace"),
    ("|{}", _indent, "indent"),
    ("|{}", _truncate, "truncate"),
    ("|{}", _round, "round"),
    ("|{}", _numeral, "float int"),
    ("|{}", _top, "count first last length"),
    ("|{}", _elements, "list reverse"),
    ("|{}", _pairs, "items"),
    ("|{}", _sort, "sort"),
    ("|{}", _dictsort, "dictsort"),
    ("|{}", _groupby, "groupby"),
    ("|{}", _least, "max min"),
    ("|{}", _unique, "unique"),
    ("|{}", _sum, "sum"),
    ("|{}", _map, "map"),
    ("|{}", _select, "reject select"),
    ("|{}", _selectattr, "rejectattr selectattr"),
    ("|{}", _joined, "join"),
    ("|{}", _json, "tojson"),
    ("is {}", _free, "boolean callable defined escaped false float integer iterable mapping none number"),
    ("is {}", _free, "sameas sequence string true undefined"),
    ("is {}", _arithmetic, "divisibleby"),
    ("is {}", _absolute, "even odd"),
    ("is {}", _sizes, "filter test"),
    ("is {}", _contains, "in"),
    ("is {}", _chars, "lower upper"),
    ("is {}", _equals, "== eq equalto != ne"),
    ("is {}", _orders, "< lt lessthan <= le > gt greaterthan >= ge"),
    ("str.{}", _case, "capitalize casefold lower swapcase title upper"),
    ("str.{}", _chars, "isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle isupper"),
    ("str.{}", _find, "count find index partition rfind rindex rpartition"),
    ("str.{}", _sizes, "endswith removeprefix removesuffix startswith"),
    ("str.{}", _strip, "lstrip rstrip strip"),
    ("str.{}", _split, "rsplit split"),
    ("str.{}", _splitlines, "splitlines"),
    ("str.{}", _format, "format"),
    ("str.{}", _join, "join"),
    ("str.{}", _replace, "replace"),
    ("list.{}", _elements, "copy"),
    ("list.{}", _count, "count index"),
    ("tuple.{}", _count, "count index"),
    ("dict.{}", _pairs, "copy"),
    ("dict.{}", _item, "get"),
    ("dict.{}", _top, "items keys values"),
    ("loop.{}", _changed, "changed"),
    ("loop.{}", _cycle, "cycle"),
    ("loop.{}", _free, "depth depth0 first index index0 last length nextitem previtem revindex revindex0"),
    ("{}()", _mapping, "dict namespace"),
    ("{}()", _free, "raise_exception range strftime_now"),
)
TABLE: dict[str, Cost] = {form.format(name): cost for form, cost, names in _ROWS for name in names.split()}

_TEXT_FILTERS = "capitalize e escape lower replace safe string title trim upper"
OF_TEXTS = frozenset(("is lower", "is upper", *(f"|{name}" for name in _TEXT_FILTERS.split())))
"""Operations that make a string of their first operand before they are charged."""

_TYPES = {str: "str", list: "list", tuple: "tuple", dict: "dict", LoopContext: "loop"}


def attribute_of(value: Any, name: str) -> Cost | None:
    """The table's entry for a method or an attribute, by the exact type of its owner."""
    return TABLE.get(f"{_TYPES.get(type(value))}.{name}")


def names(mark: str) -> list[str]:
    """Names in the table that start with `|` (filters) or `is ` (tests), without it."""
    return [name[len(mark) :] for name in TABLE if name.startswith(mark)]
