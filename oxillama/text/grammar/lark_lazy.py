"""Lazy rules of Lark-style grammars: a lazy rule ends at its shortest match.

llguidance cuts a text into terminals from the left, and a lazy terminal ends as soon as it matches. All other
terminals that could have begun at the same position are then discarded. So no text of a lazy terminal has a
proper prefix that matches, and competing terminals lose all texts that begin with a match of the lazy one.
Source: llguidance 1.9.1, docs/syntax.md, and its behaviour.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any

from oxillama.errors import GrammarError
from oxillama.text.grammar.analysis import walk
from oxillama.text.grammar.dfa import automaton, meet
from oxillama.text.grammar.expressions import ANY, ANYTHING
from oxillama.text.grammar.rules import Alt, Dfa, Node, Ref, Repeat, Seq, Tokens

MAX_PAIRS = 100_000


def cut_lazily(
    rules: Mapping[Ref, Node], start: Ref, terminals: Mapping[Ref, Node], lazy: Mapping[Ref, str]
) -> dict[Ref, Node]:
    """New nodes for the lazy terminals and for the terminals that compete with them, by reference.

    Args:
        rules: the node of each rule.
        start: the rule of the whole text.
        terminals: the node of each use of a terminal in a rule; each use has a reference of its own.
        lazy: the terminals that end at their first match, with the names of their rules.

    Raises:
        GrammarError: a schema or substrings compete with a lazy rule; or an automaton is too large.
    """
    beside = _Places(rules, start, terminals).beside(lazy)
    found: dict[Ref, Node] = {}
    for one, node in terminals.items():
        others = [other for other in lazy if other != one and (one, other) in beside]
        if isinstance(node, Tokens) or not (others or one in lazy):
            continue
        if not _is_text(node):
            raise GrammarError(f"expected only terminals where the lazy rule {lazy[others[0]]} may stand")
        beyond = Seq((ANY, ANYTHING)) if one in lazy else ANYTHING
        dfa = meet([automaton(node)], [automaton(Seq((terminals[other], beyond))) for other in others])
        found[one] = _shortest(dfa) if one in lazy else dfa
    return found


def _shortest(dfa: Dfa) -> Dfa:
    """The strings of an automaton that have no proper prefix which is also accepted."""
    ends = dfa.accepting
    return Dfa([() if state in ends else row for state, row in enumerate(dfa.edges)], ends)


def _is_text(node: Node) -> bool:
    return not any(isinstance(one, (Ref, Tokens)) for one in walk(node))


@lru_cache(maxsize=1024)
def _overlap(a: Node, b: Node) -> bool:
    """Whether some text, or a token, may match both nodes."""
    if _is_text(a) and _is_text(b):
        return meet([automaton(a), automaton(b)]).holds_text()
    return isinstance(a, Tokens) == isinstance(b, Tokens)


class _Places:
    """The positions between terminals, and the terminals that lead from one position to the next.

    After the end of a rule, any use of the rule may continue.
    """

    def __init__(self, rules: Mapping[Ref, Node], start: Ref, terminals: Mapping[Ref, Node]) -> None:
        self.terminals = terminals
        self.free: list[list[int]] = []
        self.reads: list[list[tuple[Ref, int]]] = []
        self.ends = {name: (self.place(), self.place()) for name in rules}
        for name, node in rules.items():
            first, last = self.ends[name]
            self.free[self.add(node, first)].append(last)
        self.start = self.ends[start][0]

    def place(self) -> int:
        self.free.append([])
        self.reads.append([])
        return len(self.free) - 1

    def add(self, node: Any, start: int) -> int:
        """Add the positions of a node, which begins at ``start``; returns the position after the node."""
        if isinstance(node, Seq):
            for item in node.items:
                start = self.add(item, start)
            return start
        end = self.place()
        if isinstance(node, Alt):
            for item in node.items:
                self.free[self.add(item, start)].append(end)
        elif isinstance(node, Repeat):
            loop = self.place()
            self.free[start] += [loop, end] if node.least == 0 else [loop]
            self.free[self.add(node.item, loop)] += [end] if node.most == 1 else [loop, end]
        elif node in self.terminals:
            self.reads[start].append((node, end))
        elif node in self.ends:
            first, last = self.ends[node]
            self.free[start].append(first)
            self.free[last].append(end)
        else:  # ignored text
            self.free[start].append(end)
        return end

    def next(self, place: int) -> list[tuple[Ref, int]]:
        """The terminals that may follow a position, and the positions they lead to."""
        seen = {place}
        todo = [place]
        for one in todo:  # `todo` grows during the loop
            for target in self.free[one]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return [read for one in todo for read in self.reads[one]]

    def beside(self, lazy: Container[Ref]) -> set[tuple[Ref, Ref]]:
        """The pairs of terminals that may begin at the same position of a text.

        Both continue to their next positions if one text may match both; a lazy terminal and another never
        share one.
        """
        found: set[tuple[Ref, Ref]] = set()
        nexts: dict[int, list[tuple[Ref, int]]] = {}
        todo = [(self.start, self.start)]
        seen = set(todo)
        for pair in todo:  # `todo` grows during the loop
            for place in pair:
                if place not in nexts:
                    nexts[place] = self.next(place)
            left, right = nexts[pair[0]], nexts[pair[1]]
            for one, then in left:
                for other, after in right:
                    found.add((one, other))
                    if (then, after) in seen or (one in lazy) != (other in lazy):
                        continue
                    if one == other or _overlap(self.terminals[one], self.terminals[other]):
                        seen.add((then, after))
                        todo.append((then, after))
                        if len(seen) > MAX_PAIRS:
                            raise GrammarError(f"expected at most {MAX_PAIRS} pairs of places, got more")
        return found
