"""Parses regular expressions in the syntax of ECMA-262 into expressions.

Patterns are parsed as with the flag `u`: characters are code points. Also accepted are escapes that `u`
forbids but that mean the character itself without it (`\\-`, `\\_`), and quantifiers after lookaheads.
Constructs that are not regular are errors with their position.

Source: ECMA-262 (2024), chapter 22.2, and its Annex B for lone braces and brackets.
"""

from __future__ import annotations

import re

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.codepoints import (
    DIGITS,
    EVERYTHING,
    LINE_ENDS,
    SPACES,
    WORD,
    Ranges,
    category,
    complement,
    union,
)
from oxillama.text.grammar.expressions import EMPTY, Assertion, alternatives, sequence
from oxillama.text.grammar.rules import LAST_CODE_POINT, Chars, Node, Repeat

MAX_DEPTH = 100  # groups within groups
MAX_COUNT = 1_000_000  # the largest bound of a quantifier

_CLASSES = {
    "d": DIGITS,
    "D": complement(DIGITS),
    "w": WORD,
    "W": complement(WORD),
    "s": SPACES,
    "S": complement(SPACES),
}
_DOT = {None: complement(LINE_ENDS), False: complement(((0xA, 0xA),)), True: EVERYTHING}
_CONTROLS = {"t": 0x9, "n": 0xA, "v": 0xB, "f": 0xC, "r": 0xD}
_ASSERTIONS = {"^": "^", "$": "$", "\\b": "b", "\\B": "B"}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_BRACKETS = re.compile(r"\[(?:[^\\\]]|\\.)*\]", re.DOTALL)
_BOUNDS = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
_LOOKS = ("?=", "?!", "?<=", "?<!")
_DOTS = re.compile(r"\?(-?)s([:)])")


