"""Rules to a network of byte automata that call each other: what the kernel runs.

A state has byte edges, free edges, calls of other frames (an automaton of their own, with the state to
return to) and token edges. A frame never matches the empty string: calls of one that could get a free
edge beside them. So a frame that begins with a call of itself, directly or not, is the only way to call
for ever without reading anything, and those are rewritten (`_remove_left_recursion`).

`x{m,n}` that would need many copies is one state which counts. Each edge says what it asks of the count
(MORE: fewer than n so far; ENOUGH: at least m) and what it leaves (RESET, KEEP, NEXT, ONE).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.errors import GrammarError
from oxillama.grammar.analysis import (
    INLINE_SIZE,
    Calls,
    find_calls,
    is_nullable,
    nullable_rules,
    repeat_copies,
    size,
)
from oxillama.grammar.rules import Alt, Chars, Dfa, Node, Ref, Repeat, Rules, Seq, Text, Tokens
from oxillama.grammar.utf8 import Tree, byte_tree

MORE, ENOUGH = 1, 2
RESET, KEEP, NEXT, ONE = 0, 4, 8, 12
COUNT_BITS = 12

MAX_STATES = 300_000
MAX_INLINE_DEPTH = 80  # of nodes and copied rules inside each other; deeper rules are called


@dataclass(slots=True)
class State:
    """Edges as (what, op, target): bytes as bits, a token set's number, or a frame's number."""

    bytes: list[tuple[int, int, int]] = field(default_factory=list)
    tokens: list[tuple[int, int, int]] = field(default_factory=list)
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    free: list[tuple[int, int]] = field(default_factory=list)
    final: bool = False
    count: tuple[int, int] | None = None  # m and n of x{m,n}; n is -1 for no bound


@dataclass(slots=True)
class Network:
    """All states; the start state of every frame, the root's first; whether the root matches nothing too."""

    states: list[State]
    starts: list[int]
    token_sets: list[Tokens]
    accepts_empty: bool


def build_network(rules: Rules) -> Network:
    """Build the network of pruned rules.

    Raises
    ------
    GrammarError
        It would need more than `MAX_STATES` states.
    """
    builder = _Builder(rules, find_calls(rules), nullable_rules(rules))
    starts = builder.build_all()
    nonempty = [_nonempty_start(builder.states, start) for start in starts]
    _remove_left_recursion(builder.states, nonempty)
    if len(builder.states) > MAX_STATES:
        raise _too_large()
    return Network(builder.states, nonempty, builder.token_sets, rules.root in builder.nullable)


def _too_large() -> GrammarError:
    return GrammarError(f"grammar: needs more than {MAX_STATES} states")


