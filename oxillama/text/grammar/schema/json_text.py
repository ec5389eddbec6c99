"""JSON texts of values: string characters with their escapes, separators, numbers.

A character of a string may be written raw or escaped, so an automaton over the characters of a string becomes
an automaton over the characters of its JSON text (`spell`). Strings with length bounds only may use every
spelling of JSON. All other strings (names of properties, constants, patterns, formats) use the spellings of
`json.dumps`, with or without `ensure_ascii`; they never have a printable ASCII character as a \\u escape, nor
"/" as "\\/". So the text of a name is forced, and automata of patterns stay small.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from oxillama._kernels.grammar.spelling import EVERY_WAY, ONE_WAY, spell
from oxillama.errors import GrammarError
from oxillama.text.grammar.analysis import rebuilt
from oxillama.text.grammar.codepoints import Ranges, difference
from oxillama.text.grammar.rules import Alt, Chars, Counted, Dfa, Node, Repeat, Seq, Text

QUOTE = Text('"')
_PRINTABLE: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))  # printable ASCII that needs no escape
MAX_DIGITS = 800  # digits of a number of a schema written in full

# Optional space after comma or colon; also new lines and indentation; no white space; always one space.
WHITESPACE = ("single", "flexible", "compact", "spaced")


_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Layout:
    """Separators between the tokens of a JSON text, and the quotes of strings.

    Attributes:
        comma, colon: the separators and the white space after them.
        pad: white space after the opening and before the closing bracket of a nonempty container.
        mark: "" for JSON. Otherwise a text that replaces both quotes of every string. The characters between
            are not escaped and may not contain the mark. Property names that are plain words have no quotes.
    """

    comma: Node
    colon: Node
    pad: Node
    mark: str = ""

    @staticmethod
    def of(whitespace: str, mark: str = "") -> Layout:
        """The layout of a name in `WHITESPACE`. With a ``mark`` there is no white space."""
        if whitespace == "compact" or mark:
            return Layout(Text(","), Text(":"), Seq(()), mark)
        if whitespace == "spaced":
            return Layout(Text(", "), Text(": "), Seq(()))
        space = Repeat(Text(" "), 0, 1)
        if whitespace == "single":
            return Layout(Seq((Text(","), space)), Seq((Text(":"), space)), Seq(()))
        indent = Seq((Text("\n"), Repeat(Chars(((0x9, 0x9), (0x20, 0x20))), 0, 64)))
        wide = Alt((Seq(()), Text(" "), indent))
        return Layout(Seq((Text(","), wide)), Seq((Text(":"), space)), wide)

    def string(self, text: str) -> Node:
        """The spellings of one string."""
        if not self.mark:
            return _quoted_literal(text)
        return Alt(()) if self.mark in text else Text(self.mark + text + self.mark)

    def name(self, text: str) -> Node:
        """The spellings of one property name."""
        return Text(text) if self.mark and _BARE_NAME.fullmatch(text) else self.string(text)


def listed(item: Node, layout: Layout, brackets: str) -> Node:
    """Any number of items, separated by commas, between brackets."""
    body = Seq((layout.pad, item, Repeat(Seq((layout.comma, item)), 0, None), layout.pad))
    return bracketed(Alt((Seq(()), body)), brackets)


def bracketed(body: Node, brackets: str) -> Node:
    """A node between an opening and a closing bracket."""
    return Seq((Text(brackets[0]), body, Text(brackets[1])))


# --------------------------------------------------------------------------- characters of strings


@lru_cache(maxsize=128)
def spelled_char(ranges: Ranges) -> Node:
    """The spellings of one character of a set."""
    if difference(ranges, _PRINTABLE) == ():
        return Chars(ranges)
    edges = tuple((first, last, 1) for first, last in ranges)
    return spell(Dfa((edges, ()), {1}))


def spelled_run(ranges: Ranges) -> Dfa:
    """The spellings of any number of characters of a set."""
    return spell(Dfa((tuple((first, last, 0) for first, last in ranges),), {0}))


def counted(run: Dfa, least: int, most: int | None) -> Node:
    """``least`` to ``most`` characters of a run; each visit to the run's first state is one character."""
    if (least, most) == (0, None):
        return run
    return Text("") if most == 0 else Counted(run, 1, least, most)


def spelled_expression(node: Node) -> Node:
    """The JSON spellings of an expression's strings."""
    if isinstance(node, Chars):
        return spelled_char(node.ranges)
    if isinstance(node, Text):
        return literal(node.text)
    if isinstance(node, Repeat) and isinstance(node.item, Chars):
        char = spelled_char(node.item.ranges)
        if (node.least, node.most) == (0, None) or (isinstance(char, Dfa) and char.holds_text()):
            return counted(spelled_run(node.item.ranges), node.least, node.most)
        return Repeat(char, node.least, node.most)
    if isinstance(node, (Seq, Alt, Repeat)):
        return rebuilt(node, spelled_expression)
    if isinstance(node, Dfa):
        return spell(node)
    raise TypeError(f"not an expression over characters: {type(node).__name__}")


def literal(text: str) -> Node:
    """The spellings of ``text`` that `json.dumps` may choose, without quotes."""
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


@lru_cache(maxsize=1024)
def _quoted_literal(text: str) -> Node:
    return quoted(literal(text))


def quoted(node: Node) -> Node:
    """The node between quotes; the quotes are merged into texts at its ends."""
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


_ALL = Dfa((((0, 0x10FFFF, 0),),), {0})
ANY_TEXT = spell(_ALL, EVERY_WAY)
ANY_TEXT_ONCE = spell(_ALL, ONE_WAY)
ANY_NAME = quoted(spell(_ALL))


# --------------------------------------------------------------------------- numbers


def decimal_text(value: Fraction) -> str:
    """A number written out in full; the value must have finitely many decimals.

    Raises:
        GrammarError: the number has more than `MAX_DIGITS` digits.
    """
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
        if places > MAX_DIGITS:
            raise GrammarError(f"expected a number of at most {MAX_DIGITS} digits, got more")
    digits = str(abs(value.numerator * 10**places // value.denominator)).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :]
    return ("-" if value < 0 else "") + whole + ("." + part if part else "")
