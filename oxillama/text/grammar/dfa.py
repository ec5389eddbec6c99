"""Finite automata over code points: boolean combinations of regular languages, for the `Dfa` nodes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from oxillama._kernels.grammar.dfa import of_texts
from oxillama._kernels.grammar.languages import Language as Language, meet as meet
from oxillama.text.grammar.rules import Dfa, Node

MAX_TEXTS = 10_000  # limit of the strings that are counted
MAX_STEPS = 100_000  # limit of the edges that the count follows


@lru_cache(maxsize=64)
def language(node: Node) -> Language:
    """The automaton of an expression, not yet deterministic; the 64 used last are cached."""
    return Language(node)


def automaton(node: Node) -> Dfa:
    """The deterministic automaton of an expression.

    Raises:
        GrammarError: the automaton would need too many states.
    """
    return node if isinstance(node, Dfa) else language(node).automaton()


def number_of_texts(dfa: Dfa, least: int = 0, most: int | None = None) -> int | None:
    """The number of strings of ``least`` to ``most`` characters that an automaton without dead states
    accepts.

    None if there are more than `MAX_TEXTS`, or if the count takes more than `MAX_STEPS` edges.
    """
    edges, accepting = dfa.edges, dfa.accepting
    ways = {0: 1}  # state -> number of strings of the current length that lead to it
    found = length = steps = 0
    while ways and (most is None or length <= most):
        if length >= least:
            found += sum(n for state, n in ways.items() if state in accepting)
        endless = most is None and length > dfa.n_states  # so the automaton has a cycle
        if found > MAX_TEXTS or endless or steps > MAX_STEPS:
            return None
        after: dict[int, int] = {}
        for state, n in ways.items():
            for first, last, target in edges[state]:
                after[target] = after.get(target, 0) + n * (last - first + 1)
            steps += len(edges[state])
        ways = after
        length += 1
    return found


def texts_of(dfa: Dfa) -> list[str]:
    """All strings that an automaton accepts, sorted; the automaton must accept only a few."""
    edges, accepting = dfa.edges, dfa.accepting
    found = []
    todo = [(0, "")]
    while todo:
        state, text = todo.pop()
        found += [text] if state in accepting else []
        for first, last, target in edges[state]:
            todo += [(target, text + chr(point)) for point in range(first, last + 1)]
    return sorted(found)


def only(texts: Iterable[str]) -> Dfa:
    """The automaton that accepts exactly these strings."""
    return of_texts(tuple(texts), False)


def all_but(texts: Iterable[str]) -> Dfa:
    """The automaton that accepts every string except these."""
    return of_texts(tuple(texts), True)
