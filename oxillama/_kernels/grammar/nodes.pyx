"""Properties of the nodes of a grammar's rules: their references, their size, whether they match the empty string."""

from libc.stdint cimport int64_t

from oxillama._kernels.grammar.dfa cimport Dfa

from oxillama._kernels.grammar.node_types import Alt, Chars, Counted, Distinct, Ref, Repeat, Seq, Text, Tokens

cdef enum:
    INLINE = 16         # rules of more states that are used more than once are called, not copied
    LARGE = 8           # approximate number of network states for a character beyond ASCII
    MAX_DEPTH = 4_000   # maximum depth of nested nodes

INLINE_SIZE: int = INLINE
MAX_NODE_DEPTH: int = 200


def references(object node: Node) -> list[str]:
    """The names that a node refers to, each as often as it occurs.

    Raises:
        ValueError: nodes are nested more deeply than `MAX_NODE_DEPTH`, or a repetition has impossible bounds.
    """
    cdef list found = []
    add_references(node, found, 0)
    return found


cdef int add_references(object node, list found, int depth) except -1:
    cdef object kind = type(node)
    cdef tuple parts = children(node)
    if depth >= MAX_NODE_DEPTH:
        raise ValueError(f"expected at most {MAX_NODE_DEPTH} nodes inside each other")
    if kind is Ref:
        found.append(node.name)
    elif kind is Repeat and not 0 <= node.least <= (node.least if node.most is None else node.most):
        raise ValueError(f"repeats from {node.least} to {node.most} times")
    elif not parts and kind is not Seq and kind is not Alt:
        known_leaf(kind)
    for item in parts:
        add_references(item, found, depth + 1)
    return 0


cdef tuple children(object node):
    """The nodes that a node consists of; the nodes of a `Distinct` each once."""
    cdef object kind = type(node)
    cdef dict found
    if kind is Seq or kind is Alt:
        return node.items
    if kind is not Distinct:
        return (node.item,) if kind is Repeat else ()
    found = {} if node.separator is None else {node.separator: None}
    for place in node.places:
        for member in place:
            found[member.node] = None
            if member.rest is not None:
                found[member.rest] = None
    return tuple(found)


cdef int known_leaf(object kind) except -1:
    if kind is not Text and kind is not Chars and kind is not Tokens and kind is not Dfa and kind is not Counted:
        raise TypeError(f"node: expected a node of a grammar, got {kind.__name__}")
    return 0


def size(object node: Node, set called not None: set[str], dict known not None: dict[str, int]) -> int:
    """The approximate number of states that a node makes; ``known`` has the sizes of rules that are not ``called``."""
    return size_of(node, called, known, 0)


cdef object size_of(object node, set called, dict sizes, int depth):
    cdef object kind = type(node), found = 0
    if depth > MAX_DEPTH:
        raise RecursionError()
    if kind is Text:
        return len(node.text) if node.text.isascii() else len(node.text.encode("utf-8", "surrogatepass"))
    if kind is Ref:
        return 1 if node.name in called else sizes.get(node.name, 1)
    if kind is Seq or kind is Alt:
        for item in node.items:
            found += size_of(item, called, sizes, depth + 1)
        return found
    if kind is Repeat:
        found = size_of(node.item, called, sizes, depth + 1)
        return (repeat_copies(node, found) or 1) * found
    if kind is Chars:
        return 1 if is_ascii(node.ranges) else LARGE
    if kind is Distinct:  # its members are called
        return sum([4 + 4 * len(place) for place in node.places])
    known_leaf(kind)
    if kind is Counted:
        node, kind = node.dfa, Dfa
    return (<Dfa>node).size() if kind is Dfa else 0


cdef bint is_ascii(tuple ranges) except -1:
    """Whether all characters of ascending ranges are ASCII."""
    cdef Py_ssize_t n = len(ranges)
    return n == 0 or ranges[n - 1][1] < 0x80


def repeat_copies(object node: Node, int64_t item_size) -> int | None:
    """The number of copies of the item that a repetition makes; None if it becomes a counter."""
    copies = max(node.least, 1) if node.most is None else node.most
    return copies if copies <= 1 or copies * max(1, item_size) <= INLINE else None


ctypedef bint (*Test)(object, object, set, int) except -1


cdef bint holds(object node, set rules, Test test, int depth) except -1:
    """Whether a node has a property that all items of a `Seq` and one of an `Alt` must have; ``rules`` have it.

    ``test`` answers for other nodes, given with their kinds. A repetition of zero times has the property.
    """
    cdef object kind = type(node)
    cdef bint all_must
    if depth > MAX_DEPTH:
        raise RecursionError()
    if kind is Ref:
        return node.name in rules
    if kind is Repeat:
        return node.least == 0 or holds(node.item, rules, test, depth + 1)
    if kind is Seq or kind is Alt:
        all_must = kind is Seq
        for item in node.items:
            if holds(item, rules, test, depth + 1) != all_must:
                return not all_must
        return all_must
    return test(node, kind, rules, depth)


