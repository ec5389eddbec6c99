"""Sets of code points as ascending disjoint ranges (first, last), and the sets that expressions name.

Categories come from the interpreter's `unicodedata`. Planes without assigned characters are not
scanned.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby

from oxillama.text.grammar.rules import LAST_CODE_POINT

Ranges = tuple[tuple[int, int], ...]

NOTHING: Ranges = ()
EVERYTHING: Ranges = ((0, LAST_CODE_POINT),)
DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
LINE_ENDS: Ranges = ((0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029))
# ECMA-262, WhiteSpace and LineTerminator
SPACES: Ranges = (
    (0x9, 0xD), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
SURROGATES: Ranges = ((0xD800, 0xDFFF),)

_CATEGORIES = """
L letter, LC cased_letter, Lu uppercase_letter, Ll lowercase_letter, Lt titlecase_letter, Lm modifier_letter
Lo other_letter
M mark combining_mark, Mn nonspacing_mark, Mc spacing_mark, Me enclosing_mark
N number, Nd decimal_number digit, Nl letter_number, No other_number
P punctuation punct, Pc connector_punctuation, Pd dash_punctuation, Ps open_punctuation
Pe close_punctuation, Pi initial_punctuation, Pf final_punctuation, Po other_punctuation
S symbol, Sm math_symbol, Sc currency_symbol, Sk modifier_symbol, So other_symbol
Z separator, Zs space_separator, Zl line_separator, Zp paragraph_separator
C other, Cc control cntrl, Cf format, Cs surrogate, Co private_use, Cn unassigned
"""
"""General categories: the short name and the long ones."""

CATEGORY_NAMES = {
    long: short
    for short, *names in (part.split() for part in re.split("[,\n]", _CATEGORIES) if part)
    for long in names
}
CATEGORIES = frozenset(CATEGORY_NAMES.values())


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """The code points in any of the sets; the given ranges may overlap and come in any order."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pair for ranges in sets for pair in ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """The code points that are not in ``ranges``."""
    found, start = [], 0
    for first, last in ranges:
        if start < first:
            found.append((start, first - 1))
        start = last + 1
    if start <= LAST_CODE_POINT:
        found.append((start, LAST_CODE_POINT))
    return tuple(found)


def difference(a: Ranges, b: Ranges) -> Ranges:
    """The code points in ``a`` that are not in ``b``."""
    return complement(union(complement(a), b))


def contains(ranges: Ranges, point: int) -> bool:
    """Whether ``point`` is in the ranges."""
    i = bisect_right(ranges, (point, LAST_CODE_POINT)) - 1
    return i >= 0 and ranges[i][1] >= point


def classes_of(sets: Iterable[Ranges]) -> list[Ranges]:
    """A partition of all code points into classes: two points of a class are in the same sets."""
    events: dict[int, int] = {0: 0}
    for bit, ranges in enumerate(dict.fromkeys(sets)):
        for first, last in ranges:
            events[first] = events.get(first, 0) ^ (1 << bit)
            events[last + 1] = events.get(last + 1, 0) ^ (1 << bit)
    classes: dict[int, list[tuple[int, int]]] = {}
    points = sorted(p for p in events if p <= LAST_CODE_POINT)
    signature = 0
    for point, after in zip(points, [*points[1:], LAST_CODE_POINT + 1]):
        signature ^= events[point]
        classes.setdefault(signature, []).append((point, after - 1))
    return [tuple(ranges) for ranges in classes.values()]


def category(name: str) -> Ranges | None:
    """The code points of a general category by its short or long name ("Nd", "Letter"); None if unknown."""
    short = CATEGORY_NAMES.get(name.lower().replace(" ", "_").replace("-", "_"), name)
    if short not in CATEGORIES:
        return None
    if short == "LC":
        return union(*(_by_category().get(c, ()) for c in ("Lu", "Ll", "Lt")))
    return union(*(ranges for c, ranges in _by_category().items() if c.startswith(short)))


@lru_cache(maxsize=1)
def _by_category() -> dict[str, Ranges]:
    # Planes 4 to 13 are unassigned, 15 and 16 for private use (but for the last two points of every plane).
    blocks = range(0x40000), range(0xE0000, 0xE1000)
    private = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
    unseen = complement(union([(block[0], block[-1]) for block in blocks], private))
    runs: dict[str, list[tuple[int, int]]] = {"Co": [*private], "Cn": [*unseen]}
    for block in blocks:
        for name, points in groupby(block, lambda point: unicodedata.category(chr(point))):
            run = list(points)
            runs.setdefault(name, []).append((run[0], run[-1]))
    return {name: union(ranges) for name, ranges in runs.items()}
