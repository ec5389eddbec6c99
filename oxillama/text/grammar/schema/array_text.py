"""The JSON texts of arrays.

Without `contains`, an array is its first items, optional from ``least`` on, and a repetition. With
`contains`, it is an automaton over items whose states count. The only loops lead from a state to itself, so
the automaton becomes rules without recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import product

from oxillama.errors import GrammarError
from oxillama.text.grammar.rules import Alt, Node, Ref, Repeat, Seq, Text
from oxillama.text.grammar.schema.arrays import Arrays, Contains
from oxillama.text.grammar.schema.conditions import NOTHING, State, both, not_all
from oxillama.text.grammar.schema.json_text import bracketed
from oxillama.text.grammar.schema.writer import Writer

MAX_COUNTING = 2_000  # states of an array's automaton

EMPTY = Seq(())
Item = tuple[Hashable, Node]  # the state after an item, and the item


def plain_array(conjunct: Arrays, writer: Writer, node: Callable[[State], Node]) -> Node:
    """The arrays of a conjunct without `contains`; ``node`` makes the texts of a state's values."""
    comma, pad = writer.layout.comma, writer.layout.pad
    if conjunct.most == 0:
        return Text("[]")
    prefix = [node(state) for state in conjunct.prefix]
    more = None if conjunct.most is None else conjunct.most - len(prefix)
    if prefix:
        least = max(0, conjunct.least - len(prefix))
        tail: Node = EMPTY
        if more != 0:
            tail = Repeat(Seq((comma, node(conjunct.rest))), least, more)
        for i in range(len(prefix) - 1, 0, -1):
            tail = Seq((comma, prefix[i], tail))
            if i >= conjunct.least:
                tail = Alt((EMPTY, tail))
            if len(prefix) > 16:
                tail = writer.rule(tail, f"{writer.path}-items")
        body: Node = Seq((pad, prefix[0], tail, pad))
    else:
        item = node(conjunct.rest)
        again = Repeat(Seq((comma, item)), max(0, conjunct.least - 1), None if more is None else more - 1)
        body = Seq((pad, item, again, pad))
    return bracketed(body if conjunct.least else Alt((EMPTY, body)), "[]")


def _automaton(
    start: Hashable,
    items: Callable[[Hashable], Sequence[Item]],
    accepts: Callable[[Hashable], bool],
    writer: Writer,
) -> Node:
    """The arrays whose items lead from ``start`` to an accepting state; a loop visits one state only."""
    comma, pad = writer.layout.comma, writer.layout.pad
    names: dict[Hashable, str] = {}
    todo: list[Hashable] = []

    def after(state: Hashable) -> Ref:
        if state not in names:
            if len(names) >= MAX_COUNTING:
                raise GrammarError(f"{writer.path}: its arrays need more than {MAX_COUNTING} states to count")
            names[state] = writer.new_name(f"{writer.path}-items")
            todo.append(state)
        return Ref(names[state])

    first: list[Node] = [Seq((pad, item, after(target), pad)) for target, item in items(start)]
    for state in todo:  # `todo` grows during the loop
        steps = items(state)
        loops = [Seq((comma, item)) for target, item in steps if target == state]
        ways: list[Node] = [Seq((comma, item, after(target))) for target, item in steps if target != state]
        if accepts(state):
            ways.append(EMPTY)
        loop = Repeat(Alt(tuple(loops)), 0, None) if loops else EMPTY
        writer.rules[names[state]] = Seq((loop, Alt(tuple(ways))))
    return bracketed(Alt((*first, EMPTY) if accepts(start) else tuple(first)), "[]")


# --------------------------------------------------------------------------- contains


def counting_array(conjunct: Arrays, writer: Writer) -> Node:
    """The arrays of a conjunct with `contains`.

    A state is the index, up to the last that matters, and the number of items so far for each `Contains`.
    """
    contains = conjunct.contains
    far = max(len(conjunct.prefix), conjunct.least, conjunct.most or 0, *(c.start for c in contains))
    caps = [c.least if c.most is None else c.most for c in contains]
    nodes: dict[State, Node] = {}

    def items(state: Hashable) -> list[Item]:
        assert isinstance(state, tuple)
        index, *counts = state
        if conjunct.most is not None and index >= conjunct.most:
            return []
        base = conjunct.at(index)
        found: list[Item] = []
        options = [_options(c, index, count, cap) for c, count, cap in zip(contains, counts, caps)]
        for choice in product(*options):
            meets = base
            for _, condition in choice:
                meets = both(meets, condition)
            if meets == NOTHING or writer.impossible(meets):
                continue
            target = (
                min(index + 1, far),
                *(min(n + step, cap) for n, (step, _), cap in zip(counts, choice, caps)),
            )
            node = nodes.setdefault(meets, writer.node(meets))
            found.append((target, node))
        return found

    def accepts(state: Hashable) -> bool:
        assert isinstance(state, tuple)
        index, *counts = state
        return index >= conjunct.least and all(n >= c.least for n, c in zip(counts, contains))

    return _automaton((0,) * (len(contains) + 1), items, accepts, writer)


def _options(c: Contains, index: int, count: int, cap: int) -> list[tuple[int, State]]:
    """The alternatives of an item for ``c``: (1 if the item counts else 0, the condition on the item)."""
    if index < c.start:
        return [(0, frozenset())]
    if c.most is None:  # no upper bound: an item that meets ``c`` may count or not
        return [(0, frozenset())] + ([(1, c.state)] if count < cap else [])
    return [(0, not_all(c.state))] + ([(1, c.state)] if count < cap else [])
