"""Finite automata over code points: boolean combinations of regular languages, for the `Dfa` nodes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from oxillama._kernels.grammar.dfa import of_texts
from oxillama._kernels.grammar.languages import Language as Language
from oxillama._kernels.grammar.languages import meet as meet
from oxillama.grammar.rules import Dfa, Node

MAX_TEXTS = 10_000  # that are counted
MAX_STEPS = 100_000  # along edges, to count them


@lru_cache(maxsize=64)
def language(node: Node) -> Language:
    """The automaton of an expression; the last ones made are kept."""
    return Language(node)


def automaton(node: Node) -> Dfa:
    """The deterministic automaton of an expression.

    Raises
    ------
    GrammarError : it would need too many states.
    """
    return node if isinstance(node, Dfa) else language(node).automaton()


def number_of_texts(dfa: Dfa, least: int = 0, most: int | None = None) -> int | None:
    """How many strings of ``least`` to ``most`` characters an automaton without dead states accepts.

    None where these are more than `MAX_TEXTS`, or too many steps are needed to tell.
    """
    edges, accepting = dfa.edges, dfa.accepting
    ways = {0: 1}  # to each state with the characters so far
    found = length = steps = 0
    while ways and (most is None or length <= most):
        if length >= least:
            found += sum(n for state, n in ways.items() if state in accepting)
        endless = most is None and length > dfa.n_states  # some state has come twice
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
    """All strings that an automaton accepts, which are few."""
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
    """Exactly these strings."""
    return of_texts(tuple(texts), False)


def all_but(texts: Iterable[str]) -> Dfa:
    """Every string but these."""
    return of_texts(tuple(texts), True)
