"""What must be known of rules before they are built: what can match, what is empty, what calls itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oxillama._kernels.grammar.nodes import INLINE_SIZE, is_nullable, missing, references, size
from oxillama.errors import GrammarError
from oxillama.grammar.rules import Alt, Distinct, Node, Ref, Repeat, Rules, Seq

MAX_NODE_DEPTH = 200


def children(node: Node) -> tuple[Node, ...]:
    """The nodes that a node is made of."""
    if isinstance(node, (Seq, Alt)):
        return node.items
    if isinstance(node, Distinct):
        parts = {one: None for place in node.places for m in place for one in (m.node, m.rest)}
        return tuple([part for part in (*parts, node.separator) if part is not None])
    return (node.item,) if isinstance(node, Repeat) else ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += children(node)


def check(rules: Rules) -> None:
    """Raise GrammarError where a front end gave something that is no grammar."""
    if rules.root not in rules.rules:
        raise GrammarError(f"grammar: expected a rule {rules.root!r} for its root, got none")
    for name, rule in rules.rules.items():
        level: list[Node] = [rule]
        for _ in range(MAX_NODE_DEPTH):
            level = [below for node in level for below in children(node)]
            if not level:
                break
        else:
            raise GrammarError(f"rule {name}: expected at most {MAX_NODE_DEPTH} nodes inside each other")
        for node in walk(rule):
            if isinstance(node, Ref) and node.name not in rules.rules and node.name not in rules.parts:
                raise GrammarError(f"rule {name}: refers to {node.name!r}, which is not defined")
            if isinstance(node, Repeat) and not 0 <= node.least <= (
                node.least if node.most is None else node.most
            ):
                raise GrammarError(f"rule {name}: repeats from {node.least} to {node.most} times")


def unproductive(rules: Mapping[str, Node]) -> set[str]:
    """The rules that match nothing, if names without a rule match something.

    A rule is looked at again only when one of those that it waits for is found to match something.
    """
    open_rules = set(rules)
    waiting: dict[str, set[str]] = {}
    todo = list(rules)
    while todo:
        name = todo.pop()
        if name in open_rules:
            found = missing(rules[name], open_rules)
            if found is None:
                open_rules.discard(name)
                todo += waiting.pop(name, ())
            else:
                for other in found:
                    waiting.setdefault(other, set()).add(name)
    return open_rules


def nullable_rules(rules: Rules) -> set[str]:
    """The rules that match the empty string."""
    users: dict[str, list[str]] = {}
    for name, rule in rules.rules.items():
        for used in references(rule):
            users.setdefault(used, []).append(name)
    found: set[str] = set()
    todo = list(rules.rules)
    while todo:
        name = todo.pop()
        if name not in found and is_nullable(rules.rules[name], found):
            found.add(name)
            todo += users.get(name, ())
    return found


def is_productive(node: Node) -> bool:
    """Whether a node matches something, if every rule does."""
    return missing(node, ()) is None


# --------------------------------------------------------------------------- what is called


def find_calls(rules: Rules) -> tuple[set[str], dict[str, int]]:
    """The rules that are called, the others being copied in place of their name; and the sizes of rules.

    Called are the root, the large ones that are used more than once, and enough of the recursive ones to cut
    every cycle: a search from the root, depth first, finds those on the way to themselves. A size is roughly
    how many states the rule makes, copies included.
    """
    if len(rules.rules) == 1:
        return {rules.root}, {}
    uses = dict.fromkeys(rules.rules, 0)
    refs: dict[str, list[str]] = {}
    for name, rule in rules.rules.items():
        refs[name] = [used for used in references(rule) if used in uses]
        for used in refs[name]:
            uses[used] += 1
    called, open_rules = {rules.root}, {rules.root}
    sizes: dict[str, int] = {}
    path = [(rules.root, iter(refs[rules.root]))]
    while path:
        name, rest = path[-1]
        below = next(rest, None)
        if below is None:
            path.pop()
            open_rules.discard(name)
            sizes[name] = size(rules.rules[name], called, sizes)
            if uses[name] > 1 and sizes[name] > INLINE_SIZE:
                called.add(name)
        elif below in open_rules:
            called.add(below)
        elif below not in sizes:
            open_rules.add(below)
            path.append((below, iter(refs[below])))
    return called, sizes