class _Builder:
    def __init__(self, rules: Rules, calls: Calls, nullable: set[str]) -> None:
        self.rules, self.calls, self.nullable = rules, calls, nullable
        self.states: list[State] = []
        self.frame_of: dict[str, int] = {}
        self.bodies: list[Node] = []  # of every frame
        self.token_sets: list[Tokens] = []
        self.depth = 0

    def build_all(self) -> list[int]:
        """Build every frame; return their start states."""
        self.frame(self.rules.root)
        starts: list[int] = []
        while len(starts) < len(self.bodies):
            start = self.new()
            self.states[self.build(self.bodies[len(starts)], start)].final = True
            starts.append(start)
        return starts

    def new(self) -> int:
        if len(self.states) >= MAX_STATES:
            raise _too_large()
        self.states.append(State())
        return len(self.states) - 1

    def frame(self, name: str) -> int:
        if name not in self.frame_of:
            self.frame_of[name] = self.anonymous_frame(self.rules.rules[name])
        return self.frame_of[name]

    def anonymous_frame(self, body: Node) -> int:
        self.bodies.append(body)
        return len(self.bodies) - 1

    def free(self, source: int, target: int) -> None:
        self.states[source].free.append((RESET, target))

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
            self.free(self.build(item, start), end)
        return end

    def ref(self, node: Ref, start: int) -> int:
        if node.name not in self.calls.frames and self.depth <= MAX_INLINE_DEPTH:
            return self.build(self.rules.rules[node.name], start)
        end = self.new()
        self.states[start].calls.append((self.frame(node.name), RESET, end))
        if node.name in self.nullable:
            self.free(start, end)
        return end

    def dfa(self, node: Dfa, start: int) -> int:
        states = [self.new() for _ in node.edges]
        end = self.new()
        self.free(start, states[0])
        tails: dict[int, dict[Tree, int]] = {}
        for state, edges in zip(states, node.edges):
            ranges: dict[int, list[tuple[int, int]]] = {}
            for first, last, target in edges:
                ranges.setdefault(target, []).append((first, last))
            for target, found in ranges.items():
                known = tails.setdefault(target, {})
                self.character(byte_tree(tuple(found)), state, states[target], known)
        for accepting in node.accepting:
            self.free(states[accepting], end)
        return end

    def repeat(self, node: Repeat, start: int) -> int:
        if node.most == 0:
            return start
        copies = repeat_copies(node, size(node.item, self.calls.frames, self.calls.sizes))
        if copies is None:
            return self.counted(node, start)
        ends = []
        for i in range(copies if node.most is not None else node.least):
            if i >= node.least:
                ends.append(start)
            start = self.build(node.item, start)
        if node.most is None:
            loop = self.fresh(start)
            self.free(self.build(node.item, loop), loop)
            return loop
        end = self.new()
        for source in (*ends, start):
            self.free(source, end)
        return end

    def fresh(self, start: int) -> int:
        state = self.new()
        self.free(start, state)
        return state

    def counted(self, node: Repeat, start: int) -> int:
        """One state with a count; what it repeats is a character or a frame of its own."""
        least = 0 if is_nullable(node.item, self.nullable) else node.least
        most = -1 if node.most is None else node.most
        loop, end = self.fresh(start), self.new()
        counter = self.states[loop]
        counter.count = least, most
        counter.free.append((ENOUGH | RESET, end))
        characters, others = self.split(node.item)
        tails: dict[Tree, int] = {}
        for chars in characters:
            self.counted_character(byte_tree(chars.ranges), loop, loop, tails)
        if others:
            single = others[0] if len(others) == 1 else Alt(tuple(others))
            frame = self.frame(single.name) if isinstance(single, Ref) else self.anonymous_frame(single)
            counter.calls.append((frame, MORE | NEXT, loop))
        return end

    def split(self, node: Node) -> tuple[list[Chars], list[Node]]:
        """The alternatives of a node that are single characters, and the others."""
        characters: list[Chars] = []
        others: list[Node] = []
        todo, budget = [node], INLINE_SIZE
        while todo:
            node = todo.pop()
            if isinstance(node, Ref) and node.name not in self.calls.frames and budget > 0:
                budget -= 1
                todo.append(self.rules.rules[node.name])
            elif isinstance(node, Alt):
                todo += node.items
            elif isinstance(node, Chars):
                characters.append(node)
            elif isinstance(node, Text) and len(node.text) == 1:
                characters.append(Chars(((ord(node.text), ord(node.text)),)))
            else:
                others.append(node)
        return characters, others

    def counted_character(self, tree: Tree, start: int, loop: int, tails: dict[Tree, int]) -> None:
        for bits, below in tree:
            op = MORE if start == loop else 0
            if below is None:
                self.states[start].bytes.append((bits, op | NEXT, loop))
                continue
            if below not in tails:
                tails[below] = tail = self.new()
                self.states[tail].count = self.states[loop].count
                self.counted_character(below, tail, loop, tails)
            self.states[start].bytes.append((bits, op | KEEP, tails[below]))


# --------------------------------------------------------------------------- frames that read something


def _at_zero(op: int) -> int:
    """An edge's op where its state's count is known to be 0."""
    return ONE if op & COUNT_BITS == NEXT else RESET


