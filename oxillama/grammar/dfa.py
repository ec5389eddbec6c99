"""Finite automata over code points: boolean combinations of regular languages, for the `Dfa` nodes.

A `Language` is an expression of rules (no references) compiled to a nondeterministic automaton without free
moves, one state per position of a character (Glushkov, 1961); sets of states are integers, bit by bit.
`determinise` runs several of them side by side with an optional count of characters, and a test of their
verdicts says what is accepted: that makes intersection, union, complement and bounds of length one
construction. Dead states are dropped and equal ones merged (Moore, 1956).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from oxillama.errors import GrammarError
from oxillama.grammar.codepoints import Ranges, complement, contains, union
from oxillama.grammar.rules import LAST_CODE_POINT, Alt, Chars, Dfa, Node, Repeat, Seq, Text

MAX_POSITIONS = 10_000  # of one expression, its repetitions written out
MAX_STATES = 4_000  # of a deterministic automaton
MAX_TEXTS = 10_000  # that are counted
MERGE_ROUNDS = 40  # of looking for equal states
MAX_WORK = 400_000  # its states times its classes of characters

_Part = tuple[list[int], list[int], bool]  # first positions, last positions, whether it can be empty
Edge = tuple[int, int, int]
NEVER = Dfa(((),), frozenset())


class Language:
    """The automaton of an expression. State 0 is the start, state i the i-th character of the expression.

    Attributes
    ----------
    chars : the code points read on entering each state; state 0 has none.
    follow : for each state the set of states that may come next, as bits.
    accepting : states in which the string may end, as bits.
    """

    def __init__(self, node: Node) -> None:
        self.chars: list[Ranges] = [()]
        self.follow: list[int] = [0]
        first, last, empty = self._add(node)
        self.follow[0] = _bits(first)
        self.accepting = _bits(last) | empty

    def accepts(self, text: str) -> bool:
        """Whether the whole text belongs to the language."""
        states = 1
        for char in text:
            after, states = self.after(states), 0
            for q in _members(after):
                if contains(self.chars[q], ord(char)):
                    states |= 1 << q
        return bool(states & self.accepting)

    def after(self, states: int) -> int:
        """The states that may come after any of these, whatever is read."""
        found = 0
        for q in _members(states):
            found |= self.follow[q]
        return found

    def _add(self, node: Node) -> _Part:
        if isinstance(node, Chars):
            if len(self.chars) > MAX_POSITIONS:
                raise GrammarError(
                    f"regular expression: at most {MAX_POSITIONS} characters, repetitions written out"
                )
            self.chars.append(node.ranges)
            self.follow.append(0)
            return [len(self.chars) - 1], [len(self.chars) - 1], False
        if isinstance(node, Text):
            return self._row([Chars(((ord(c), ord(c)),)) for c in node.text])
        if isinstance(node, Seq):
            return self._row(node.items)
        if isinstance(node, Alt):
            parts = [self._add(item) for item in node.items]
            first = [p for part in parts for p in part[0]]
            return first, [p for part in parts for p in part[1]], any(part[2] for part in parts)
        if isinstance(node, Repeat):
            return self._repeat(node)
        raise TypeError(f"not an expression over characters: {type(node).__name__}")

    def _link(self, sources: list[int], targets: list[int]) -> None:
        bits = _bits(targets)
        for p in sources:
            self.follow[p] |= bits

    def _row(self, items: Sequence[Node]) -> _Part:
        first: list[int] = []
        last: list[int] = []
        empty = True
        for item in items:
            starts, ends, skippable = self._add(item)
            self._link(last, starts)
            first = first + starts if empty else first
            last = last + ends if skippable else ends
            empty = empty and skippable
        return first, last, empty

    def _repeat(self, node: Repeat) -> _Part:
        first: list[int] = []
        last: list[int] = []  # ends of the copies from `least` on
        reach: list[int] = []  # ends from which the next copy may begin
        empty = True
        for i in range(max(node.least, 1) if node.most is None else node.most):
            starts, ends, skippable = self._add(node.item)
            self._link(reach, starts)
            first = first + starts if empty else first
            reach = reach + ends if skippable else ends
            empty = empty and skippable
            if i + 1 == node.least:
                last = list(reach)
            elif i + 1 > node.least:
                last += ends
        if node.most is None:
            self._link(ends, starts)
        return first, last, empty or node.least == 0


@lru_cache(maxsize=64)
def language(node: Node) -> Language:
    """The automaton of an expression; the last ones made are kept."""
    return Language(node)


def determinise(
    languages: Sequence[Language],
    accept: Callable[[tuple[bool, ...]], bool],
    least: int = 0,
    most: int | None = None,
) -> Dfa:
    """The strings of ``least`` to ``most`` characters for which ``accept`` likes the languages' verdicts.

    Raises
    ------
    GrammarError : the automaton needs more than `MAX_STATES` states.
    """
    classes = _classes([ranges for lang in languages for ranges in lang.chars[1:]])
    masks = [[_positions(lang, ranges[0][0]) for lang in languages] for ranges in classes]
    cap = least if most is None else most + 1
    number: dict[tuple[int, ...], int] = {(0, *[1] * len(languages)): 0}
    order = list(number)
    table: list[list[int]] = []
    accepting = set()
    for state in order:  # grows while it is read
        count, *sets = state
        verdicts = tuple(bool(s & lang.accepting) for s, lang in zip(sets, languages))
        if count >= least and (most is None or count <= most) and accept(verdicts):
            accepting.add(number[state])
        after = [lang.after(s) for s, lang in zip(sets, languages)]
        row = []
        for mask in masks:
            target = (min(count + 1, cap), *[a & m for a, m in zip(after, mask)])
            if target not in number:
                number[target] = len(order)
                order.append(target)
                if len(order) > MAX_STATES or len(order) * len(masks) > MAX_WORK:
                    raise GrammarError(
                        f"regular expression: its automaton needs more than {MAX_STATES} states"
                    )
            row.append(number[target])
        table.append(row)
    return _reduced(table, accepting, classes)


def from_steps(
    start: object,
    step: Callable[[object, str], object | None],
    accepts: Callable[[object], bool],
    alphabet: Sequence[str],
) -> Dfa:
    """The automaton of a machine over a few characters, given in groups that it does not tell apart.

    ``step`` gives the next state or None.
    """
    number: dict[object, int] = {start: 0}
    order = [start]
    table: list[list[int]] = []
    for state in order:  # grows while it is read
        row = []
        for group in alphabet:
            target = step(state, group[0])
            if target is not None and target not in number:
                number[target] = len(order)
                order.append(target)
                if len(order) > MAX_STATES:
                    raise GrammarError(f"automaton: needs more than {MAX_STATES} states")
            row.append(-1 if target is None else number[target])
        table.append(row)
    dead = len(table)
    table = [[dead if t < 0 else t for t in row] for row in table] + [[dead] * len(alphabet)]
    accepting = {number[state] for state in order if accepts(state)}
    return _reduced(table, accepting, [union([(ord(c), ord(c)) for c in group]) for group in alphabet])


def _tree(texts: Iterable[str]) -> tuple[list[dict[int, int]], set[int]]:
    """The tree of the texts' beginnings: for each its continuations; and those that are whole texts."""
    children: list[dict[int, int]] = [{}]
    ends = set()
    for text in texts:
        state = 0
        for char in text:
            if ord(char) not in children[state]:
                children[state][ord(char)] = len(children)
                children.append({})
            state = children[state][ord(char)]
        ends.add(state)
    return children, ends


