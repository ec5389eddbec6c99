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

from oxillama._kernels.grammar.spelling import EVERY_WAY, ONE_WAY, spell
from oxillama.errors import GrammarError
from oxillama.grammar.analysis import rebuilt
from oxillama.grammar.codepoints import Ranges, difference
from oxillama.grammar.rules import Alt, Chars, Counted, Dfa, Node, Repeat, Seq, Text

QUOTE = Text('"')
_PRINTABLE: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))  # and never escaped
MAX_DIGITS = 800  # of a number in a schema written out

# At most one space after a comma or colon; new lines and indentation too; none; always one space there.
WHITESPACE = ("single", "flexible", "compact", "spaced")


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
        if whitespace == "spaced":
            return Layout(Text(", "), Text(": "), Seq(()))
        space = Repeat(Text(" "), 0, 1)
        if whitespace == "single":
            return Layout(Seq((Text(","), space)), Seq((Text(":"), space)), Seq(()))
        indent = Seq((Text("\n"), Repeat(Chars(((0x9, 0x9), (0x20, 0x20))), 0, 64)))
        wide = Alt((Seq(()), Text(" "), indent))
        return Layout(Seq((Text(","), wide)), Seq((Text(":"), space)), wide)

    def string(self, text: str) -> Node:
        """The texts of one string."""
        if not self.mark:
            return _quoted_literal(text)
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
    """``least`` to ``most`` characters of a run: one is spelled whenever it comes to its first state."""
    if (least, most) == (0, None):
        return run
    return Text("") if most == 0 else Counted(run, 1, least, most)


def spelled_expression(node: Node) -> Node:
    """The spellings of the strings of an expression over characters."""
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


@lru_cache(maxsize=1024)
def _quoted_literal(text: str) -> Node:
    return quoted(literal(text))


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


_ALL = Dfa((((0, 0x10FFFF, 0),),), {0})
ANY_TEXT = spell(_ALL, EVERY_WAY)
ANY_TEXT_ONCE = spell(_ALL, ONE_WAY)
ANY_NAME = quoted(spell(_ALL))


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
            raise GrammarError(f"expected a number of at most {MAX_DIGITS} digits, got more")
    digits = str(abs(value.numerator * 10**places // value.denominator)).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :]
    return ("-" if value < 0 else "") + whole + ("." + part if part else "")