class Parser:
    """Recursive descent over the pattern; `at` is the current position.

    ``dots``: whether a dot matches a line feed besides all other characters; the groups ``(?s:...)`` and
    ``(?-s:...)``, or ``(?s)`` at the beginning, change it. None: a dot matches no line end, and such groups
    are errors.
    """

    def __init__(self, pattern: str, dots: bool | None) -> None:
        self.text: str = pattern
        self.dots: bool | None = dots
        self.at: int = 0
        self.depth: int = 0
        self.brackets: dict[str, Node] = {}  # cached by their texts, as patterns often repeat brackets

    def fail(self, what: str, at: int | None = None) -> GrammarError:
        return GrammarError(f"regex {shown(self.text)}, position {self.at if at is None else at}: {what}")

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def parse(self) -> Node:
        """Parse the whole pattern. The nodes may include `Assertion`s."""
        node = self.disjunction()
        if self.at < len(self.text):
            raise self.fail("expected the end of the pattern, got ')'")
        return node

    def disjunction(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"more than {MAX_DEPTH} groups within each other")
        branches = [self.concatenation()]
        while self.take("|"):
            branches.append(self.concatenation())
        self.depth -= 1
        return alternatives(branches)

    def concatenation(self) -> Node:
        terms: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            terms.append(self.term())
        return sequence(terms)

    def term(self) -> Node:
        start = self.at
        char = self.text[start]
        text = self.text[start : start + 2] if char == "\\" else char
        if text in _ASSERTIONS:
            self.at += len(text)
            return Assertion(_ASSERTIONS[text], at=start)  # type: ignore[return-value]
        return self.quantified(self.group() if char == "(" else self.atom(), start)

    def group(self) -> Node:
        start, dots = self.at, self.dots
        self.at += 1
        sign = next((look for look in _LOOKS if self.take(look)), None) if self.peek("?") else None
        said = None if dots is None else _DOTS.match(self.text, self.at)
        if said is not None:
            self.at, self.dots = said.end(), not said[1]
            if said[2] == ")" and start:
                flag = f"(?{said[1]}s"
                raise GrammarError(f"regex: expected {flag}) at the beginning, or as {flag}:...)")
            if said[2] == ")":
                return EMPTY
        elif sign is not None:
            pass
        elif self.take("?<"):
            end = self.text.find(">", self.at)
            if end <= self.at:
                raise self.fail("expected a name and '>' after '(?<'", start)
            self.at = end + 1
        elif self.peek("?") and not self.take("?:"):
            raise self.fail("expected '(?:' or '(?<name>'", start)
        found = self.disjunction()
        if not self.take(")"):
            raise self.fail("'(' is never closed", start)
        self.dots = dots
        return found if sign is None else Assertion(sign, found, start)  # type: ignore[return-value]

    def quantified(self, item: Node, start: int) -> Node:
        bounds = self.quantifier()
        if bounds is None:
            return item
        self.take("?")  # a lazy quantifier matches the same strings
        if self.quantifier() is not None:
            raise self.fail("a quantifier follows a quantifier", start)
        if bounds == (1, 1):
            return item
        return EMPTY if bounds[1] == 0 else Repeat(item, *bounds)

    def quantifier(self) -> tuple[int, int | None] | None:
        sign = self.text[self.at : self.at + 1]
        if sign in _QUANTIFIERS:
            self.at += 1
            return _QUANTIFIERS[sign]
        if sign != "{":
            return None
        found = _BOUNDS.match(self.text, self.at)
        if found is None:
            return None  # Annex B: a lone brace is a literal character
        low, comma, high = found.groups()
        if max(len(low), len(high)) > len(str(MAX_COUNT)) or max(int(low), int(high or 0)) > MAX_COUNT:
            raise self.fail(f"a quantifier counts to at most {MAX_COUNT}")
        least = int(low)
        most = least if not comma else int(high) if high else None
        if most is not None and most < least:
            raise self.fail(f"the quantifier {found[0]} is out of order")
        self.at = found.end()
        return least, most

    def atom(self) -> Node:
        start = self.at
        char = self.text[start]
        self.at += 1
        if char == ".":
            return Chars(_DOT[self.dots])
        if char == "[":
            return self.bracket(start)
        if char == "\\":
            return Chars(self.escape(start, in_class=False))
        if char in "*+?":
            raise self.fail(f"nothing to repeat before {char!r}", start)
        return Chars(((ord(char), ord(char)),))

    def bracket(self, start: int) -> Node:
        whole = _BRACKETS.match(self.text, start)
        text = whole[0] if whole else ""
        if text in self.brackets:
            self.at = start + len(text)
            return self.brackets[text]
        found = Chars(self.char_class(start))
        self.brackets[self.text[start : self.at]] = found
        return found

    def char_class(self, start: int) -> Ranges:
        negated = self.take("^")
        parts: list[Ranges] = []
        while not self.take("]"):
            low = self.class_atom(start)
            if self.peek("-") and not self.peek("-]"):
                at = self.at
                self.at += 1
                high = self.class_atom(start)
                if not (_is_single(low) and _is_single(high)):  # Annex B: "-" is a literal character
                    parts += [low, ((0x2D, 0x2D),), high]
                    continue
                if low[0][0] > high[0][0]:
                    raise self.fail("the range of characters is out of order", at)
                low = ((low[0][0], high[0][0]),)
            parts.append(low)
        chars = union(*parts)
        return complement(chars) if negated else chars

    def class_atom(self, start: int) -> Ranges:
        if self.at >= len(self.text):
            raise self.fail("'[' is never closed", start)
        at = self.at
        self.at += 1
        if self.text[at] == "\\":
            return self.escape(at, in_class=True)
        return ((ord(self.text[at]), ord(self.text[at])),)

    def escape(self, start: int, in_class: bool) -> Ranges:
        if self.at >= len(self.text):
            raise self.fail("the pattern ends in a backslash", start)
        char = self.text[self.at]
        self.at += 1
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "pP" and self.peek("{"):
            chars = self.property_name(start)
            return complement(chars) if char == "P" else chars
        if char in "bB" and not (in_class and char == "b"):
            raise self.fail(f"the word boundary \\{char} is not supported", start)
        if char in "123456789" or (char == "k" and self.peek("<")):
            raise self.fail("a backreference is not regular", start)
        point = self.escaped_character(char, start)
        return ((point, point),)

    def escaped_character(self, char: str, start: int) -> int:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "b":
            return 0x8
        if char == "0":
            if self.at < len(self.text) and self.text[self.at].isdigit():
                raise self.fail("an octal escape is not supported", start)
            return 0
        if char == "c":
            letter = self.text[self.at : self.at + 1]
            if not (letter.isascii() and letter.isalpha()):
                raise self.fail("expected a letter after \\c", start)
            self.at += 1
            return ord(letter) % 32
        if char == "x":
            return self.hex_digits(2, start)
        if char == "u":
            return self.unicode_escape(start)
        if char.isascii() and char.isalnum():
            raise self.fail(f"the escape \\{char} is not known", start)
        return ord(char)

    def unicode_escape(self, start: int) -> int:
        if self.take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : end] if end > 0 else ""
            if not digits or len(digits.lstrip("0")) > 6 or not _is_hex(digits):
                raise self.fail("expected hexadecimal digits in \\u{...}", start)
            self.at = end + 1
            point = int(digits, 16)
            if point > LAST_CODE_POINT:
                raise self.fail(f"{point:#x} is not a code point", start)
            return point
        point = self.hex_digits(4, start)
        if 0xD800 <= point < 0xDC00 and self.peek("\\u"):
            at = self.at
            self.at += 2
            low = self.hex_digits(4, start)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
            self.at = at
        return point

    def hex_digits(self, count: int, start: int) -> int:
        digits = self.text[self.at : self.at + count]
        if len(digits) < count or not _is_hex(digits):
            raise self.fail(f"expected {count} hexadecimal digits", start)
        self.at += count
        return int(digits, 16)

    def property_name(self, start: int) -> Ranges:
        end = self.text.find("}", self.at)
        if end < 0:
            raise self.fail("\\p{ is never closed", start)
        name = self.text[self.at + 1 : end]
        self.at = end + 1
        key, equals, value = name.partition("=")
        if name == "Any":
            return EVERYTHING
        if name == "ASCII":
            return ((0, 0x7F),)
        found = category(value if equals and key in ("gc", "General_Category") else name)
        if found is None:
            raise self.fail(f"the property {name!r} is not a general category", start)
        return found


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _is_hex(digits: str) -> bool:
    return all(digit in "0123456789abcdefABCDEF" for digit in digits)
