"""How JSON values are written: characters of strings with their escapes, separators, texts of numbers.

A character of a string may be written raw or escaped, so an automaton over the characters of a string becomes
one over the characters of its JSON text (`spell`). Strings that only their length bounds are spelled in every
way that JSON has; all others (names of properties, constants, patterns, formats) in the ways of `json.dumps`,
with `ensure_ascii` or without: that never writes a printable ASCII character by its number or "/" as "\\/".
So the text of a name is forced, and automata of patterns stay small.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from oxillama.errors import GrammarError
from oxillama.grammar.codepoints import EVERYTHING, Ranges, difference
from oxillama.grammar.dfa import Edge, merged
from oxillama.grammar.rules import Alt, Chars, Dfa, Node, Repeat, Seq, Text

QUOTE = Text('"')
_SHORT = {
    0x22: '"',
    0x5C: "\\",
    0x08: "b",
    0x0C: "f",
    0x0A: "n",
    0x0D: "r",
    0x09: "t",
}
# What may stand raw between the quotes (RFC 8259, section 7); lone surrogates have no UTF-8.
_RAW = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
# What has to be written by its number.
_CONTROL: Ranges = ((0, 0x7), (0xB, 0xB), (0xE, 0x1F))
# What `json.dumps` may write by its number.
_UNPRINTABLE: Ranges = ((0, 0x1F), (0x7F, 0x10FFFF))
_PRINTABLE: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))  # and never escaped
MAX_DIGITS = 800  # of a number in a schema written out

# At most one space after a comma or colon; new lines and indentation too; none.
WHITESPACE = ("single", "flexible", "compact")


_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands between the tokens of a JSON text, and around its strings.

    Attributes
    ----------
    comma, colon : the separators and the white space after them.
    pad : white space after an opening bracket of a container that is not empty, and before its closing one.
    mark : "" for JSON. Otherwise a text that stands before and after every string. The characters between are
        not escaped and may not contain it. Names that are plain words stand without it.
    """

    comma: Node
    colon: Node
    pad: Node
    mark: str = ""

    @staticmethod
    def of(whitespace: str, mark: str = "") -> Layout:
        """The layout of one of the names in `WHITESPACE`. With a ``mark`` there is no white space."""
        if whitespace == "compact" or mark:
            return Layout(Text(","), Text(":"), Seq(()), mark)
        space = Repeat(Text(" "), 0, 1)
        if whitespace == "single":
            return Layout(Seq((Text(","), space)), Seq((Text(":"), space)), Seq(()))
        indent = Seq((Text("\n"), Repeat(Chars(((0x9, 0x9), (0x20, 0x20))), 0, 64)))
        wide = Alt((Seq(()), Text(" "), indent))
        return Layout(Seq((Text(","), wide)), Seq((Text(":"), space)), wide)

    def string(self, text: str) -> Node:
        """The texts of one string."""
        if not self.mark:
            return quoted(literal(text))
        return Alt(()) if self.mark in text else Text(self.mark + text + self.mark)

    def name(self, text: str) -> Node:
        """The texts of one name of a property."""
        return Text(text) if self.mark and _BARE_NAME.fullmatch(text) else self.string(text)


def listed(item: Node, layout: Layout, brackets: str) -> Node:
    """Any number of items between brackets."""
    body = Seq((layout.pad, item, Repeat(Seq((layout.comma, item)), 0, None), layout.pad))
    return bracketed(Alt((Seq(()), body)), brackets)


def bracketed(body: Node, brackets: str) -> Node:
    """A node between an opening and a closing bracket."""
    return Seq((Text(brackets[0]), body, Text(brackets[1])))


# --------------------------------------------------------------------------- characters of strings

_Segments = tuple[tuple[int, int, object], ...]  # (first, last, where to), ascending


