"""What must be known of rules before they are built: what can match, what is empty, what calls itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from oxillama.errors import GrammarError
from oxillama.grammar.rules import Alt, Chars, Dfa, Distinct, Node, Ref, Repeat, Rules, Seq, Text, Tokens

MAX_NODE_DEPTH = 200
INLINE_SIZE = 16  # a rule used more than once and larger than this is called, not copied
SURROGATES = 0xD800, 0xDFFF


def children(node: Node) -> tuple[Node, ...]:
    """The nodes that a node is made of."""
    if isinstance(node, (Seq, Alt)):
        return node.items
    if isinstance(node, Distinct):
        parts = {one: None for place in node.places for m in place for one in (m.node, m.rest)}
        return (*(part for part in parts if part is not None), node.separator)
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

    Each rule is reduced once to the names that it cannot do without, and looked at again only when one of
    those that it waits for is found to match something.
    """
    waiting: dict[str, list[str]] = {}
    open_rules: dict[str, Node] = {}
    todo = []
    for name, rule in rules.items():
        needs = _needs(rule, rules)
        if needs == _NOTHING:
            todo.append(name)
        else:
            open_rules[name] = needs
    for name in reversed(list(open_rules)):
        _wait(name, open_rules, waiting, todo)
    while todo:
        for user in waiting.pop(todo.pop(), ()):
            if user in open_rules:
                _wait(user, open_rules, waiting, todo)
    return set(open_rules)


_NOTHING = Seq(())


def _wait(name: str, open_rules: dict[str, Node], waiting: dict[str, list[str]], todo: list[str]) -> None:
    """Close a rule whose needs are met; else note for which names it waits."""
    missing = _missing(open_rules[name], open_rules)
    if missing is None:
        del open_rules[name]
        todo.append(name)
        return
    for other in missing:
        waiting.setdefault(other, []).append(name)


def _missing(node: Node, open_rules: Mapping[str, Node]) -> list[str] | None:
    """Names one of which must match something before the node can; None where it does."""
    if isinstance(node, Ref):
        return [node.name] if node.name in open_rules else None
    if isinstance(node, Seq):
        for item in node.items:
            missing = _missing(item, open_rules)
            if missing is not None:
                return missing
        return None
    assert isinstance(node, Alt)
    found: list[str] = []
    for item in node.items:
        missing = _missing(item, open_rules)
        if missing is None:
            return None
        found += missing
    return found


def _needs(node: Node, rules: Mapping[str, Node]) -> Node:
    """What must match something for a node to match something, in names of rules only."""
    if isinstance(node, Ref):
        return node if node.name in rules else _NOTHING
    if isinstance(node, Repeat):
        return _needs(node.item, rules) if node.least else _NOTHING
    if isinstance(node, Distinct):
        firsts = [Seq((m.node,) if m.rest is None else (m.node, m.rest)) for m in node.places[0]]
        return _needs(Seq((Alt(tuple(firsts)), *node.needed)), rules)
    if isinstance(node, Seq):
        items = [one for one in (_needs(item, rules) for item in node.items) if one != _NOTHING]
        return items[0] if len(items) == 1 else Seq(tuple(items))
    if isinstance(node, Alt):
        ways: dict[Node, None] = {}
        for item in node.items:
            one = _needs(item, rules)
            if one == _NOTHING:
                return one
            ways[one] = None
        return Alt(tuple(ways))
    return _NOTHING if _matches_something(node) else Alt(())


def nullable_rules(rules: Rules) -> set[str]:
    """The rules that match the empty string."""
    return _least_fixpoint(rules, is_nullable)


def _least_fixpoint(rules: Rules, test: Callable[[Node, set[str]], bool]) -> set[str]:
    """The least set of rules that satisfy ``test`` of their node and of the set itself."""
    users: dict[str, list[str]] = {}
    for name, rule in rules.rules.items():
        for node in walk(rule):
            if isinstance(node, Ref):
                users.setdefault(node.name, []).append(name)
    found: set[str] = set()
    todo = list(rules.rules)
    while todo:
        name = todo.pop()
        if name not in found and test(rules.rules[name], found):
            found.add(name)
            todo += users.get(name, ())
    return found


def is_nullable(node: Node, rules: set[str]) -> bool:
    """Whether a node matches the empty string, given the rules that do."""
    if isinstance(node, Text):
        return not node.text
    if isinstance(node, Dfa):
        return node.accepts_empty()
    if isinstance(node, Ref):
        return node.name in rules
    if isinstance(node, Seq):
        return all(is_nullable(item, rules) for item in node.items)
    if isinstance(node, Alt):
        return any(is_nullable(item, rules) for item in node.items)
    if isinstance(node, Repeat):
        return node.least == 0 or is_nullable(node.item, rules)
    return False


def is_productive(node: Node) -> bool:
    """Whether a node matches something, if every rule does."""
    return _needs(node, {}) == _NOTHING


def _matches_something(node: Node) -> bool:
    """Whether a node without others below it matches something."""
    if isinstance(node, Text):
        return not any(SURROGATES[0] <= ord(char) <= SURROGATES[1] for char in node.text)
    if isinstance(node, Chars):
        return any(_has_characters(first, last) for first, last in node.ranges)
    if isinstance(node, Tokens):
        return node.negated or bool(node.ids)
    assert isinstance(node, Dfa)
    return node.holds_text()


def _has_characters(first: int, last: int) -> bool:
    return first <= last and not (SURROGATES[0] <= first and last <= SURROGATES[1])


# --------------------------------------------------------------------------- what is called


@dataclass(frozen=True)
class Calls:
    """Which rules are called and which are copied in place of their name.

    Attributes
    ----------
    rules : rules that are called: enough of the recursive ones to cut every cycle, the large ones that are
        used more than once, and the root.
    sizes : roughly how many states each rule makes, copies included.
    """

    rules: set[str]
    sizes: dict[str, int]


def find_calls(rules: Rules) -> Calls:
    """Decide by a depth-first search from the root: a rule met again on the way to itself is called."""
    uses = dict.fromkeys(rules.rules, 0)
    refs: dict[str, list[str]] = {}
    for name, rule in rules.rules.items():
        refs[name] = [node.name for node in walk(rule) if isinstance(node, Ref) and node.name in uses]
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
    return Calls(called, sizes)


def size(node: Node, called: set[str], sizes: dict[str, int]) -> int:
    """Roughly how many states a node makes."""
    if isinstance(node, Text):
        return len(node.text.encode("utf-8", "surrogatepass"))
    if isinstance(node, Chars):
        return 1 if not node.ranges or node.ranges[-1][1] < 0x80 else 8
    if isinstance(node, Dfa):
        return node.size()
    if isinstance(node, Ref):
        return 1 if node.name in called else sizes.get(node.name, 1)
    if isinstance(node, Repeat):
        one = size(node.item, called, sizes)
        return (repeat_copies(node, one) or 1) * one
    if isinstance(node, Distinct):  # its members are called
        return sum([4 + 4 * len(place) for place in node.places])
    return sum([size(item, called, sizes) for item in children(node)])


def repeat_copies(node: Repeat, item_size: int) -> int | None:
    """How many copies of the item a repetition is built of; None where it counts instead."""
    copies = max(node.least, 1) if node.most is None else node.most
    return copies if copies <= 1 or copies * max(1, item_size) <= INLINE_SIZE else None
