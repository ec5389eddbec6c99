"""Sets of objects: values by property names, required names, the number of properties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from oxillama.text.grammar.rules import Node
from oxillama.text.grammar.schema.conditions import ANYTHING, NOTHING, State, both, lower, not_all

T = TypeVar("T")


class Names(NamedTuple):
    """The names not in ``but`` that match all ``patterns`` and none of ``absent``, and meet ``state``."""

    but: frozenset[str] = frozenset()
    patterns: tuple[Node, ...] = ()
    absent: tuple[Node, ...] = ()
    state: State = ANYTHING


class Rule(NamedTuple):
    """The state of the values of all properties whose names are in a set."""

    names: Names
    state: State


class Objects(NamedTuple):
    """The objects that meet all conditions.

    Attributes:
        properties: the states of values by name, in the order in which properties are written.
        rules: states of the values of all names in a set.
        names: the state of every name.
        required: names that must be present.
        least, most: bounds of the number of properties; ``most`` may be None, for no upper bound.
        exists: for each rule, at least one property has a name of the set and a value of the state.
    """

    properties: tuple[tuple[str, State], ...] = ()
    rules: tuple[Rule, ...] = ()
    names: State = ANYTHING
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    exists: tuple[Rule, ...] = ()

    def meet(self, other: Objects) -> Objects | None:
        """The intersection; None if a required property is impossible, or the counts exclude each other."""
        properties = self.properties or other.properties
        if self.properties and other.properties:
            properties = _merged(dict(self.properties), dict(other.properties))
        return Objects(
            properties,
            _joined(self.rules, other.rules),
            both(self.names, other.names),
            _joined(self.required, other.required),
            max(self.least, other.least),
            lower(self.most, other.most),
            _joined(self.exists, other.exists),
        ).settled()

    def settled(self) -> Objects | None:
        """The conjunct itself; None if it is known to be empty."""
        if self.most == 0 and self.exists:
            return None
        if not self.required:
            return None if self.most is not None and self.least > self.most else self
        required, states = set(self.required), dict(self.properties)
        if NOTHING in map(states.get, required):
            return None
        for names, state in self.rules:
            closed = state == NOTHING and not (names.patterns or names.absent or names.state)
            if closed and not required <= names.but:
                return None
        if self.most is not None and max(self.least, len(required)) > self.most:
            return None
        return self

    def known_names(self) -> list[str]:
        """Every mentioned name; names with a state come first."""
        names = dict.fromkeys([name for name, _ in self.properties])
        names |= dict.fromkeys(self.required)
        for kind, _ in (*self.rules, *self.exists):
            if not names.keys() >= kind.but:
                names |= dict.fromkeys(sorted(kind.but))
        return list(names)

    def negated(self) -> Iterator[Objects]:
        """Sets that cover the objects which miss a condition; ``exists`` is left out."""
        for name, state in self.properties:
            if state:
                yield Objects(properties=((name, not_all(state)),), required=(name,))
        for names, state in self.rules:
            if state:
                yield Objects(exists=(Rule(names, not_all(state)),))
        if self.names:
            yield Objects(exists=(Rule(Names(state=not_all(self.names)), ANYTHING),))
        for name in self.required:
            yield Objects(properties=((name, NOTHING),))
        if self.least:
            yield Objects(most=self.least - 1)
        if self.most is not None:
            yield Objects(least=self.most + 1)


def _merged(a: dict[str, State], b: dict[str, State]) -> tuple[tuple[str, State], ...]:
    """The properties of both: in the order of ``a``, and as far as possible in the order of ``b``."""
    ahead: list[str] = []
    before: dict[str, list[str]] = {}  # names only in b, by the common name that follows them
    for name in b:
        if name not in a:
            ahead.append(name)
        elif ahead:
            before[name], ahead = ahead, []
    names = [one for name in a for one in (*before.get(name, ()), name)] if before else list(a)
    return tuple([(name, both(a.get(name, ANYTHING), b.get(name, ANYTHING))) for name in names + ahead])


def _joined(a: tuple[T, ...], b: tuple[T, ...]) -> tuple[T, ...]:
    """The concatenation without duplicates."""
    return tuple(dict.fromkeys(a + b)) if a and b and a != b else a or b


def forbidden(name: str) -> Objects:
    """The objects without a property of this name."""
    return Objects(properties=((name, NOTHING),))


def exactly(properties: dict[str, State]) -> Objects:
    """The objects with exactly these properties."""
    closed = Rule(Names(but=frozenset(properties)), NOTHING)
    return Objects(tuple(properties.items()), (closed,), required=tuple(properties))
