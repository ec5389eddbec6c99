"""Rules that are written and built when a parser first comes to them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from oxillama.grammar.program import Program, piece
from oxillama.grammar.rules import Ref, Rules


class Units:
    """Numbers for the names of rules, and the pieces that have been built for them.

    Parameters
    ----------
    rules : the rule of a name, which becomes the root, with the rules that belong to it alone. Other names in
        them are units as well. All match something, and never the empty text. GrammarError: it cannot be
        written.

    Attributes
    ----------
    built : (unit, piece), in the order in which they were asked for. In place of a piece stands the number of an
        earlier unit where the rule is that one by another name.
    """

    def __init__(self, rules: Callable[[str], Rules]) -> None:
        self._rules = rules
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
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
        rules = self._rules(self._names[unit])
        body = rules.rules[rules.root]
        if isinstance(body, Ref) and body.name not in rules.rules:
            other = self.number(body.name)
            self._build(other)
            self.built.append((unit, other))
        else:
            self.built.append((unit, piece(rules, self)))
        self._done.add(unit)


def lazy_program(root: str, rules: Callable[[str], Rules]) -> Program:
    """A program of which only the root is built at first; see `Units`."""
    units = Units(rules)
    return piece(Rules("", {"": Ref(root)}), units)
