"""The recursive transition network as flat arrays: what the kernel reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import numpy as np

from oxillama._kernels.grammar.builder import Builder
from oxillama._kernels.grammar.nodes import references
from oxillama.errors import GrammarError
from oxillama.grammar.analysis import check, find_calls, nullable_rules
from oxillama.grammar.rules import Common, Node, Part, Ref, Rules, Tokens

MAX_STATES = 300_000
MOST_LEAVES = 128  # pieces that are kept for further grammars


@dataclass(frozen=True)
class Program:
    """A compiled grammar, without a vocabulary; or a piece of one, see `Units`.

    Attributes
    ----------
    flags, least, most : int32 (states,)
        FINAL: the subnetwork may end here. CONSUMES: has byte or token edges. PURE_FINAL: the end of the
        subnetwork is all that is left. ENDS_*: the subnetwork can end without reading more. ``least`` and
        ``most`` are the bounds of the state's count.
    slack : int32 (states,)
        By how much the tightest ``most`` of the states that carry the same count lies below this state's.
    byte_edges, token_edges, calls, epsilon : int32 (edges, 3)
        (what, op, target): a label, a token set, a subnetwork (its start state, or UNIT plus the number of a
        unit), or nothing.
    *_first : int32 (states + 1,)
        Where a state's edges begin; they end where the next state's begin.
    labels : uint8 (labels, 32)
        The bytes that an edge of this label takes: bit b % 8 of column b // 8 is byte b.
    token_sets : token terminals, by the numbers in ``token_edges``.
    start : the root's start state.
    accepts_empty : whether the empty text matches.
    units : builds the subnetworks that are called by number; None where there are none.
    """

    flags: np.ndarray
    least: np.ndarray
    most: np.ndarray
    slack: np.ndarray
    byte_edges: np.ndarray
    byte_first: np.ndarray
    token_edges: np.ndarray
    token_first: np.ndarray
    calls: np.ndarray
    calls_first: np.ndarray
    epsilon: np.ndarray
    epsilon_first: np.ndarray
    labels: np.ndarray
    token_sets: tuple[Tokens, ...]
    start: int
    accepts_empty: bool
    units: Units | None = None


def compile_rules(rules: Rules) -> Program:
    """Compile a grammar; GrammarError where the rules are none, match nothing, or are too large."""
    check(rules)
    if not rules.parts:
        return _piece(rules)
    units = Units(part.common for part in rules.parts.values())

    def number(name: str) -> int:
        return units.number(rules.parts[name], rules.parts[name].root)

    return _piece(rules, number, units)


def _piece(rules: Rules, number: Callable[[str], int] | None = None, units: Units | None = None) -> Program:
    """Compile rules. Names without a rule are units, which match something, never the empty text."""
    builder = Builder(dict(rules.rules), *find_calls(rules), nullable_rules(rules), number, MAX_STATES)
    return Program(**builder.build(rules.root), units=units)


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

    def __init__(self, commons: Iterable[Common] = ()) -> None:
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
        return _piece(rules, lambda name: self.number(owner, name), self)


@lru_cache(maxsize=MOST_LEAVES)
def _leaf(body: Node) -> Program:
    """The piece of a rule that refers to no other; grammars share it, as many have the same formats."""
    return _piece(Rules("", {"": body}), units=Units())


def _common_piece(common: Common, name: str, first: int) -> Program:
    """The piece of a common rule, for all grammars in which these have the numbers from ``first`` on."""
    if (name, first) not in common.pieces:
        numbers = {other: first + i for i, other in enumerate(common.rules)}
        rules = Rules(name, {name: common.rules[name]})
        common.pieces[name, first] = _piece(rules, numbers.__getitem__, Units())
    found: Program = common.pieces[name, first]
    return found
