"""Compiles rules to programs: recursive transition networks, built piece by piece, that the kernels run."""

from __future__ import annotations

from threading import Lock

from oxillama._kernels.grammar.builder import Builder
from oxillama._kernels.grammar.network import Program as Program
from oxillama._kernels.grammar.nodes import find_calls, nullable_rules
from oxillama.base.deadline import check_deadline
from oxillama.base.locks import ForkedOpen
from oxillama.errors import GrammarError
from oxillama.text.grammar.analysis import analysis_of
from oxillama.text.grammar.rules import Node, Ref, Rules

MAX_STATES = 300_000  # limit of states of a piece
MANY_STATES = 100_000  # estimated states of all rules above which all are built at once, to check the limit
MOST_LEAVES = 128  # cached pieces that grammars share
MOST_LEAF_STATES = 4_096  # of such a piece, some 0.2 MiB


Found = tuple[set[str], dict[str, int], set[str], list[str], dict[str, int]]
"""Facts of rules: called rules, sizes, nullable rules, names of deferred rules and their numbers."""


class Pieces:
    """The pieces of a grammar's network: one of the root and one of each deferred rule, each built once.

    Raises GrammarError if the rules are invalid, match nothing, or are too large.

    Args:
        found: the facts of equal rules, if they are already known; such rules are within the limits.

    Attributes:
        program: the piece of the root.
        places: for each deferred rule, by number, its origin (a path in a schema); "" if unknown.
        built: (number, piece) of deferred rules, in the order in which they were built.
    """

    def __init__(self, rules: Rules, found: Found | None = None) -> None:
        known = analysis_of(rules)
        self._rules = dict(rules.rules) if found is None else rules.rules
        self._refs, self._productive = known.refs, known.productive
        if rules.root not in self._productive:
            raise GrammarError(f"grammar: no text matches the rule {rules.root}")
        self.found: Found = found or self._find(rules)
        self._called, self._sizes, self._nullable, self._names, self._numbers = self.found
        self.places: list[str] = [rules.places.get(name, "") for name in self._names]
        self.built: list[tuple[int, Program]] = []
        self._done: set[int] = set()
        self._lock = Lock()
        self.program: Program = self._piece(rules.root, self if self._names else None)
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
        """The rule that ``name`` is an alias of; ``name`` itself if it is no alias."""
        body, seen = self._rules[name], {name}
        while isinstance(body, Ref) and body.name in self._numbers and body.name not in seen:
            name = body.name
            seen.add(name)
            body = self._rules[name]
        return name

    def build(self, number: int) -> None:
        """Build a deferred rule, unless it is already built; raises GrammarError if it is too large."""
        with self._lock:
            if number not in self._done:
                check_deadline()
                name = self._names[number]
                try:
                    piece = self._piece(name) if self._refs[name] else _leaf(self._rules[name])
                except GrammarError as error:
                    raise GrammarError(self.located(number, str(error))) from None
                self.built.append((number, piece))
                self._done.add(number)

    def located(self, number: int, reason: str) -> str:
        """The reason, prefixed with the place of a deferred rule."""
        place = self.places[number]
        return f"{place}: {reason.removeprefix('grammar: ')}" if place else reason

    def _piece(self, name: str, pieces: Pieces | None = None) -> Program:
        known = self._called, self._sizes, self._nullable, self._productive, self._numbers
        return Builder(self._read(name), *known, MAX_STATES).build(name, pieces)

    def _read(self, name: str) -> dict[str, Node]:
        """The rules of one piece; rules of other pieces are called by number."""
        if isinstance(self._rules, dict):
            return self._rules
        found, todo = {}, [name]
        while todo:
            each = todo.pop()
            if each not in found:
                found[each] = self._rules[each]
                todo += [other for other in self._refs[each] if other not in self._numbers]
        return found


def _leaf(body: Node) -> Program:
    """The piece of a rule without references; small ones are cached: many grammars use the same formats."""
    with _LOCK.lock:
        found = _LEAVES.pop(body, None)
        if found is not None:
            _LEAVES[body] = found
            return found
    made = Builder({"": body}, {""}, {}, set(), {""}, {}, MAX_STATES).build("")
    if made.n_states <= MOST_LEAF_STATES:
        with _LOCK.lock:
            _LEAVES[body] = made
            if len(_LEAVES) > MOST_LEAVES:
                del _LEAVES[next(iter(_LEAVES))]
    return made


_LEAVES: dict[Node, Program] = {}
"""The least recently used first."""
_LOCK = ForkedOpen()
