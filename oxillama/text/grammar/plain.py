"""Converts `Rules` to plain data that JSON can hold, and back, without loss."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache, reduce
from itertools import repeat
from operator import or_
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from oxillama._kernels.grammar.nodes import MAX_NODE_DEPTH
from oxillama.errors import GrammarError
from oxillama.text.grammar.rules import Chars, Counted, Dfa, Distinct, Member, Node, Rules

MOST = 2**31 - 1
"""The maximum of a count, a token id, or a state number."""

KINDS = {kind.__name__.lower(): kind for kind in (*get_args(Node), Member)}
WAYS = ("mark", "text", "value", "nothing")


def plain_rules(rules: Rules) -> dict[str, Any]:
    """A grammar as dicts, lists, strings and integers; the order of rules is kept.

    A node is a list: the kind of the node, then its attributes in their order.
    """
    return {"root": rules.root, "rules": [[name, _plain(node)] for name, node in rules.rules.items()]}


def rules_of(plain: Any) -> Rules:
    """The inverse of `plain_rules`. Raises GrammarError for any other value."""
    try:
        root, pairs = plain["root"], plain["rules"]
        named = {_read(str, name, 0): _read(Node, node, 0) for name, node in pairs}
        if set(plain) != {"root", "rules"} or len(named) < len(pairs):
            raise ValueError("unknown keys, or a rule twice")
        return Rules(_read(str, root, 0), named)
    except (KeyError, TypeError, ValueError) as error:
        raise GrammarError(f"grammar: expected what plain_rules gave, got another value: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Dfa):
        return ["dfa", [[list(edge) for edge in edges] for edges in value.edges], sorted(value.accepting)]
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if not is_dataclass(value):
        return value
    return [type(value).__name__.lower(), *(_plain(getattr(value, held.name)) for held in fields(value))]


def _read(wanted: Any, plain: Any, depth: int) -> Any:
    """Convert plain data to a value of the type ``wanted``; ``depth`` is the number of enclosing nodes."""
    if isinstance(wanted, UnionType) and type(None) in get_args(wanted):
        held = [one for one in get_args(wanted) if one is not type(None)]
        return None if plain is None else _read(reduce(or_, held), plain, depth)
    if wanted in (int, bool, str):
        if type(plain) is not wanted or (wanted is int and not 0 <= plain <= MOST):
            raise ValueError(f"expected {wanted.__name__}, got {plain!r:.80}")
        if wanted is str:
            plain.encode()  # a lone surrogate is in no text
        return plain
    if get_origin(wanted) is tuple:
        first, *others = get_args(wanted)
        if not isinstance(plain, list) or (others[0] is not ... and len(plain) != 1 + len(others)):
            raise ValueError(f"expected a list, got {plain!r:.80}")
        return tuple(map(_read, repeat(first), plain, repeat(depth)))
    if depth > MAX_NODE_DEPTH:
        raise ValueError(f"more than {MAX_NODE_DEPTH} nodes inside each other")
    kind, *held = plain
    hints = () if kind == "dfa" else _hints(KINDS[kind])
    if hints and len(held) != len(hints):
        raise ValueError(f"expected {len(hints)} values of {kind!r}, got {len(held)}")
    node = KINDS[kind](*map(_read, hints, held, repeat(depth + 1))) if hints else _dfa(*held)
    if not isinstance(node, wanted):
        raise ValueError(f"expected another node than {kind!r}")
    _check(node)
    return node


def _check(node: Any) -> None:
    """Raise ValueError for a node that has the right types but invalid values."""
    if isinstance(node, Chars):
        Dfa([[(first, last, 0) for first, last in node.ranges]], ())  # raises for invalid ranges
    elif isinstance(node, Counted) and node.whole > node.dfa.n_states:
        raise ValueError("a count of states that an automaton does not have")
    elif isinstance(node, Member) and node.by not in WAYS:
        raise ValueError(f"unknown comparison {node.by!r}")
    elif isinstance(node, Distinct):
        targets = [member.to for place in node.places for member in place]
        if not len(node.ends) == len(node.places) > max(targets, default=0):
            raise ValueError("a place that members do not have")


@lru_cache(maxsize=len(KINDS))
def _hints(kind: Any) -> tuple[Any, ...]:
    """The types of a node's attributes."""
    return tuple(get_type_hints(kind).values())


def _dfa(states: Any, accepting: Any) -> Dfa:
    edges = _read(tuple[tuple[tuple[int, int, int], ...], ...], states, 0)
    return Dfa(edges, _read(tuple[int, ...], accepting, 0))
