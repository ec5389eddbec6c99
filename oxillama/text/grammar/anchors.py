"""Anchors outside of repetitions: rewrites an expression with anchors as a union of anchor-free expressions.

Every sub-expression becomes a list of pieces. A piece has no anchors, but may be bound to the start or the
end of the string. Concatenation drops the combinations that require a character before the start or after the
end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from oxillama._kernels.grammar.nodes import is_nullable
from oxillama.text.grammar.analysis import walk
from oxillama.text.grammar.expressions import ANYTHING, EMPTY, Assertion, alternatives, sequence
from oxillama.text.grammar.rules import Alt, Node, Repeat, Seq

MAX_PIECES = 256  # combinations of anchors


@dataclass(frozen=True, slots=True)
class Piece:
    """An anchor-free node; ``first``: it must start the string, ``last``: it must end it."""

    node: Node
    first: bool = False
    last: bool = False

    def whole(self, before: Node = ANYTHING, after: Node = ANYTHING) -> Node:
        """The whole strings; ``before`` and ``after`` surround the piece where no anchor binds it."""
        return sequence([EMPTY if self.first else before, self.node, EMPTY if self.last else after])


def assertions(node: Node) -> Iterator[Assertion]:
    """The assertions of an expression, without assertions nested inside other assertions."""
    found: Any
    for found in walk(node):
        if isinstance(found, Assertion):
            yield found


def pieces(node: Any) -> list[Piece] | None:
    """The anchor-free pieces of an expression; None if it has other assertions, or too many pieces."""
    if isinstance(node, Assertion):
        return [Piece(EMPTY, node.sign == "^", node.sign == "$")] if node.sign in "^$" else None
    if next(assertions(node), None) is None:
        return [Piece(node)]
    if isinstance(node, Seq):
        return _row(node)
    below = [pieces(item) for item in (node.items if isinstance(node, Alt) else (node.item,))]
    found = [piece for one in below if one is not None for piece in one]
    if None in below or (isinstance(node, Repeat) and (node.least, node.most) != (0, 1)):
        return None
    if isinstance(node, Repeat):
        found.append(Piece(EMPTY))
    by_anchors: dict[tuple[bool, bool], list[Node]] = {}
    for piece in found:
        by_anchors.setdefault((piece.first, piece.last), []).append(piece.node)
    return [Piece(alternatives(nodes), *anchors) for anchors, nodes in by_anchors.items()]


def _row(node: Seq) -> list[Piece] | None:
    found = [Piece(EMPTY)]
    for is_plain, items in groupby(node.items, lambda item: next(assertions(item), None) is None):
        for item in [sequence([*items])] if is_plain else items:
            ways = pieces(item)
            if ways is None or len(found) * len(ways) > MAX_PIECES:
                return None
            joined = (_join(left, right) for left in found for right in ways)
            found = [piece for piece in joined if piece is not None]
    return found


def _join(left: Piece, right: Piece) -> Piece | None:
    """The concatenation of two pieces; None where an anchor makes it impossible."""
    first, last, a, b = left.first, right.last, left.node, right.node
    if left.last:
        if not is_nullable(b, set()):
            return None
        b, last = EMPTY, True
    if right.first:
        if not is_nullable(a, set()):
            return None
        a, first = EMPTY, True
    return Piece(sequence([a, b]), first, last)
