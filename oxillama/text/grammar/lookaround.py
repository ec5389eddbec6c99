"""Regular expressions with lookaround: word boundaries, lookaheads, lookbehinds, anchors anywhere.

Lookbehinds depend on the text read so far: their automata run along from the start of the string. Lookaheads
depend on the text to come: a lookahead that is passed becomes a promise, the state of an automaton that the
rest of the string must lead to acceptance, or must not. A way through the expression is then a position and a
set of promises: an alternating automaton (Chandra, Kozen and Stockmeyer, 1981). A state of the deterministic
automaton is a set of ways. Of two ways at one position, only the way with fewer promises is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oxillama.errors import GrammarError
from oxillama.text.grammar.anchors import assertions, pieces
from oxillama.text.grammar.codepoints import EVERYTHING, WORD, Ranges, classes_of, contains
from oxillama.text.grammar.dfa import automaton, meet
from oxillama.text.grammar.expressions import ANYTHING, EMPTY, Assertion, alternatives, sequence
from oxillama.text.grammar.rules import NEVER, Alt, Chars, Dfa, Node, Repeat, Seq, Text

MAX_PLACES = 10_000  # positions in an expression, its repetitions written out
MAX_STATES = 4_000
MAX_WAYS = 500  # ways in one state
START, OTHER, IN_WORD = range(3)  # before a position: the string's start, a character, a word character

Promise = tuple[int, int, bool]  # automaton, its state, whether the rest must lead to acceptance
Promises = frozenset[Promise]
Way = tuple[int, Promises]
State = tuple[int, tuple[int, ...], frozenset[Way]]  # context before, states of the lookbehinds, ways
Fail = Callable[[str, int], GrammarError]

_NO_PROMISE: Promises = frozenset()
_AT_END = Dfa(((),), {0})
_AT_WORD = Dfa((tuple((first, last, 1) for first, last in WORD), ((*EVERYTHING[0], 1),)), frozenset({1}))
_ALL = ((*EVERYTHING[0], 0),)


def look_around(node: Node, search: bool, fail: Fail) -> Dfa:
    """The strings that an expression with assertions matches.

    Args:
        node: an expression that may contain `Assertion`s.
        search: True: the expression may match anywhere in the string; False: from end to end.
        fail: makes the error from a reason and a position in the pattern.

    Raises:
        GrammarError: lookbehinds contain or are inside other assertions, or the automaton is too large.
    """
    whole = sequence([ANYTHING, node]) if search else node
    return _Reader(whole, search, START, fail, None).automaton()


class _Reader:
    """The automaton of an expression at a position whose context ``before`` is known.

    ``goes_on``: any text may follow. ``inside``: the lookahead whose body the expression is, or None.
    """

    def __init__(self, node: Node, goes_on: bool, before: int, fail: Fail, inside: Assertion | None) -> None:
        self.goes_on, self.before, self.fail = goes_on, before, fail
        self.moves: list[list[tuple[Ranges, int]]] = []
        self.free: list[list[tuple[Assertion | None, int]]] = []
        self.found = list(dict.fromkeys(assertions(node)))
        self.at = self.found[0].at if self.found else inside.at if inside is not None else 0
        self.promised: list[Dfa] = [_AT_END, _AT_WORD]
        self.promise: dict[tuple[Assertion, int], int] = {}
        self.behind: dict[Assertion, int] = {}
        for one in self.found:
            if one.sign in ("?=", "?!"):
                self.look_ahead(one)
            elif one.sign in ("?<=", "?<!"):
                if inside is not None:
                    raise fail("a lookbehind inside of a lookahead is not supported", one.at)
                self.look_behind(one)
        self.minds = any(map(_minds, self.found))
        self.end = self.add(sequence([node, EMPTY]), self.state())
        if goes_on:
            fresh = self.state()
            self.free[self.end].append((None, fresh))
            self.moves[fresh].append((EVERYTHING, fresh))
            self.end = fresh
        self.prepare()

    def look_ahead(self, one: Assertion) -> None:
        minds = any(map(_minds, assertions(one.body)))
        for before in (START, OTHER, IN_WORD):
            if minds or before == START:
                self.promised.append(_Reader(one.body, True, before, self.fail, one).automaton())
            self.promise[one, before] = len(self.promised) - 1

    def look_behind(self, one: Assertion) -> None:
        ways = pieces(one.body)
        if ways is None or any(way.last for way in ways):
            raise self.fail("a lookbehind that looks around itself is not supported", one.at)
        self.behind[one] = len(self.promised)
        read = alternatives([way.whole(after=EMPTY) for way in ways])
        self.promised.append(automaton(read))

    # ------------------------------------------------------------------ the expression's places

    def state(self) -> int:
        if len(self.moves) > MAX_PLACES:
            raise self.fail(f"at most {MAX_PLACES} characters, repetitions written out", self.at)
        self.moves.append([])
        self.free.append([])
        return len(self.moves) - 1

    def add(self, node: Any, start: int) -> int:
        """Add the positions of a node, which begins at ``start``; returns the position after the node."""
        if isinstance(node, Seq):
            for item in node.items:
                start = self.add(item, start)
            return start
        if isinstance(node, Repeat):
            return self.repeat(node, start)
        if isinstance(node, Text):
            return self.add(Seq(tuple(Chars(((ord(c), ord(c)),)) for c in node.text)), start)
        end = self.state()
        if isinstance(node, Chars):
            self.moves[start].append((node.ranges, end))
        elif isinstance(node, Assertion):
            self.free[start].append((node, end))
        elif isinstance(node, Alt):
            for item in node.items:
                self.free[self.add(item, start)].append((None, end))
        else:
            raise TypeError(f"not an expression over characters: {type(node).__name__}")
        return end

    def repeat(self, node: Repeat, start: int) -> int:
        for _ in range(node.least):
            start = self.add(node.item, start)
        loop = self.state()
        self.free[start].append((None, loop))
        if node.most is None:
            self.free[self.add(node.item, loop)].append((None, loop))
            return loop
        end = self.state()
        for _ in range(node.most - node.least):
            self.free[loop].append((None, end))
            loop = self.add(node.item, loop)
        self.free[loop].append((None, end))
        return end

    # ------------------------------------------------------------------ classes of characters

    def prepare(self) -> None:
        """Partition the characters into classes that behave the same, and compute the transitions."""
        sets = [ranges for moves in self.moves for ranges, _ in moves]
        rows = [dfa.edges for dfa in self.promised]
        sets += [((first, last),) for edges in rows for row in edges for first, last, _ in row]
        self.classes = classes_of(sets)
        points = [ranges[0][0] for ranges in self.classes]
        self.in_word = [contains(WORD, point) for point in points]
        self.targets = [
            [[target for ranges, target in moves if contains(ranges, point)] for moves in self.moves]
            for point in points
        ]
        self.tables = [
            [
                [next((t for first, last, t in edges if first <= point <= last), -1) for point in points]
                for edges in dfa
            ]
            for dfa in rows
        ]
        self.ends = [dfa.accepting for dfa in self.promised]
        self.always = [  # states that accept whatever follows
            {q for q, row in enumerate(edges) if row == ((*EVERYTHING[0], q),) and q in ends}
            for edges, ends in zip(rows, self.ends)
        ]

    # ------------------------------------------------------------------ promises

    def kept(self, automaton: int, state: int, wanted: bool) -> Promises | None:
        """The promise, empty if it always holds; None if it can never hold."""
        if state < 0 or not self.ends[automaton]:
            return None if wanted else _NO_PROMISE
        if state in self.always[automaton]:
            return _NO_PROMISE if wanted else None
        return frozenset({(automaton, state, wanted)})

    def asked(self, one: Assertion | None, before: int, behind: tuple[int, ...]) -> Promises | None:
        """The promises that an assertion makes at a position; None if the assertion fails there."""
        if one is None:
            return _NO_PROMISE
        if one.sign == "^":
            return _NO_PROMISE if before == START else None
        if one.sign == "$":
            return self.kept(0, 0, True)
        if one.sign in "bB":
            return self.kept(1, 0, (before == IN_WORD) != (one.sign == "b"))
        if one.sign in ("?=", "?!"):
            return self.kept(self.promise[one, before], 0, one.sign == "?=")
        at = behind[list(self.behind).index(one)]
        return _NO_PROMISE if (at in self.ends[self.behind[one]]) == (one.sign == "?<=") else None

    def closed(self, ways: Iterable[Way], before: int, behind: tuple[int, ...]) -> State:
        """The state with these ways and all ways that they lead to without reading a character."""
        seen: set[Way] = set(ways)
        todo = list(seen)
        while todo:
            place, promises = todo.pop()
            for one, target in self.free[place]:
                more = self.asked(one, before, behind)
                way = None if more is None else (target, promises | more)
                if way is not None and way not in seen:
                    seen.add(way)
                    todo.append(way)
                    if len(seen) > MAX_WAYS * 10:
                        raise self.fail(f"expected at most {MAX_WAYS * 10} ways at once, got more", self.at)
        by_place: dict[int, list[Promises]] = {}
        for place, promises in sorted(seen, key=lambda way: len(way[1])):
            if self.moves[place] or place == self.end:
                others = by_place.setdefault(place, [])
                if not any(other <= promises for other in others):
                    others.append(promises)
        return before, behind, frozenset((p, one) for p, found in by_place.items() for one in found)

    def step(self, state: State, k: int) -> State:
        """The state after a character of class ``k``."""
        _, behind, ways = state
        after: set[Way] = set()
        for place, promises in ways:
            if not self.targets[k][place]:
                continue
            found = [self.kept(i, self.tables[i][at][k], wanted) for i, at, wanted in promises]
            more = _NO_PROMISE.union(*(one for one in found if one is not None))
            if None not in found:
                after.update((target, more) for target in self.targets[k][place])
        now = tuple(-1 if at < 0 else self.tables[i][at][k] for i, at in zip(self.behind.values(), behind))
        before = IN_WORD if self.minds and self.in_word[k] else OTHER
        return self.closed(after, before, now)

    def accepts(self, state: State) -> bool:
        return any(
            place == self.end and all((at in self.ends[i]) == wanted for i, at, wanted in promises)
            for place, promises in state[2]
        )

    # ------------------------------------------------------------------ the automaton

    def automaton(self) -> Dfa:
        """The deterministic automaton."""
        start = self.closed([(0, _NO_PROMISE)], self.before, (0,) * len(self.behind))
        number: dict[object, int] = {self.key(start): 0}
        order = [start]
        edges: list[list[tuple[int, int, int]]] = []
        for state in order:  # `order` grows during the loop
            row = []
            for k, ranges in enumerate(self.classes):
                after = self.step(state, k)
                key = self.key(after)
                if key not in number:
                    number[key] = len(order)
                    order.append(after)
                row += [(first, last, number[key]) for first, last in ranges]
            edges.append(sorted(row))
            if len(order) > MAX_STATES or len(state[2]) > MAX_WAYS:
                raise self.fail(
                    f"expected at most {MAX_STATES} states, {MAX_WAYS} ways in each, got more",
                    self.at,
                )
        found = Dfa(edges, {i for i, state in enumerate(order) if self.accepts(state)})
        return meet([found], [NEVER])  # equal states are merged

    def key(self, state: State) -> object:
        """A key that is equal only for states that accept the same strings."""
        if not state[2]:
            return None
        return True if self.goes_on and (self.end, _NO_PROMISE) in state[2] else state


def _minds(one: Assertion) -> bool:
    """Whether the assertion depends on the text before it."""
    return one.sign in ("^", "b", "B") or (
        one.sign in ("?=", "?!") and any(map(_minds, assertions(one.body)))
    )
