"""Left recursion in a recursive transition network, removed by the left-corner transform."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.errors import GrammarError

CALLS, EPSILON = 2, 3


@dataclass(slots=True)
class State:
    """A state of the network.

    Attributes
    ----------
    edges : (what, op, target) by their kind: bytes, tokens, calls, epsilon. ``what`` of a call is the number
        of a subnetwork, below 0 that of a unit.
    final : whether its subnetwork may end here.
    count : least, most, slack, as `Program` has them.
    """

    edges: list[list[tuple[int, int, int]]] = field(default_factory=lambda: [[], [], [], []])
    final: bool = False
    count: tuple[int, int, int] | None = None


def remove_left_recursion(states: list[State], starts: list[int], most: int) -> None:
    """Rewrite the subnetworks that call themselves before they have read anything, in place.

    In a cycle of such subnetworks, every match of a goal A begins with a match of some subnetwork B of the
    cycle that itself begins without a call into the cycle. B is then the beginning of every subnetwork C
    that starts by calling B, and so on up to A: the left-corner transform (Rosenkrantz and Lewis, 1970).
    Each goal gets its own copy of the cycle's bodies. In it the end of B leads to the state that C returns
    to after its call of B.

    Parameters
    ----------
    states : all states of the network
    starts : the start state of every subnetwork
    most : states the network may have

    Raises
    ------
    GrammarError : more than ``most`` states would be needed.
    """
    for cycle in cycles(
        [[number for number, _, _ in states[start].edges[CALLS] if number >= 0] for start in starts]
    ):
        members = set(cycle)
        bodies = {number: _body(states, starts[number]) for number in cycle}
        after: dict[int, list[tuple[int, int, int]]] = {number: [] for number in cycle}
        for caller in cycle:
            for number, op, back in states[starts[caller]].edges[CALLS]:
                if number in members:
                    after[number].append((caller, op, back))
        goals = {goal: _copy_for_goal(states, starts, goal, bodies, after, most) for goal in cycle}
        for goal, start in goals.items():
            starts[goal] = start


def _copy_for_goal(
    states: list[State],
    starts: list[int],
    goal: int,
    bodies: dict[int, list[int]],
    after: dict[int, list[tuple[int, int, int]]],
    most: int,
) -> int:
    """The start state of a copy of the cycle's bodies that matches ``goal``."""
    if len(states) + sum(map(len, bodies.values())) > most:
        raise GrammarError(f"grammar: expected at most {most} states, got more")
    copy: dict[tuple[int, int], int] = {}
    for number, body in bodies.items():
        for q in body:
            copy[number, q] = len(states)
            states.append(State(count=states[q].count))
    start = State()
    states.append(start)
    for number, body in bodies.items():
        for q in (*body, starts[number]):
            old, new = states[q], start if q == starts[number] else states[copy[number, q]]
            for kind, edges in enumerate(old.edges):
                new.edges[kind] += [
                    (what, op, copy[number, target])
                    for what, op, target in edges
                    if kind != CALLS or q != starts[number] or what not in bodies
                ]
            if old.final:
                new.final = number == goal
                new.edges[EPSILON] += [(0, op, copy[caller, back]) for caller, op, back in after[number]]
    return len(states) - 1


def _body(states: list[State], start: int) -> list[int]:
    """The states of a subnetwork after its start state."""
    seen = {start}
    todo = [start]
    while todo:
        for edges in states[todo.pop()].edges:
            for _, _, target in edges:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
    return sorted(seen - {start})


def cycles(graph: list[list[int]]) -> list[list[int]]:
    """The strongly connected components with a cycle in them: Tarjan's algorithm without recursion."""
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
