"""Anchors outside of repetitions: an expression with them as a union of expressions without.

Every sub-expression is a list of pieces, each free of anchors, that may be bound to the start or the end of
the string; concatenation drops the pieces that ask for a character before the start or after the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from oxillama._kernels.grammar.nodes import is_nullable
from oxillama.grammar.analysis import walk
from oxillama.grammar.expressions import ANYTHING, EMPTY, Assertion, alternatives, sequence
from oxillama.grammar.rules import Alt, Node, Repeat, Seq

MAX_PIECES = 256  # ways in which anchors can be met


@dataclass(frozen=True, slots=True)
class Piece:
    """An anchor-free node; ``first``: it must start the string, ``last``: it must end it."""

    node: Node
    first: bool = False
    last: bool = False

    def whole(self, before: Node = ANYTHING, after: Node = ANYTHING) -> Node:
        """The whole strings, where these may stand around what is not bound."""
        return sequence([EMPTY if self.first else before, self.node, EMPTY if self.last else after])


def assertions(node: Node) -> Iterator[Assertion]:
    """The assertions of an expression, not those inside of others."""
    found: Any
    for found in walk(node):
        if isinstance(found, Assertion):
            yield found


def pieces(node: Any) -> list[Piece] | None:
    """The ways in which anchors can be met; None for other assertions, and where there are too many ways."""
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
    """Both in a row; None where an anchor makes that impossible."""
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
