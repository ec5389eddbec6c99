"""The recursive transition network as flat arrays: what the kernel reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np

from oxillama._kernels.grammar.builder import Builder
from oxillama.grammar.analysis import check, find_calls, nullable_rules
from oxillama.grammar.rules import Node, Ref, Rules, Tokens

MAX_STATES = 300_000


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
    return piece(rules)


def piece(rules: Rules, units: Units | None = None) -> Program:
    """Compile rules. Names without a rule are ``units``, which match something, never the empty text."""
    number = units.number if units is not None else None
    builder = Builder(dict(rules.rules), find_calls(rules), nullable_rules(rules), number, MAX_STATES)
    return Program(**builder.build(rules.root), units=units)


# --------------------------------------------------------------------------- pieces built when needed


class Common:
    """Rules that many grammars have; they refer to each other only. Their pieces are built once for all."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self.rules = rules
        self._pieces: dict[str, Program] = {}

    def piece(self, name: str) -> Program:
        """The piece of a rule."""
        if name not in self._pieces:
            units = Units(lambda name: Rules(name, {name: self.rules[name]}), self)
            self._pieces[name] = piece(Rules(name, {name: self.rules[name]}), units)
        return self._pieces[name]


class Units:
    """Numbers for the names of rules, and the pieces that have been built for them.

    Parameters
    ----------
    rules : the rule of a name, which becomes the root, with the rules that belong to it alone. Other names in
        them are units as well. All match something, and never the empty text. GrammarError: it cannot be
        written.
    common : rules that other grammars have too; they have the first numbers.

    Attributes
    ----------
    built : (unit, piece), in the order in which they were asked for. Where a rule is another one by a second
        name, the other's number stands in place of a piece; it comes earlier.
    """

    def __init__(self, rules: Callable[[str], Rules], common: Common | None = None) -> None:
        self._rules = rules
        self._common = common
        self._names = list(common.rules) if common is not None else []
        self._numbers = {name: i for i, name in enumerate(self._names)}
        self._done: set[int] = set()
        self._lock = Lock()
        self.built: list[tuple[int, Program | int]] = []

    def number(self, name: str) -> int:
        """The number of a name."""
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]

    def build(self, unit: int) -> None:
        """Build a unit, unless that has been done."""
        with self._lock:
            self._build(unit)

    def _build(self, unit: int) -> None:
        if unit not in self._done:
            self.built.append((unit, self._piece(self._names[unit])))
            self._done.add(unit)

    def _piece(self, name: str) -> Program | int:
        if self._common is not None and name in self._common.rules:
            return self._common.piece(name)
        rules = self._rules(name)
        body = rules.rules[name]
        if isinstance(body, Ref) and body.name not in rules.rules:
            other = self.number(body.name)
            self._build(other)
            return other
        return piece(rules, self)


def lazy_program(root: str, rules: Callable[[str], Rules], common: Common | None = None) -> Program:
    """A program of which only the root is built at first; see `Units`."""
    units = Units(rules, common)
    return piece(Rules("", {"": Ref(root)}), units)
