"""Expressions made shorter: some strings of an expression, none longer than a bound.

Where counting characters beside an expression would need too large an automaton, each of its repetitions
gets a share of the length instead. What is left is part of the expression's language, not all of it.
"""

from __future__ import annotations

from math import inf, isqrt

from oxillama.grammar.regex import EMPTY, alternatives, sequence
from oxillama.grammar.rules import Alt, Chars, Node, Repeat, Seq, Text


def span(node: Node) -> tuple[int, float] | None:
    """The lengths of the shortest and the longest string of an expression; None where it is not known."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Text):
        return len(node.text), len(node.text)
    if isinstance(node, Repeat):
        inner = span(node.item)
        if inner is None:
            return None
        most = inf if node.most is None else node.most
        return node.least * inner[0], most * inner[1] if most and inner[1] else 0
    if not isinstance(node, (Seq, Alt)):
        return None
    spans = [one for one in map(span, node.items) if one is not None]
    if len(spans) < len(node.items) or (isinstance(node, Alt) and not spans):
        return None
    if isinstance(node, Seq):
        return sum(low for low, _ in spans), sum(high for _, high in spans)
    return min(low for low, _ in spans), max(high for _, high in spans)


def shortened(node: Node, most: int) -> Node | None:
    """An expression of strings of ``node``, none longer than ``most``; None if there is none to be found."""
    found = span(node)
    if found is None or found[0] > most:
        return None
    if found[1] <= most:
        return node
    if isinstance(node, Alt):
        kept = [one for one in (shortened(item, most) for item in node.items) if one is not None]
        return alternatives(kept)
    if isinstance(node, Repeat):
        return _fewer(node, most)
    assert isinstance(node, Seq)
    return _shared(list(node.items), most)


def _fewer(node: Repeat, most: int) -> Node | None:
    """Fewer repetitions: many short ones or few long ones."""
    inner = span(node.item)
    assert inner is not None
    if most == 0 or inner[1] == 0:
        return EMPTY
    root = isqrt(most)
    sizes: list[float] = [root, 3 * root, most // 3, inner[0]] if inner[1] == inf else [inner[0], inner[1]]
    ways: list[Node] = []
    for size in sorted({max(1, inner[0], int(size)) for size in sizes}):
        item, times = shortened(node.item, size), most // size
        if item is not None and times >= max(node.least, 1):
            way = Repeat(item, node.least, times if node.most is None else min(times, node.most))
            ways += [way] if way not in ways else []
    if ways:
        return alternatives(ways)
    return EMPTY if node.least == 0 else None


def _weight(node: Node) -> int:
    """How much length an expression can use: its unbounded repetitions, more if in each other."""
    if isinstance(node, Repeat):
        return _weight(node.item) if node.most is not None else 1 + 3 * _weight(node.item)
    if isinstance(node, Alt):
        return max(map(_weight, node.items), default=0)
    return sum(map(_weight, node.items)) if isinstance(node, Seq) else 0


def _shared(items: list[Node], most: int) -> Node | None:
    """A sequence: what is left over its shortest string is shared out, first to those that need least."""
    spans = [one for one in map(span, items) if one is not None]
    weights = [max(1, _weight(item)) for item in items]
    spare, left = most - sum(low for low, _ in spans), sum(weights)
    for i in sorted(range(len(items)), key=lambda i: (spans[i][1] - spans[i][0], weights[i])):
        low, high = spans[i]
        extra = int(min(high - low, spare * weights[i] // left))
        spare, left = spare - extra, left - weights[i]
        item = shortened(items[i], low + extra)
        if item is None:
            return None
        items[i] = item
    return sequence(items)
