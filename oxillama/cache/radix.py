"""Nodes of the prefix cache's radix tree: a page of each group, and states after some of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Tokens = tuple[int, ...]


@dataclass(eq=False)
class CachedState:
    """A recurrent state in the prefix cache."""

    node: Node
    end: int  # its tokens
    slot: int
    used: int


@dataclass(eq=False)
class Node:
    """The tokens of a page, and the page of each group. Roots have no pages, evicted nodes no parent.

    A page that only rows within a window see may be missing (`GIVEN_BACK`).
    """

    tokens: Tokens = ()
    pages: list[int] = field(default_factory=list)
    parent: Node | None = None
    key: bytes = b""  # of the tree, at its root
    end: int = 0  # tokens from the root, its own included
    used: int = 0  # time of the last use, on the cache's clock
    seen: int = 0  # time of the last use of its pages of windowed groups
    pins: int = 0
    children: dict[int, list[Node]] = field(default_factory=dict)  # by their first token
    states: dict[int, CachedState] = field(default_factory=dict)  # by their end, a position in this page

    def longest(self, tokens: Tokens) -> tuple[Node | None, int]:
        """The child with the longest common prefix with ``tokens``, and its length."""
        best, most = None, 0
        for child in self.children.get(tokens[0], ()) if tokens else ():
            n = common(child.tokens, tokens)
            if n > most:
                best, most = child, n
        return best, most


def walk(root: Node | None, tokens: Sequence[int], page_size: int) -> tuple[list[Node], int]:
    """The path with the longest common prefix with ``tokens``, and its length."""
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
    """Length of the common prefix."""
    if a == b:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
