"""Checks of a grammar's rules, and functions that traverse and rewrite syntax nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from oxillama._kernels.grammar.nodes import productive_rules, references
from oxillama.errors import GrammarError
from oxillama.text.grammar.rules import Alt, Distinct, Member, Node, Ref, Repeat, Rules, Seq


def children(node: Node) -> tuple[Node, ...]:
    """The child nodes of a node."""
    if isinstance(node, (Seq, Alt)):
        return node.items
    if isinstance(node, Distinct):
        parts = {one: None for place in node.places for m in place for one in (m.node, m.rest)}
        return tuple([part for part in (*parts, node.separator) if part is not None])
    return (node.item,) if isinstance(node, Repeat) else ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all its descendants."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += children(node)


def rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """A copy of the node in which ``change`` was applied to each child."""
    if isinstance(node, (Seq, Alt)):
        return type(node)(tuple(map(change, node.items)))
    if isinstance(node, Repeat):
        return Repeat(change(node.item), node.least, node.most)
    if not isinstance(node, Distinct):
        return node

    def member(one: Member) -> Member:
        return replace(one, node=change(one.node), rest=None if one.rest is None else change(one.rest))

    return replace(
        node,
        places=tuple([tuple(map(member, place)) for place in node.places]),
        separator=None if node.separator is None else change(node.separator),
        needed=tuple(map(change, node.needed)),
    )


def replaced(node: Node, change: Callable[[Ref], Node]) -> Node:
    """A copy of the node in which ``change`` was applied to each reference, at any depth."""

    def changed(item: Node) -> Node:
        return change(item) if isinstance(item, Ref) else rebuilt(item, changed)

    return changed(node)


def renamed(node: Node, names: dict[str, str]) -> Node:
    """A copy of the node with references renamed by ``names`` (old name -> new name)."""
    return replaced(node, lambda ref: Ref(names[ref.name]) if ref.name in names else ref)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The names that each rule refers to, with repetitions; and the rules that match at least one text."""

    refs: dict[str, list[str]]
    productive: set[str]


def analysis_of(rules: Rules) -> Analysis:
    """The analysis of the rules; computed once and kept in ``rules.analysis``.

    Raises:
        GrammarError: the root or a referenced rule is missing, or a node is invalid.
    """
    if rules.analysis is None:
        refs = _references(rules)
        found = Analysis(refs, productive_rules(dict(rules.rules), refs))
        object.__setattr__(rules, "analysis", found)
    known: Analysis = rules.analysis
    return known


def _references(rules: Rules) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if rules.root not in rules.rules:
        raise GrammarError(f"grammar: expected a rule {rules.root!r} for its root, got none")
    for name, rule in rules.rules.items():
        try:
            found[name] = references(rule)
        except ValueError as error:
            raise GrammarError(f"rule {name}: {error}") from None
        for other in found[name]:
            if other not in rules.rules:
                raise GrammarError(f"rule {name}: refers to {other!r}, which is not defined")
    return found
