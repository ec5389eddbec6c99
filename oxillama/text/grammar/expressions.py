"""Expressions over characters: constructors, and assertions about the text around a position."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.text.grammar.codepoints import EVERYTHING, Ranges, union
from oxillama.text.grammar.rules import Alt, Chars, Node, Repeat, Seq, Text

MAX_OPENING = 32  # length of the prefixes that `differ` compares
EMPTY = Seq(())
ANY = Chars(EVERYTHING)
ANYTHING = Repeat(ANY, 0, None)


@dataclass(frozen=True, slots=True)
class Assertion:
    """A zero-width condition on the text around a position.

    Attributes:
        sign: "^", "$", "b", "B" (word boundary, no word boundary), "?=", "?!", "?<=", "?<!".
        body: the text that a lookaround expects after or before the position. It may contain assertions.
        at: the assertion's position in the pattern, for messages.
    """

    sign: str
    body: Node = EMPTY
    at: int = field(default=0, compare=False)


def sequence(items: list[Node]) -> Node:
    """The concatenation of the items; nested sequences are flattened."""
    flat: list[Node] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Seq) else (item,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alternatives(items: list[Node]) -> Node:
    """The union of the items, flattened, without duplicates; single characters merge into one set."""
    flat: dict[Node, None] = {}
    for item in items:
        for one in item.items if isinstance(item, Alt) else (item,):
            flat[one] = None
    chars = [one for one in flat if isinstance(one, Chars)]
    if len(chars) > 1:
        merged: Node = Chars(union(*(one.ranges for one in chars)))
        flat = dict.fromkeys([merged, *(one for one in flat if not isinstance(one, Chars))])
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def differ(one: Node, other: Node) -> bool:
    """Whether the first characters prove that the two languages have no string in common."""
    return all(
        any(not _share(a, b) for a, b in zip(these, those))
        for these in _openings(one)
        for those in _openings(other)
    )


def _openings(node: Node) -> list[list[Ranges]]:
    """The sets of each alternative's first characters, up to the first part of variable length."""
    if isinstance(node, Alt):
        return [way for item in node.items for way in _openings(item)]
    found: list[Ranges] = []
    for item in node.items if isinstance(node, Seq) else (node,):
        if isinstance(item, Text):
            found += [((ord(char), ord(char)),) for char in item.text]
            continue
        times, body = (item.least, item.item) if isinstance(item, Repeat) else (1, item)
        if isinstance(body, Chars):
            found += [body.ranges] * min(times, MAX_OPENING)
        if not isinstance(body, Chars) or (isinstance(item, Repeat) and item.most != times):
            break
    return [found[:MAX_OPENING]]


def _share(a: Ranges, b: Ranges) -> bool:
    """Whether two sets of characters intersect."""
    return any(low <= last and first <= high for low, high in a for first, last in b)
