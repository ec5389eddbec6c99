"""Lazy rules of Lark-style grammars: the shortest text that matches, and what that leaves to others.

llguidance cuts a text into terminals from the left, and a lazy one ends as soon as it matches. Whatever else
could have begun at the same place is then given up. So the texts of a lazy terminal have no beginning that
matches, and other terminals that may stand where it does lose all texts that begin with a match of it.
Source: llguidance 1.9.1, docs/syntax.md, and its behaviour.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar.analysis import walk
from oxillama.grammar.dfa import automaton, meet
from oxillama.grammar.expressions import ANY, ANYTHING
from oxillama.grammar.rules import Alt, Dfa, Node, Ref, Repeat, Seq, Tokens

MAX_PAIRS = 100_000


def cut_lazily(
    rules: Mapping[Ref, Node], start: Ref, terminals: Mapping[Ref, Node], lazy: Mapping[Ref, str]
) -> dict[Ref, Node]:
    """The terminals that lazy ones change, and these, by the names that they have in rules.

    Parameters
    ----------
    rules : what matches each rule.
    start : the rule of the whole text.
    terminals : each place where a terminal stands in a rule by a name of its own, with what matches there.
    lazy : those that end where they first match, with the names of their rules.

    Raises
    ------
    GrammarError : a schema or substrings may stand where a lazy rule does; or an automaton is too large.
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
    """The strings of an automaton that none of its strings begins."""
    ends = dfa.accepting
    return Dfa([() if state in ends else row for state, row in enumerate(dfa.edges)], ends)


def _is_text(node: Node) -> bool:
    return not any(isinstance(one, (Ref, Tokens)) for one in walk(node))


@lru_cache(maxsize=1024)
def _overlap(a: Node, b: Node) -> bool:
    """Whether some text, or a token, may match both."""
    if _is_text(a) and _is_text(b):
        return meet([automaton(a), automaton(b)]).holds_text()
    return isinstance(a, Tokens) == isinstance(b, Tokens)


class _Places:
    """Between which terminals a text can stand: places, and the terminals that lead from one to the next.

    Where a rule ends, a text goes on behind any of its uses.
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
        """The places of a node behind a place; returns that behind it."""
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
        else:  # what is ignored
            self.free[start].append(end)
        return end

    def next(self, place: int) -> list[tuple[Ref, int]]:
        """The terminals that may follow, and where they lead."""
        seen = {place}
        todo = [place]
        for one in todo:  # grows while it is read
            for target in self.free[one]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return [read for one in todo for read in self.reads[one]]

    def beside(self, lazy: Container[Ref]) -> set[tuple[Ref, Ref]]:
        """The terminals of which either may begin where the other one does.

        Both go on to their next places if one text may match both, which a lazy one and another never share.
        """
        found: set[tuple[Ref, Ref]] = set()
        nexts: dict[int, list[tuple[Ref, int]]] = {}
        todo = [(self.start, self.start)]
        seen = set(todo)
        for pair in todo:  # grows while it is read
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