def only(texts: Iterable[str]) -> Dfa:
    """Exactly these strings."""
    children, ends = _tree(texts)
    edges = [tuple(sorted((point, point, target) for point, target in below.items())) for below in children]
    return Dfa(tuple(edges), frozenset(ends))


def all_but(texts: Iterable[str]) -> Dfa:
    """Every string but these: a tree of their beginnings, and one state for whatever has left it."""
    children, ends = _tree(texts)
    away = len(children)
    edges = []
    for below in (*children, {}):
        rest = complement(union([(point, point) for point in below]))
        found = [(point, point, target) for point, target in below.items()]
        edges.append(tuple(sorted([*found, *((first, last, away) for first, last in rest)])))
    return Dfa(tuple(edges), frozenset(range(away + 1)) - ends)


def _bits(positions: Sequence[int]) -> int:
    found = 0
    for p in positions:
        found |= 1 << p
    return found


def _members(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _positions(lang: Language, point: int) -> int:
    """The states of ``lang`` that reading this code point may lead to."""
    member: dict[Ranges, bool] = {}
    found = 0
    for q, ranges in enumerate(lang.chars):
        if ranges not in member:
            member[ranges] = contains(ranges, point)
        found |= member[ranges] << q
    return found


def _classes(sets: Sequence[Ranges]) -> list[Ranges]:
    """All code points in classes that no set tells apart."""
    events: dict[int, int] = {0: 0}
    for bit, ranges in enumerate(dict.fromkeys(sets)):
        for first, last in ranges:
            events[first] = events.get(first, 0) ^ (1 << bit)
            events[last + 1] = events.get(last + 1, 0) ^ (1 << bit)
    classes: dict[int, list[tuple[int, int]]] = {}
    points = sorted(p for p in events if p <= LAST_CODE_POINT)
    signature = 0
    for point, after in zip(points, [*points[1:], LAST_CODE_POINT + 1]):
        signature ^= events[point]
        classes.setdefault(signature, []).append((point, after - 1))
    return [tuple(ranges) for ranges in classes.values()]


def _reduced(table: list[list[int]], accepting: set[int], classes: Sequence[Ranges]) -> Dfa:
    """Merge states that accept the same strings, drop those that accept none."""
    block = _blocks(table, accepting)
    row_of = {b: table[q] for q, b in enumerate(block)}
    live = _live({b: {block[t] for t in row} for b, row in row_of.items()}, {block[q] for q in accepting})
    if block[0] not in live:
        return NEVER
    order = {block[0]: 0}
    edges: list[tuple[Edge, ...]] = []
    for b in (todo := [block[0]]):
        found: list[Edge] = []
        for ranges, t in zip(classes, row_of[b]):
            if block[t] not in live:
                continue
            if block[t] not in order:
                order[block[t]] = len(order)
                todo.append(block[t])
            found += [(first, last, order[block[t]]) for first, last in ranges]
        edges.append(merged(sorted(found)))
    return Dfa(tuple(edges), frozenset(order[block[q]] for q in accepting if block[q] in order))


def _blocks(table: list[list[int]], accepting: set[int]) -> list[int]:
    """A number for each state; states of one number accept the same strings.

    Automata that count take as many rounds as they count, and have hardly any equal states: after
    `MERGE_ROUNDS` every state stays what it is.
    """
    block = [int(q in accepting) for q in range(len(table))]
    n_blocks = len(set(block))
    for _ in range(MERGE_ROUNDS):
        keys: dict[tuple[int, ...], int] = {}
        block = [keys.setdefault((b, *[block[t] for t in row]), len(keys)) for b, row in zip(block, table)]
        if len(keys) == n_blocks:
            return block
        n_blocks = len(keys)
    return list(range(len(table)))


def _live(graph: dict[int, set[int]], accepting: set[int]) -> set[int]:
    """The states from which an accepting one can be reached."""
    sources: dict[int, list[int]] = {}
    for source, targets in graph.items():
        for target in targets:
            sources.setdefault(target, []).append(source)
    live, todo = set(accepting), list(accepting)
    while todo:
        for source in sources.get(todo.pop(), ()):
            if source not in live:
                live.add(source)
                todo.append(source)
    return live


def number_of_texts(dfa: Dfa) -> int | None:
    """How many strings an automaton without dead states accepts; None where that is more than `MAX_TEXTS`."""
    counts: dict[int, int] = {}
    todo = [(0, False)]
    under_way: set[int] = set()
    while todo:
        state, is_done = todo.pop()
        if is_done:
            under_way.discard(state)
            sizes = [(last - first + 1) * counts[target] for first, last, target in dfa.edges[state]]
            counts[state] = sum(sizes) + (state in dfa.accepting)
            if counts[state] > MAX_TEXTS:
                return None
        elif state in under_way:
            return None  # it can come to itself
        elif state not in counts:
            under_way.add(state)
            todo.append((state, True))
            todo += [(target, False) for _, _, target in dfa.edges[state]]
    return counts[0]


def merged(edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """Neighbouring ranges with one target become one."""
    found: list[Edge] = []
    for first, last, target in edges:
        if found and found[-1][2] == target and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last, target)
        else:
            found.append((first, last, target))
    return tuple(found)
