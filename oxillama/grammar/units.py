"""Rules that are written and built when a parser first comes to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Lock

from oxillama.grammar.program import Program, piece
from oxillama.grammar.rules import Node, Ref, Rules

Common = tuple[tuple[str, Node], ...]


class Units:
    """Numbers for the names of rules, and the pieces that have been built for them.

    Parameters
    ----------
    rules : the rule of a name, which becomes the root, with the rules that belong to it alone. Other names in
        them are units as well. All match something, and never the empty text. GrammarError: it cannot be
        written.
    common : rules that other grammars have too; they refer to each other only. Their pieces are built once.

    Attributes
    ----------
    built : (unit, piece), in the order in which they were asked for. In place of a piece stands the number of an
        earlier unit where the rule is that one by another name.
    """

    def __init__(self, rules: Callable[[str], Rules], common: Common = ()) -> None:
        self._rules = rules
        self._common = common
        self._names = [name for name, _ in common]
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
        if unit in self._done:
            return
        if unit < len(self._common):
            self.built.append((unit, _common_piece(self._common, unit)))
            self._done.add(unit)
            return
        rules = self._rules(self._names[unit])
        body = rules.rules[rules.root]
        if isinstance(body, Ref) and body.name not in rules.rules:
            other = self.number(body.name)
            self._build(other)
            self.built.append((unit, other))
        else:
            self.built.append((unit, piece(rules, self)))
        self._done.add(unit)


@lru_cache(maxsize=16)
def _common_piece(common: Common, unit: int) -> Program:
    """The piece of a common rule: the numbers in it are the same for all."""
    name, node = common[unit]
    return piece(Rules(name, {name: node}), Units(lambda name: Rules(name, {name: dict(common)[name]}), common))


def lazy_program(root: str, rules: Callable[[str], Rules], common: Common = ()) -> Program:
    """A program of which only the root is built at first; see `Units`."""
    units = Units(rules, common)
    return piece(Rules("", {"": Ref(root)}), units)
