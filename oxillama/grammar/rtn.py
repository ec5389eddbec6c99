"""Rules to a recursive transition network (RTN): byte automata that call each other, as the kernel runs them.

A subnetwork is the automaton of one called rule. Its states have byte edges, epsilon edges, token edges and
calls of other subnetworks, each with the state to return to. A subnetwork never matches the empty string: a
call of one that could has an epsilon edge beside it. So only a subnetwork that begins with a call of itself,
directly or not, could be called for ever without reading anything; `left_recursion` rewrites those.

`x{m,n}` that would need many copies is one state with a count. Each edge says what it asks of the count
(MORE: fewer than n so far; ENOUGH: at least m) and what it makes of it (RESET, KEEP, NEXT, ONE).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oxillama.grammar.analysis import (
    INLINE_SIZE,
    Calls,
    find_calls,
    is_nullable,
    nullable_rules,
    repeat_copies,
    size,
)
from oxillama.grammar.left_recursion import remove_left_recursion
from oxillama.grammar.rtn_state import COUNT_BITS, ENOUGH, KEEP, MORE, NEXT, ONE, RESET, State, too_large
from oxillama.grammar.rules import Alt, Chars, Dfa, Node, Ref, Repeat, Rules, Seq, Text, Tokens
from oxillama.grammar.utf8 import Tree, byte_tree

MAX_STATES = 300_000
MAX_INLINE_DEPTH = 80  # of nodes and copied rules inside each other; deeper rules are called


@dataclass(slots=True)
class Rtn:
    """A network.

    Attributes
    ----------
    states : of all subnetworks.
    starts : the start state of every subnetwork, the root's first.
    token_sets : token terminals, by the numbers in the token edges.
    accepts_empty : whether the root matches the empty text.
    """

    states: list[State]
    starts: list[int]
    token_sets: list[Tokens]
    accepts_empty: bool


def build_rtn(rules: Rules, unit: Callable[[str], int] | None = None) -> Rtn:
    """Build the RTN of pruned rules. A name without a rule is a call of -1 less the number that ``unit`` has for it.

    Raises
    ------
    GrammarError
        It would need more than `MAX_STATES` states.
    """
    builder = _Builder(rules, find_calls(rules), nullable_rules(rules), unit)
    starts = builder.build_all()
    nonempty = [_nonempty_start(builder.states, start) for start in starts]
    remove_left_recursion(builder.states, nonempty, MAX_STATES)
    if len(builder.states) > MAX_STATES:
        raise too_large(MAX_STATES)
    return Rtn(builder.states, nonempty, builder.token_sets, rules.root in builder.nullable)


class _Builder:
    def __init__(
        self, rules: Rules, calls: Calls, nullable: set[str], unit: Callable[[str], int] | None
    ) -> None:
        self.rules, self.calls, self.nullable, self.unit = rules, calls, nullable, unit
        self.states: list[State] = []
        self.number_of: dict[str, int] = {}
        self.bodies: list[Node] = []  # of every subnetwork
        self.token_sets: list[Tokens] = []
        self.depth = 0

    def build_all(self) -> list[int]:
        """Build every subnetwork; return their start states."""
        self.subnetwork(self.rules.root)
        starts: list[int] = []
        while len(starts) < len(self.bodies):
            start = self.new()
            self.states[self.build(self.bodies[len(starts)], start)].final = True
            starts.append(start)
        return starts

    def new(self) -> int:
        if len(self.states) >= MAX_STATES:
            raise too_large(MAX_STATES)
        self.states.append(State())
        return len(self.states) - 1

    def subnetwork(self, name: str) -> int:
        if self.unit is not None and name not in self.rules.rules:
            return -1 - self.unit(name)
        if name not in self.number_of:
            self.number_of[name] = self.anonymous_subnetwork(self.rules.rules[name])
        return self.number_of[name]

    def anonymous_subnetwork(self, body: Node) -> int:
        self.bodies.append(body)
        return len(self.bodies) - 1

    def epsilon(self, source: int, target: int) -> None:
        self.states[source].epsilon.append((RESET, target))

    # Each of these adds a way from ``start`` on and returns the state where the node has been matched.
    # ``start`` may have other edges, and is never come back to.

    def build(self, node: Node, start: int) -> int:
        self.depth += 1
        try:
            if isinstance(node, Text):
                return self.text(node.text.encode(), start)
            if isinstance(node, Chars):
                return self.chars(byte_tree(node.ranges), start)
            if isinstance(node, Seq):
                for item in node.items:
                    start = self.build(item, start)
                return start
            if isinstance(node, Alt):
                return self.alt(node, start)
            if isinstance(node, Ref):
                return self.ref(node, start)
            if isinstance(node, Repeat):
                return self.repeat(node, start)
            return self.dfa(node, start) if isinstance(node, Dfa) else self.tokens(node, start)
        finally:
            self.depth -= 1

    def text(self, data: bytes, start: int) -> int:
        for byte in data:
            end = self.new()
            self.states[start].bytes.append((1 << byte, RESET, end))
            start = end
        return start

    def chars(self, tree: Tree, start: int) -> int:
        end = self.new()
        self.character(tree, start, end, {})
        return end

    def character(self, tree: Tree, start: int, end: int, tails: dict[Tree, int]) -> None:
        """A character from ``start`` to ``end``; ``tails`` holds the states inside characters made so far."""
        for bits, below in tree:
            if below is None:
                self.states[start].bytes.append((bits, RESET, end))
                continue
            if below not in tails:
                tails[below] = self.new()
                self.character(below, tails[below], end, tails)
            self.states[start].bytes.append((bits, RESET, tails[below]))

    def tokens(self, node: Tokens, start: int) -> int:
        end = self.new()
        if node not in self.token_sets:
            self.token_sets.append(node)
        self.states[start].tokens.append((self.token_sets.index(node), RESET, end))
        return end

    def alt(self, node: Alt, start: int) -> int:
        end = self.new()
        for item in node.items:
            self.epsilon(self.build(item, start), end)
        return end

    def ref(self, node: Ref, start: int) -> int:
        called = node.name in self.calls.rules or node.name not in self.rules.rules
        if not called and self.depth <= MAX_INLINE_DEPTH:
            return self.build(self.rules.rules[node.name], start)
        end = self.new()
        self.states[start].calls.append((self.subnetwork(node.name), RESET, end))
        if node.name in self.nullable:
            self.epsilon(start, end)
        return end

    def dfa(self, node: Dfa, start: int) -> int:
        states = [self.new() for _ in node.edges]
        end = self.new()
        self.epsilon(start, states[0])
        tails: dict[int, dict[Tree, int]] = {}
        for state, edges in zip(states, node.edges):
            ranges: dict[int, list[tuple[int, int]]] = {}
            for first, last, target in edges:
                ranges.setdefault(target, []).append((first, last))
            for target, found in ranges.items():
                known = tails.setdefault(target, {})
                self.character(byte_tree(tuple(found)), state, states[target], known)
        for accepting in node.accepting:
            self.epsilon(states[accepting], end)
        return end

    def repeat(self, node: Repeat, start: int) -> int:
        if node.most == 0:
            return start
        copies = repeat_copies(node, size(node.item, self.calls.rules, self.calls.sizes))
        if copies is None:
            return self.counted(node, start)
        ends = []
        for i in range(copies if node.most is not None else node.least):
            if i >= node.least:
                ends.append(start)
            start = self.build(node.item, start)
        if node.most is None:
            loop = self.fresh(start)
            self.epsilon(self.build(node.item, loop), loop)
            return loop
        end = self.new()
        for source in (*ends, start):
            self.epsilon(source, end)
        return end

    def fresh(self, start: int) -> int:
        state = self.new()
        self.epsilon(start, state)
        return state

    def counted(self, node: Repeat, start: int) -> int:
        """One state with a count; what it repeats is a character or a subnetwork of its own."""
        least = 0 if is_nullable(node.item, self.nullable) else node.least
        most = -1 if node.most is None else node.most
        loop, end = self.fresh(start), self.new()
        counter = self.states[loop]
        counter.count = least, most
        counter.epsilon.append((ENOUGH | RESET, end))
        characters, spellings, others = self.split(node.item)
        tails: dict[tuple[int, Tree], int] = {}
        for chars in characters:
            self.counted_character(byte_tree(chars.ranges), loop, loop, tails, loop)
        for dfa in spellings:
            self.counted_spelling(dfa, loop)
        if others:
            single = others[0] if len(others) == 1 else Alt(tuple(others))
            called = (
                self.subnetwork(single.name) if isinstance(single, Ref) else self.anonymous_subnetwork(single)
            )
            counter.calls.append((called, MORE | NEXT, loop))
        return end

    def split(self, node: Node) -> tuple[list[Chars], list[Dfa], list[Node]]:
        """The alternatives of a node that are single characters, automata that pass no state twice, the others."""
        characters: list[Chars] = []
        spellings: list[Dfa] = []
        others: list[Node] = []
        todo, budget = [node], INLINE_SIZE
        while todo:
            node = todo.pop()
            called = isinstance(node, Ref) and (
                node.name in self.calls.rules or node.name not in self.rules.rules
            )
            if isinstance(node, Ref) and not called and budget > 0:
                budget -= 1
                todo.append(self.rules.rules[node.name])
            elif isinstance(node, Alt):
                todo += node.items
            elif isinstance(node, Chars):
                characters.append(node)
            elif isinstance(node, Text) and len(node.text) == 1:
                characters.append(Chars(((ord(node.text), ord(node.text)),)))
            elif isinstance(node, Dfa) and _is_spelling(node):
                spellings.append(node)
            else:
                others.append(node)
        return characters, spellings, others

    def counted_spelling(self, dfa: Dfa, loop: int) -> None:
        """An automaton that is left where it accepts: its states carry the count along."""
        states = {0: loop}
        tails: dict[tuple[int, Tree], int] = {}
        for state, edges in enumerate(dfa.edges):
            targets: dict[int, list[tuple[int, int]]] = {}
            for first, last, target in edges:
                targets.setdefault(loop if target in dfa.accepting else -1 - target, []).append((first, last))
            for target, ranges in targets.items():
                end = loop
                if target < 0:
                    end = states[-1 - target] = states.get(-1 - target) or self.carrying(loop)
                source = states[state] = states.get(state) or self.carrying(loop)
                self.counted_character(byte_tree(tuple(ranges)), source, loop, tails, end)

    def carrying(self, loop: int) -> int:
        """A new state with the count of another."""
        state = self.new()
        self.states[state].count = self.states[loop].count
        return state

    def counted_character(
        self, tree: Tree, start: int, loop: int, tails: dict[tuple[int, Tree], int], end: int
    ) -> None:
        """A character from ``start`` to ``end``; it counts if that is ``loop``."""
        for bits, below in tree:
            op = MORE if start == loop else 0
            if below is None:
                self.states[start].bytes.append((bits, op | (NEXT if end == loop else KEEP), end))
                continue
            if (end, below) not in tails:
                tails[end, below] = self.carrying(loop)
                self.counted_character(below, tails[end, below], loop, tails, end)
            self.states[start].bytes.append((bits, op | KEEP, tails[end, below]))


def _is_spelling(dfa: Dfa) -> bool:
    """Whether no state leads back to the first, and those that accept lead nowhere."""
    back = any(target == 0 for edges in dfa.edges for _, _, target in edges)
    return not back and 0 not in dfa.accepting and not any(dfa.edges[q] for q in dfa.accepting)


def _at_zero(op: int) -> int:
    """An edge's op where its state's count is known to be 0."""
    return ONE if op & COUNT_BITS == NEXT else RESET


def _nonempty_start(states: list[State], start: int) -> int:
    """A new start state without epsilon edges: it has the edges of all states that they lead to."""
    fresh = State()
    seen = {start}
    todo = [start]
    while todo:
        state = states[todo.pop()]
        fresh.bytes += [(bits, _at_zero(op), target) for bits, op, target in state.bytes]
        fresh.tokens += [(ids, _at_zero(op), target) for ids, op, target in state.tokens]
        fresh.calls += [(called, _at_zero(op), target) for called, op, target in state.calls]
        for op, target in state.epsilon:
            enough = not op & ENOUGH or state.count is None or state.count[0] == 0
            if enough and target not in seen:
                seen.add(target)
                todo.append(target)
    states.append(fresh)
    return len(states) - 1