def is_nullable(object node: Node, set rules not None: set[str]) -> bool:
    """Whether a node matches the empty string; ``rules`` are the rules that do."""
    return holds(node, rules, may_be_empty, 0)


cdef bint may_be_empty(object node, object kind, set rules, int depth) except -1:
    if kind is Text:
        return not node.text
    if kind is Distinct:
        return False
    known_leaf(kind)
    if kind is Counted:
        return node.least == 0 and (<Dfa>node.dfa).accepts_empty()
    return kind is Dfa and (<Dfa>node).accepts_empty()


def matches(object node: Node, set rules not None: set[str]) -> bool:
    """Whether a node matches some text; ``rules`` are the rules that do. No text has surrogates."""
    return holds(node, rules, matches_something, 0)


cdef bint matches_something(object node, object kind, set rules, int depth) except -1:
    if kind is Distinct:
        firsts = [Seq((m.node,) if m.rest is None else (m.node, m.rest)) for m in node.places[0]]
        return holds(Seq((Alt(tuple(firsts)), *node.needed)), rules, matches_something, depth + 1)
    if kind is Text:
        return node.text.isascii() or not any([0xD800 <= ord(char) <= 0xDFFF for char in node.text])
    if kind is Chars:
        return any([
            first <= last and not (0xD800 <= first and last <= 0xDFFF) for first, last in node.ranges
        ])
    if kind is Tokens:
        return node.negated or bool(node.ids)
    known_leaf(kind)
    if kind is Counted:
        needed = node.dfa.to_the_end(node.whole)[0]
        return needed is not None and (node.most is None or needed <= node.most)
    return (<Dfa>node).holds_text()


# ---------------------------------------------------------------------- rules


def productive_rules(dict rules not None: dict[str, Node], dict refs not None: dict[str, list[str]]) -> set[str]:
    """The rules that match some text; ``refs``: the references of each rule."""
    return settled(rules, refs, matches_something)


def nullable_rules(dict rules not None: dict[str, Node], dict refs not None: dict[str, list[str]]) -> set[str]:
    """The rules that match the empty string; ``refs``: the references of each rule."""
    return settled(rules, refs, may_be_empty)


cdef set settled(dict rules, dict refs, Test test):
    """The smallest set of rules for which the test holds, given the set itself."""
    cdef dict users = {}
    cdef set found = set()
    cdef list new
    cdef object todo = reversed(list(rules))  # most rules refer to later ones
    check_references(rules, refs)
    for name, names in refs.items():
        for used in names:
            users.setdefault(used, []).append(name)
    while todo:  # a rule is tested again when a rule that it refers to is found
        new = []
        for name in todo:
            if holds(rules[name], found, test, 0):
                found.add(name)
                new.append(name)
        todo = {user for name in new for user in users.get(name, ())} - found
    return found


cdef int check_references(dict rules, dict refs) except -1:
    if rules.keys() != refs.keys() or not all([rules.keys() >= set(names) for names in refs.values()]):
        raise ValueError("refs: expected what each rule refers to, which are rules")
    return 0


def find_calls(dict rules not None: dict[str, Node], str root not None, object deferred: Iterable[str],
               dict refs not None: dict[str, list[str]]) -> tuple[set[str], dict[str, int]]:
    """The rules that stay rules and are called (other rules are copied in place of their names), and the rules' sizes.

    Called are the root, deferred rules, large rules that are used more than once, and enough recursive rules to
    cut every cycle: a depth-first search from the root finds rules on the path to themselves. A size is the
    approximate number of states that the rule makes, copies included.
    """
    cdef dict uses = dict.fromkeys(rules, 0), sizes = {}
    cdef set called, open_rules = {root}
    cdef list names, path
    check_references(rules, refs)
    if root not in rules:
        raise ValueError(f"root: expected the name of a rule, got {root!r}")
    path = [(root, iter(refs[root]))]
    for names in refs.values():
        for name in names:
            uses[name] += 1
    called = {root, *deferred}
    while path:
        name, rest = path[len(path) - 1]
        below = next(rest, None)
        if below is None:
            path.pop()
            open_rules.discard(name)
            sizes[name] = size_of(rules[name], called, sizes, 0)
            if uses[name] > 1 and sizes[name] > INLINE:
                called.add(name)
        elif below in open_rules:
            called.add(below)
        elif below not in sizes:
            open_rules.add(below)
            path.append((below, iter(refs[below])))
    return called, sizes