class _Speller:
    """States of the text's automaton, made as they are needed; equal ones are made once."""

    def __init__(self, dfa: Dfa, every_way: bool, once: bool) -> None:
        self.by_number: Ranges = EVERYTHING if every_way else _CONTROL if once else _UNPRINTABLE
        self.once = once
        self.shorts = {**_SHORT, 0x2F: "/"} if every_way else _SHORT
        self.edges: list[list[Edge]] = [[] for _ in dfa.edges]
        self.known: dict[object, int] = {}
        for state, edges in enumerate(dfa.edges):
            if not edges:
                continue
            self.edges[state] = [
                (max(first, low), min(last, high), target)
                for first, last, target in edges
                for low, high in _RAW
                if first <= high and last >= low
            ]
            backslash = self.escape(edges)
            if self.edges[backslash]:
                self.edges[state] = sorted([*self.edges[state], (0x5C, 0x5C, backslash)])

    def state(self, key: object) -> tuple[int, bool]:
        """The state of this key, and whether it is new."""
        new = key not in self.known
        if new:
            self.known[key] = len(self.edges)
            self.edges.append([])
        return self.known[key], new

    def escape(self, edges: tuple[Edge, ...]) -> int:
        """The state after a backslash."""
        shorts = [
            (ord(short), ord(short), target)
            for point, short in self.shorts.items()
            for first, last, target in edges
            if first <= point <= last
        ]
        by_number = tuple(
            (max(first, low), min(last, high), target)
            for first, last, target in edges
            for low, high in self.by_number
            if first <= high and last >= low
        )
        state, new = self.state(("escape", tuple(shorts), by_number))
        if new:
            found = shorts
            units = _code_units(list(merged(list(by_number))))
            if units:
                found.append((0x75, 0x75, self.digits(units, 4)))
            self.edges[state] = sorted(found)
        return state

    def digits(self, segments: _Segments, count: int) -> int:
        """The state before the last ``count`` hexadecimal digits of a code unit."""
        state, new = self.state((segments, count))
        if new:
            size = 16 ** (count - 1)
            found: list[Edge] = []
            for digit in range(16):
                low, high = digit * size, (digit + 1) * size - 1
                inside = tuple(
                    (max(first, low) - low, min(last, high) - low, where)
                    for first, last, where in segments
                    if first <= high and last >= low
                )
                if inside:
                    target = self.target(inside[0][2]) if count == 1 else self.digits(inside, count - 1)
                    spelled = {f"{digit:x}"} if self.once else {f"{digit:x}", f"{digit:X}"}
                    found += [(ord(c), ord(c), target) for c in spelled]
            self.edges[state] = list(merged(sorted(found)))
        return state

    def target(self, where: object) -> int:
        """Where a code unit leads: on, or to the low surrogate of a pair."""
        if isinstance(where, int):
            return where
        slash, new = self.state(("pair", where))
        if new:
            letter, _ = self.state(("letter", where))
            assert isinstance(where, tuple)
            self.edges[slash] = [(0x5C, 0x5C, letter)]
            self.edges[letter] = [(0x75, 0x75, self.digits(where, 4))]
        return slash


def _code_units(edges: list[Edge]) -> _Segments:
    """The UTF-16 code units that begin a character, each with its target or the low surrogates to follow."""
    found: list[tuple[int, int, object]] = []
    pairs: dict[int, list[tuple[int, int, object]]] = {}
    whole: list[tuple[int, int, object]] = []
    for first, last, target in edges:
        for low, high in ((0, 0xD7FF), (0xE000, 0xFFFF)):
            if first <= high and last >= low:
                found.append((max(first, low), min(last, high), target))
        if last < 0x10000:
            continue
        a, b = max(first, 0x10000) - 0x10000, last - 0x10000
        start, end = (a + 0x3FF) >> 10, ((b + 1) >> 10) - 1  # high surrogates of which all lows are in
        if start <= end:
            whole.append((0xD800 + start, 0xD800 + end, ((0xDC00, 0xDFFF, target),)))
        for unit in {a >> 10, b >> 10} - set(range(start, end + 1)):
            low, high = max(a - (unit << 10), 0), min(b - (unit << 10), 0x3FF)
            pairs.setdefault(unit, []).append((0xDC00 + low, 0xDC00 + high, target))
    found += whole
    found += [(0xD800 + unit, 0xD800 + unit, tuple(sorted(lows))) for unit, lows in pairs.items()]
    return tuple(sorted(found, key=lambda segment: segment[0]))


