"""Finite automata over code points: boolean combinations of regular languages, for the `Dfa` nodes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from oxillama._kernels.grammar.dfa import of_texts
from oxillama._kernels.grammar.languages import Language as Language
from oxillama._kernels.grammar.languages import meet as meet
from oxillama.grammar.rules import Dfa, Node

MAX_RECENT = 64  # expressions that are known again by their identity
MAX_TEXTS = 10_000  # that are counted


_recent: dict[int, tuple[Node, Language]] = {}


def language(node: Node) -> Language:
    """The automaton of an expression; the last ones made are kept."""
    known = _recent.get(
        id(node)
    )  # the hash of a large expression takes longer than a question to its automaton
    if known is None or known[0] is not node:
        known = node, _language(node)
        if len(_recent) >= MAX_RECENT:
            _recent.clear()
        _recent[id(node)] = known
    return known[1]


def automaton(node: Node) -> Dfa:
    """The deterministic automaton of an expression.

    Raises
    ------
    GrammarError : it would need too many states.
    """
    return node if isinstance(node, Dfa) else language(node).automaton()


@lru_cache(maxsize=64)
def _language(node: Node) -> Language:
    return Language(node)


def number_of_texts(dfa: Dfa) -> int | None:
    """How many strings an automaton without dead states accepts; None where that is more than `MAX_TEXTS`."""
    edges, accepting = dfa.edges, dfa.accepting
    counts: dict[int, int] = {}
    todo = [(0, False)]
    under_way: set[int] = set()
    while todo:
        state, is_done = todo.pop()
        if is_done:
            under_way.discard(state)
            sizes = [(last - first + 1) * counts[target] for first, last, target in edges[state]]
            counts[state] = sum(sizes) + (state in accepting)
            if counts[state] > MAX_TEXTS:
                return None
        elif state in under_way:
            return None  # it can come to itself
        elif state not in counts:
            under_way.add(state)
            todo.append((state, True))
            todo += [(target, False) for _, _, target in edges[state]]
    return counts[0]


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
