"""Rules to programs: the recursive transition network that kernels read, built piece by piece."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock

from oxillama._kernels.grammar.builder import Builder
from oxillama._kernels.grammar.network import Program as Program
from oxillama._kernels.grammar.nodes import find_calls, nullable_rules
from oxillama.errors import GrammarError
from oxillama.grammar.analysis import analysis_of
from oxillama.grammar.rules import Node, Ref, Rules

MAX_STATES = 300_000  # of a piece
MANY_STATES = 100_000  # of all rules, roughly: more are built at once, since they could be over the limit
MOST_LEAVES = 128  # pieces that are kept for further grammars


Found = tuple[set[str], dict[str, int], set[str], list[str], dict[str, int]]
"""Of rules: which are called, sizes, which match the empty text, the deferred ones and their numbers."""


class Pieces:
    """The pieces of a grammar's network: that of the root, and those of deferred rules, each built once.

    Raises GrammarError if the rules are none, match nothing, or are too large.

    Parameters
    ----------
    found : what the pieces of equal rules have found, so that they are within the limits.

    Attributes
    ----------
    program : the piece of the root.
    places : for each deferred rule, by its number, where it comes from; "" where that is not known.
    built : (number, piece) of deferred rules, in the order in which they were built.
    """

    def __init__(self, rules: Rules, found: Found | None = None) -> None:
        known = analysis_of(rules)
        self._rules = dict(rules.rules) if found is None else rules.rules
        self._refs, self._productive = known.refs, known.productive
        if rules.root not in self._productive:
            raise GrammarError(f"grammar: no text matches the rule {rules.root}")
        self.found = found or self._find(rules)
        self._called, self._sizes, self._nullable, self._names, self._numbers = self.found
        self.places = [rules.places.get(name, "") for name in self._names]
        self.built: list[tuple[int, Program]] = []
        self._done: set[int] = set()
        self._lock = Lock()
        self.program = self._piece(rules.root, self if self._names else None)
        if found is None and sum(self._sizes.values()) > MANY_STATES:
            for number in range(len(self._names)):
                self.build(number)

    def _find(self, rules: Rules) -> Found:
        named = dict(rules.rules)
        called, sizes = find_calls(named, rules.root, rules.deferred, self._refs)
        nullable = nullable_rules(named, self._refs)
        names = [name for name in named if name in rules.deferred and name in self._productive]
        self._numbers = {name: i for i, name in enumerate(names)}
        numbers = {name: self._numbers[self._meant(name)] for name in names}
        return called, sizes, nullable, names, numbers

    def _meant(self, name: str) -> str:
        """The rule that a rule is another name for; the rule itself, if it is none."""
        body, seen = self._rules[name], {name}
        while isinstance(body, Ref) and body.name in self._numbers and body.name not in seen:
            name = body.name
            seen.add(name)
            body = self._rules[name]
        return name

    def build(self, number: int) -> None:
        """Build a deferred rule, unless that has been done; GrammarError where it is too large."""
        with self._lock:
            if number not in self._done:
                name = self._names[number]
                try:
                    piece = self._piece(name) if self._refs[name] else _leaf(self._rules[name])
                except GrammarError as error:
                    raise GrammarError(self.located(number, str(error))) from None
                self.built.append((number, piece))
                self._done.add(number)

    def located(self, number: int, reason: str) -> str:
        """A reason with the place of a deferred rule."""
        place = self.places[number]
        return f"{place}: {reason.removeprefix('grammar: ')}" if place else reason

    def _piece(self, name: str, pieces: Pieces | None = None) -> Program:
        known = self._called, self._sizes, self._nullable, self._productive, self._numbers
        return Builder(self._read(name), *known, MAX_STATES).build(name, pieces)

    def _read(self, name: str) -> dict[str, Node]:
        """The rules that the piece of a rule is made of; rules of other pieces are called by number."""
        if isinstance(self._rules, dict):
            return self._rules
        found, todo = {}, [name]
        while todo:
            each = todo.pop()
            if each not in found:
                found[each] = self._rules[each]
                todo += [other for other in self._refs[each] if other not in self._numbers]
        return found


@lru_cache(maxsize=MOST_LEAVES)
def _leaf(body: Node) -> Program:
    """The piece of a rule that refers to no other; grammars share it, as many have the same formats."""
    return Builder({"": body}, {""}, {}, set(), {""}, {}, MAX_STATES).build("")