@lru_cache(maxsize=128)
def spell(dfa: Dfa, every_way: bool = False, once: bool = False) -> Dfa:
    """The automaton of the JSON spellings (quotes left out) of the strings of ``dfa``.

    ``every_way``: all that JSON has. ``once``: one, that of `json.dumps` without ``ensure_ascii``.
    """
    edges = _Speller(dfa, every_way, once).edges
    return Dfa(tuple(tuple(found) for found in edges), dfa.accepting)


@lru_cache(maxsize=128)
def spelled_char(ranges: Ranges) -> Node:
    """The spellings of one character of a set."""
    if difference(ranges, _PRINTABLE) == ():
        return Chars(ranges)
    edges = tuple((first, last, 1) for first, last in ranges)
    return spell(Dfa((edges, ()), frozenset({1})))


def spelled_run(ranges: Ranges) -> Node:
    """The spellings of any number of characters of a set."""
    return spell(Dfa((tuple((first, last, 0) for first, last in ranges),), frozenset({0})))


def spelled_expression(node: Node) -> Node:
    """The spellings of the strings of an expression over characters."""
    if isinstance(node, Chars):
        return spelled_char(node.ranges)
    if isinstance(node, Text):
        return literal(node.text)
    if isinstance(node, Seq):
        return Seq(tuple([spelled_expression(item) for item in node.items]))
    if isinstance(node, Alt):
        return Alt(tuple([spelled_expression(item) for item in node.items]))
    if isinstance(node, Repeat):
        if isinstance(node.item, Chars) and (node.least, node.most) == (0, None):
            return spelled_run(node.item.ranges)
        return Repeat(spelled_expression(node.item), node.least, node.most)
    raise TypeError(f"not an expression over characters: {type(node).__name__}")


def literal(text: str) -> Node:
    """The spellings of ``text`` (quotes left out) that `json.dumps` may choose."""
    items: list[Node] = []
    plain = ""
    for char in text:
        if " " <= char <= "~":
            plain += "\\" + char if char in '"\\' else char
            continue
        if plain:
            items.append(Text(plain))
        plain = ""
        items.append(spelled_char(((ord(char), ord(char)),)))
    if plain or not items:
        items.append(Text(plain))
    return items[0] if len(items) == 1 else Seq(tuple(items))


def quoted(node: Node) -> Node:
    """The node between quotes; texts at its ends take the quotes in."""
    items = list(node.items) if isinstance(node, Seq) else [node]
    if items and isinstance(items[0], Text):
        items[0] = Text('"' + items[0].text)
    else:
        items.insert(0, QUOTE)
    if isinstance(items[-1], Text):
        items[-1] = Text(items[-1].text + '"')
    else:
        items.append(QUOTE)
    return items[0] if len(items) == 1 else Seq(tuple(items))


_ALL = Dfa((((0, 0x10FFFF, 0),),), frozenset({0}))
ANY_STRING = quoted(spell(_ALL, every_way=True))
ANY_NAME = quoted(spell(_ALL))
ANY_NAME_ONCE = quoted(spell(_ALL, once=True))
ANY_CHAR_ONCE = spell(Dfa((((0, 0x10FFFF, 1),), ()), frozenset({1})), once=True)
ANY_CHAR = spell(Dfa((((0, 0x10FFFF, 1),), ()), frozenset({1})), every_way=True)


# --------------------------------------------------------------------------- numbers


def decimal_text(value: Fraction) -> str:
    """A number written out in full; the value must have finitely many decimals.

    Raises
    ------
    GrammarError : it has more than `MAX_DIGITS` digits.
    """
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
        if places > MAX_DIGITS:
            raise GrammarError(f"a number in a schema has at most {MAX_DIGITS} digits")
    digits = str(abs(value.numerator * 10**places // value.denominator)).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :]
    return ("-" if value < 0 else "") + whole + ("." + part if part else "")
