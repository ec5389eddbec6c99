"""`Rules` as plain data and back: what JSON can hold, and nothing of the grammar is lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar.analysis import MAX_NODE_DEPTH
from oxillama.grammar.rulebook import whole
from oxillama.grammar.rules import (
    LAST_CODE_POINT,
    Alt,
    Chars,
    Counted,
    Dfa,
    Distinct,
    Member,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Tokens,
)

MOST = 2**31 - 1
"""Of a token id, or a state."""


def plain_rules(rules: Rules) -> dict[str, Any]:
    """A grammar as dicts, lists, strings and integers; rules in their order."""
    rules = whole(rules)
    return {"root": rules.root, "rules": [[name, _plain(node)] for name, node in rules.rules.items()]}


def rules_of(plain: Any) -> Rules:
    """The grammar that `plain_rules` described. Raises GrammarError for anything else."""
    try:
        root, pairs = plain["root"], plain["rules"]
        named = {_text(name): _node(node, 0) for name, node in pairs}
        if set(plain) != {"root", "rules"} or len(named) < len(pairs):
            raise ValueError("unknown keys, or a rule twice")
        return Rules(_text(root), named)
    except (KeyError, TypeError, ValueError) as error:
        raise GrammarError(f"grammar: expected what plain_rules gave, got another value: {error}") from error


def _plain(node: Node) -> list[Any]:
    """A node as its kind and what it holds."""
    if isinstance(node, Text):
        return ["text", node.text]
    if isinstance(node, Chars):
        return ["chars", [list(pair) for pair in node.ranges]]
    if isinstance(node, Tokens):
        return ["tokens", list(node.ids), node.negated]
    if isinstance(node, Dfa):
        return ["dfa", [[list(edge) for edge in edges] for edges in node.edges], sorted(node.accepting)]
    if isinstance(node, Counted):
        return ["counted", _plain(node.dfa), node.whole, node.least, node.most]
    if isinstance(node, Ref):
        return ["ref", node.name]
    if isinstance(node, Repeat):
        return ["repeat", _plain(node.item), node.least, node.most]
    if isinstance(node, Distinct):
        places = [[_plain_member(member) for member in place] for place in node.places]
        counts = [node.least, node.most, node.marks, node.may_run_out]
        parts = [_plain(node.separator), [_plain(one) for one in node.needed]]
        return ["distinct", places, list(node.ends), parts, counts]
    return ["seq" if isinstance(node, Seq) else "alt", [_plain(item) for item in node.items]]


def _plain_member(member: Member) -> list[Any]:
    rest = None if member.rest is None else _plain(member.rest)
    return [_plain(member.node), member.by, rest, [member.to, member.mark, member.after, member.room]]


def _node(plain: Any, depth: int) -> Node:
    if depth > MAX_NODE_DEPTH:
        raise ValueError(f"more than {MAX_NODE_DEPTH} nodes inside each other")
    kind, *held = plain
    if kind == "text":
        (text,) = held
        return Text(_text(text))
    if kind == "chars":
        (ranges,) = held
        return Chars(_ranges(ranges, 2))
    if kind == "tokens":
        ids, negated = held
        if not isinstance(negated, bool):
            raise ValueError(f"negated is {negated!r}")
        return Tokens(_integers(ids, len(ids), MOST), negated)
    if kind == "dfa":
        states, accepting = held
        edges = tuple(_ranges(state, 3) for state in states)
        ends = frozenset(_integers(accepting, len(accepting), MOST))
        targets = {target for state in edges for _, _, target in state} | ends
        if not edges or max(targets, default=0) >= len(edges):
            raise ValueError("a state that an automaton does not have")
        return Dfa(edges, ends)
    if kind == "counted":
        automaton, whole, least, most = held
        dfa = _node(automaton, depth + 1)
        if not isinstance(dfa, Dfa) or whole not in range(len(dfa.edges) + 1):
            raise ValueError("a count without an automaton of as many states")
        _integers([least, least if most is None else most], 2, MOST)
        return Counted(dfa, whole, least, most)
    if kind == "ref":
        (name,) = held
        return Ref(_text(name))
    if kind == "repeat":
        item, least, most = held
        _integers([least, 0 if most is None else most], 2, MOST)
        return Repeat(_node(item, depth + 1), least, most)
    if kind == "distinct":
        places, ends, (separator, needed), (least, most, marks, may_run_out) = held
        _integers([least, 0 if most is None else most, marks], 3, MOST)
        found = tuple(tuple(_member(member, depth + 1) for member in place) for place in places)
        if not len(ends) == len(found) > max([member.to for place in found for member in place], default=0):
            raise ValueError("a place that members do not have")
        if not all(isinstance(flag, bool) for flag in (*ends, may_run_out)):
            raise ValueError(f"ends are {ends!r}, may_run_out {may_run_out!r}")
        nodes = tuple(_node(one, depth + 1) for one in needed)
        return Distinct(
            found, tuple(ends), _node(separator, depth + 1), least, most, marks, nodes, may_run_out
        )
    if kind not in ("seq", "alt"):
        raise ValueError(f"a node of the kind {kind!r}")
    (items,) = held
    nodes = tuple(_node(item, depth + 1) for item in items)
    return Seq(nodes) if kind == "seq" else Alt(nodes)


def _member(plain: Any, depth: int) -> Member:
    node, by, rest, numbers = plain
    *numbers, room = numbers
    to, mark, after = _integers(numbers, 3, MOST)
    _integers([0 if room is None else room], 1, MOST)
    if by not in ("mark", "text", "value", "nothing"):
        raise ValueError(f"told apart by {by!r}")
    return Member(_node(node, depth), by, to, mark, None if rest is None else _node(rest, depth), after, room)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {type(value).__name__}")
    value.encode()  # a lone surrogate is in no text
    return value


def _ranges(plain: Any, n: int) -> tuple[Any, ...]:
    """Tuples of ``n`` integers, of which the first two are ranges of code points, ascending and disjoint."""
    found = tuple(_integers(item, n, LAST_CODE_POINT) for item in plain)
    bounds = [bound for item in found for bound in item[:2]]
    if bounds != sorted(bounds) or any(a[1] == b[0] for a, b in pairwise(found)):
        raise ValueError("ranges that are not ascending and disjoint")
    return found


def _integers(values: Any, n: int, most: int) -> tuple[int, ...]:
    """``n`` integers from 0 to ``most``."""
    found = tuple(values)
    if len(found) != n or not all(type(value) is int and 0 <= value <= most for value in found):
        raise ValueError(f"expected {n} integers up to {most}")
    return found
