"""Parses GBNF grammars into productions over bytes: for each name its alternatives, tuples of symbols.

A symbol is a name (str), a range of bytes, or a set of tokens. Names that begin with "#" belong to groups
and repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from oxillama.errors import GrammarError

TOKEN = re.compile(r"(!?)<(?:\[(\d+)\]|([^\[>][^>]*))>")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
HEX = {"x": 2, "u": 4, "U": 8}
LAST = 0x10FFFF
MOST = 100_000
"""The maximum number of productions."""
MOST_GROUPS = 60
ROOT = "root"


@dataclass(frozen=True)
class Bytes:
    """A byte from ``first`` to ``last``."""

    first: int
    last: int


@dataclass(frozen=True)
class Token:
    """A token: this id, or any text token except this id."""

    id: int
    negated: bool


Symbol = str | Bytes | Token
Way = tuple[Symbol, ...]
Productions = dict[str, list[Way]]


def utf8_ranges(first: int, last: int) -> Iterator[Way]:
    """The UTF-8 encodings of a range of code points, as sequences of byte ranges; surrogates have none."""
    limits = ((0x7F, 1), (0x7FF, 2), (0xD7FF, 3), (0xDFFF, 0), (0xFFFF, 3), (LAST, 4))
    low = 0
    for high, n in limits:
        if n and max(first, low) <= min(last, high):
            yield from _same_length(list(chr(max(first, low)).encode()), list(chr(min(last, high)).encode()))
        low = high + 1


def _same_length(low: list[int], high: list[int]) -> Iterator[Way]:
    """Byte ranges between two strings of equal length; bytes after the first are 0x80 to 0xBF."""
    if len(low) == 1:
        yield (Bytes(low[0], high[0]),)
        return
    rest = len(low) - 1
    if low[0] == high[0]:
        yield from ((Bytes(low[0], low[0]), *way) for way in _same_length(low[1:], high[1:]))
        return
    begin, end = low[0], high[0]
    if low[1:] != [0x80] * rest:
        yield from ((Bytes(begin, begin), *way) for way in _same_length(low[1:], [0xBF] * rest))
        begin += 1
    if high[1:] != [0xBF] * rest:
        yield from ((Bytes(end, end), *way) for way in _same_length([0x80] * rest, high[1:]))
        end -= 1
    if begin <= end:
        yield (Bytes(begin, end), *[Bytes(0x80, 0xBF)] * rest)


def text_way(text: str) -> Way:
    """The bytes of a text as an alternative."""
    return tuple(Bytes(byte, byte) for byte in text.encode())


class Reader:
    """Parses a grammar.

    Args:
        text: the grammar.
        token_ids: encodes the text of a token that is named by its text.

    Raises:
        GrammarError: the text is not a valid grammar.
    """

    def __init__(self, text: str, token_ids: Callable[[str], list[int]]) -> None:
        self.text = text
        self.at = 0
        self.token_ids = token_ids
        self.productions: Productions = {}
        self.n_made = 0
        self.skip(lines=True)
        while self.at < len(text):
            name = self.take(r"[a-zA-Z0-9-]+", "a rule name")
            if name in self.productions:
                raise self.error(f"rule {name} is defined twice")
            self.skip()
            self.take("::=", "::=")
            self.skip(lines=True)
            self.productions[name] = []
            self.productions[name] = self.ways(0)
            if self.at < len(text) and text[self.at] not in "\r\n":
                raise self.error("expected the end of the line")
            self.skip(lines=True)
        names = {each for ways in self.productions.values() for way in ways for each in way}
        missing = ({ROOT} | {name for name in names if isinstance(name, str)}) - self.productions.keys()
        if missing:
            raise GrammarError(f"reference: grammar: expected a rule {min(missing)}, got none")

    def error(self, message: str) -> GrammarError:
        before = self.text[: self.at]
        line, column = before.count("\n") + 1, self.at - before.rfind("\n")
        return GrammarError(f"reference: grammar: {message}", line=line, column=column)

    def skip(self, lines: bool = False) -> None:
        """Skip blanks and comments, and with ``lines`` line ends."""
        self.take(r"([ \t\r\n]|#[^\r\n]*)*" if lines else r"([ \t]|#[^\r\n]*)*", "blanks")

    def take(self, pattern: str, what: str) -> str:
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            raise self.error(f"expected {what}")
        self.at = found.end()
        return found[0]

    def next(self) -> str:
        return self.text[self.at : self.at + 1]

    def new(self, *ways: Way) -> str:
        """A new name for these alternatives."""
        self.n_made += 1
        if self.n_made > MOST:
            raise self.error(f"expected at most {MOST} productions")
        name = f"#{self.n_made}"
        self.productions[name] = list(ways)
        return name

    def ways(self, depth: int) -> list[Way]:
        """Parse alternatives; inside a group they may extend over several lines."""
        if depth > MOST_GROUPS:
            raise self.error(f"expected at most {MOST_GROUPS} groups inside each other")
        found = [self.sequence(depth)]
        while self.next() == "|":
            self.at += 1
            self.skip(lines=True)
            found.append(self.sequence(depth))
        return found

    def sequence(self, depth: int) -> Way:
        items: list[Way] = []
        while True:
            char = self.next()
            if char and char in "*+?{":
                if not items:
                    raise self.error("expected an item before a repetition")
                items[-1] = (self.repeated(items[-1], depth),)
            elif char and (char in '"[(.<!-' or (char.isascii() and char.isalnum())):
                items.append(self.item(char, depth))
            else:
                return tuple(symbol for item in items for symbol in item)
            self.skip(lines=depth > 0)

    def item(self, char: str, depth: int) -> Way:
        if char == '"':
            self.at += 1
            points = []
            while self.next() != '"':
                points.append(self.character())
            self.at += 1
            if any(0xD800 <= point <= 0xDFFF for point in points):
                raise self.error("expected characters, got a surrogate")
            return text_way("".join(map(chr, points)))
        if char == "[":
            return (self.new(*self.char_class()),)
        if char == ".":
            self.at += 1
            return (self.new(*utf8_ranges(0, LAST)),)
        if char == "(":
            self.at += 1
            self.skip(lines=True)
            ways = self.ways(depth + 1)
            self.take(r"\)", "the end of a group")
            return (self.new(*ways),)
        if char in "<!":
            found = TOKEN.match(self.text, self.at)
            if found is None:
                raise self.error("expected a token")
            ids = [int(found[2])] if found[2] else self.token_ids(found[0].removeprefix("!"))
            if len(ids) != 1:
                raise self.error(f"expected the text of one token, got {len(ids)}")
            self.at = found.end()
            return (Token(ids[0], bool(found[1])),)
        return (self.take(r"[a-zA-Z0-9-]+", "an item"),)

    def repeated(self, item: Way, depth: int) -> str:
        """Parse the repetition after an item; returns a name for the repeated item."""
        char = self.next()
        self.at += 1
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char, (0, None))
        if char == "{":
            self.skip(lines=depth > 0)
            least = most = int(self.take(r"\d+", "a number"))
            self.skip(lines=depth > 0)
            if self.next() == ",":
                self.at += 1
                self.skip(lines=depth > 0)
                digits = self.take(r"\d*", "a number")
                most = int(digits) if digits else None
                self.skip(lines=depth > 0)
            self.take("}", "}")
        if least > MOST or (most or 0) > MOST or (most is not None and most < least):
            raise self.error(f"expected bounds in order, at most {MOST}")
        if most is None:
            name = self.new(())
            self.productions[name].append((name, *item))
        else:
            name = self.new(())
            for _ in range(most - least):
                name = self.new((), (*item, name))
        return self.new((*item * least, name))

    def character(self) -> int:
        """Parse one character of a literal or a class."""
        char = self.take(r"(?s:.)", "a character")
        if char != "\\":
            return ord(char)
        kind = self.take(r'[xuUnrt\\"\[\]-]', "an escape")
        if kind not in HEX:
            return ord(ESCAPES.get(kind, kind))
        point = int(self.take(f"[0-9a-fA-F]{{{HEX[kind]}}}", "hexadecimal digits"), 16)
        if point > LAST:
            raise self.error(f"expected a code point up to {LAST:X}")
        return point

    def char_class(self) -> list[Way]:
        """Parse a character class; returns the alternatives of its characters."""
        self.at += 1
        negated = self.next() == "^"
        self.at += negated
        ranges = []
        while self.next() != "]":
            first = last = self.character()
            if self.next() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                last = self.character()
                if last < first:
                    raise self.error("expected a range in ascending order")
            ranges.append((first, last))
        self.at += 1
        if negated:
            ends = sorted(ranges)
            begin, gaps = 0, []
            for first, last in ends:
                gaps.append((begin, first - 1))
                begin = max(begin, last + 1)
            ranges = [(a, b) for a, b in [*gaps, (begin, LAST)] if a <= b]
        return [way for first, last in ranges for way in utf8_ranges(first, last)]
