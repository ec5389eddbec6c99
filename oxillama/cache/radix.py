"""The nodes of the prefix cache's radix tree: a page each, and the recurrent states within it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Tokens = tuple[int, ...]


@dataclass(eq=False)
class CachedState:
    """A recurrent state that is kept."""

    node: Node
    end: int  # tokens it has seen
    slot: int
    used: int


@dataclass(eq=False)
class Node:
    """A page of the tree; a root has none, nor has one that was given up."""

    tokens: Tokens = ()
    page: int = -1
    parent: Node | None = None
    key: bytes = b""  # of the tree, at its root
    end: int = 0  # tokens up to here, its own included
    used: int = 0  # when, on the tree's own clock
    pins: int = 0
    children: dict[int, list[Node]] = field(default_factory=dict)  # by their first token
    states: dict[int, CachedState] = field(default_factory=dict)  # by their end, which lies in this page

    def longest(self, tokens: Tokens) -> tuple[Node | None, int]:
        """The child that has most of ``tokens`` in common, and how many."""
        best, most = None, 0
        for child in self.children.get(tokens[0], ()) if tokens else ():
            n = common(child.tokens, tokens)
            if n > most:
                best, most = child, n
        return best, most


def walk(root: Node | None, tokens: Sequence[int], page_size: int) -> tuple[list[Node], int]:
    """The path that has most of ``tokens`` in common, and how many."""
    path: list[Node] = []
    n, node = 0, root
    while node is not None:
        child, same = node.longest(tuple(tokens[n : n + page_size]))
        if child is None:
            break
        path.append(child)
        n += same
        node = child if same == page_size else None
    return path, n


def last_state(path: Sequence[Node], n: int) -> CachedState | None:
    """The last state on a path within ``n`` tokens."""
    states = (state for node in path for state in node.states.values() if state.end <= n)
    return max(states, key=lambda state: state.end, default=None)


def common(a: Tokens, b: Tokens) -> int:
    """How many tokens two begin with together."""
    if a == b:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
