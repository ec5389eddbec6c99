"""Rules to programs, piece by piece: the recursive transition network that kernels read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from threading import Lock

from oxillama._kernels.grammar.builder import Builder
from oxillama._kernels.grammar.network import Program as Program
from oxillama._kernels.grammar.nodes import references
from oxillama.errors import GrammarError
from oxillama.grammar.analysis import check, find_calls, nullable_rules
from oxillama.grammar.rules import Common, Node, Part, Ref, Rules

MAX_STATES = 300_000
MOST_LEAVES = 128  # pieces that are kept for further grammars


def compile_rules(rules: Rules) -> Program:
    """Compile a grammar; GrammarError where the rules are none, match nothing, or are too large."""
    check(rules)
    if not rules.parts:
        return _piece(rules)
    units = Units(part.common for part in rules.parts.values())

    def number(name: str) -> int:
        return units.number(rules.parts[name], rules.parts[name].root)

    found = _piece(rules, number, units)
    if any(part.is_large for part in rules.parts.values()):
        units.build_all()
    return found


def _piece(rules: Rules, number: Callable[[str], int] | None = None, units: Units | None = None) -> Program:
    """Compile rules. Names without a rule are units, which match something, never the empty text."""
    builder = Builder(dict(rules.rules), *find_calls(rules), nullable_rules(rules), number, MAX_STATES)
    return builder.build(rules.root, units)


class Units:
    """Numbers for the rules of parts, and the pieces that have been built for them.

    Parameters
    ----------
    commons : the common rules of the parts; they have the first numbers.

    Attributes
    ----------
    n_common : how many numbers those are.
    built : (unit, piece), in the order in which they were asked for. Where a rule is another one by a second
        name, the other's number stands in place of a piece; it comes earlier.
    """

    def __init__(self, commons: Iterable[Common]) -> None:
        self._rules: list[tuple[Part | Common, str]] = []
        self._numbers: dict[tuple[Part | Common, str], int] = {}
        self._done: set[int] = set()
        self._lock = Lock()
        self.built: list[tuple[int, Program | int]] = []
        for common in dict.fromkeys(commons):
            for name in common.rules:
                self._number(common, name)
        self.n_common = len(self._rules)

    def located(self, unit: int, reason: str) -> str:
        """Why an operation failed, and where in the grammar: in the rule of a unit that is not common."""
        owner, name = self._rules[unit]
        return reason if isinstance(owner, Common) else owner.located(name, reason)

    def number(self, part: Part, name: str) -> int:
        """The number of a part's rule, or of one that its rules refer to."""
        return self._number(part.common if name in part.common.rules else part, name)

    def _number(self, owner: Part | Common, name: str) -> int:
        if (owner, name) not in self._numbers:
            self._numbers[owner, name] = len(self._rules)
            self._rules.append((owner, name))
        return self._numbers[owner, name]

    def build(self, unit: int) -> None:
        """Build a unit, unless that has been done."""
        with self._lock:
            self._build(unit)

    def build_all(self) -> None:
        """Build all units; GrammarError where one cannot be built."""
        for unit, _ in enumerate(self._rules):  # grows while it is read
            self.build(unit)

    def _build(self, unit: int) -> None:
        if unit not in self._done:
            try:
                piece = self._piece(*self._rules[unit])
            except GrammarError as error:
                raise GrammarError(self.located(unit, str(error))) from None
            self.built.append((unit, piece))
            self._done.add(unit)

    def _piece(self, owner: Part | Common, name: str) -> Program | int:
        if isinstance(owner, Common):
            return _common_piece(owner, name, self._numbers[owner, next(iter(owner.rules))])
        rules = owner.rules(name)
        body = rules.rules[name]
        if isinstance(body, Ref) and body.name not in rules.rules:
            other = self.number(owner, body.name)
            self._build(other)
            return other
        if len(rules.rules) == 1 and not references(body):
            return _leaf(body)
        return _piece(rules, lambda name: self.number(owner, name))


@lru_cache(maxsize=MOST_LEAVES)
def _leaf(body: Node) -> Program:
    """The piece of a rule that refers to no other; grammars share it, as many have the same formats."""
    return _piece(Rules("", {"": body}))


def _common_piece(common: Common, name: str, first: int) -> Program:
    """The piece of a common rule, for all grammars in which these have the numbers from ``first`` on."""
    if (name, first) not in common.pieces:
        numbers = {other: first + i for i, other in enumerate(common.rules)}
        rules = Rules(name, {name: common.rules[name]})
        common.pieces[name, first] = _piece(rules, numbers.__getitem__)
    found: Program = common.pieces[name, first]
    return found