def _nonempty_start(states: list[State], start: int) -> int:
    """A new start state with all edges that lead on from ``start``, none of them free."""
    fresh = State()
    seen = {start}
    todo = [start]
    while todo:
        state = states[todo.pop()]
        fresh.bytes += [(bits, _at_zero(op), target) for bits, op, target in state.bytes]
        fresh.tokens += [(ids, _at_zero(op), target) for ids, op, target in state.tokens]
        fresh.calls += [(frame, _at_zero(op), target) for frame, op, target in state.calls]
        for op, target in state.free:
            enough = not op & ENOUGH or state.count is None or state.count[0] == 0
            if enough and target not in seen:
                seen.add(target)
                todo.append(target)
    states.append(fresh)
    return len(states) - 1


def _remove_left_recursion(states: list[State], starts: list[int]) -> None:
    """Rewrite the frames that call themselves before they have read anything.

    In a circle of such frames, what goal A matches begins with something that a frame B of the circle
    matches without a leading call into the circle. B is then the beginning of every frame C that starts by
    calling B, and so on up to A: the left-corner transform (Rosenkrantz and Lewis, 1970). Each goal gets
    its own copy of the circle's bodies, where the end of B leads on to where C goes on after its call of B.
    """
    for circle in _circles([[frame for frame, _, _ in states[start].calls] for start in starts]):
        members = set(circle)
        bodies = {frame: _body(states, starts[frame]) for frame in circle}
        after: dict[int, list[tuple[int, int, int]]] = {frame: [] for frame in circle}
        for caller in circle:
            for frame, op, back in states[starts[caller]].calls:
                if frame in members:
                    after[frame].append((caller, op, back))
        goals = {goal: _copy_for_goal(states, starts, goal, bodies, after) for goal in circle}
        for goal, start in goals.items():
            starts[goal] = start


def _copy_for_goal(
    states: list[State],
    starts: list[int],
    goal: int,
    bodies: dict[int, list[int]],
    after: dict[int, list[tuple[int, int, int]]],
) -> int:
    """The start state of a copy of the circle's bodies that matches ``goal``."""
    if len(states) + sum(map(len, bodies.values())) > MAX_STATES:
        raise _too_large()
    copy: dict[tuple[int, int], int] = {}
    for frame, body in bodies.items():
        for q in body:
            copy[frame, q] = len(states)
            states.append(State(count=states[q].count))
    start = State()
    states.append(start)
    for frame, body in bodies.items():
        for q in (*body, starts[frame]):
            old, new = states[q], start if q == starts[frame] else states[copy[frame, q]]
            new.bytes += [(bits, op, copy[frame, target]) for bits, op, target in old.bytes]
            new.tokens += [(ids, op, copy[frame, target]) for ids, op, target in old.tokens]
            new.free += [(op, copy[frame, target]) for op, target in old.free]
            new.calls += [
                (called, op, copy[frame, back])
                for called, op, back in old.calls
                if q != starts[frame] or called not in bodies
            ]
            if old.final:
                new.final = frame == goal
                new.free += [(op, copy[caller, back]) for caller, op, back in after[frame]]
    return len(states) - 1


def _body(states: list[State], start: int) -> list[int]:
    """The states of a frame after its start state."""
    seen = {start}
    todo = [start]
    while todo:
        state = states[todo.pop()]
        for _, _, target in (*state.bytes, *state.tokens, *state.calls, *((0, *edge) for edge in state.free)):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return sorted(seen - {start})


def _circles(graph: list[list[int]]) -> list[list[int]]:
    """The strongly connected components with a circle in them (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found = []
    for root in range(len(graph)):
        path = [] if root in index else [(root, iter(graph[root]))]
        while path:
            node, rest = path[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            below = next(rest, None)
            if below is not None:
                if below not in index:
                    path.append((below, iter(graph[below])))
                elif below in on_stack:
                    low[node] = min(low[node], index[below])
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == index[node]:
                component = stack[stack.index(node) :]
                del stack[-len(component) :]
                on_stack -= set(component)
                if len(component) > 1 or node in graph[node]:
                    found.append(component)
    return found
