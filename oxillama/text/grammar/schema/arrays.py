"""Sets of arrays: conditions on each item, the number of items, and the numbers of matching items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from oxillama.text.grammar.schema.conditions import ANYTHING, NOTHING, State, both, lower, not_all


class Contains(NamedTuple):
    """Between ``least`` and ``most`` of the items from index ``start`` on meet the state."""

    state: State
    start: int
    least: int
    most: int | None


class Arrays(NamedTuple):
    """The arrays that meet all conditions.

    Attributes:
        prefix, rest: the states of the first items, and of every further item.
        least, most: bounds of the number of items; ``most`` may be None, for no upper bound.
        contains: bounds of the numbers of items that meet a state.
        unique: no two items are equal.
    """

    prefix: tuple[State, ...] = ()
    rest: State = ANYTHING
    least: int = 0
    most: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False

    def meet(self, other: Arrays) -> Arrays | None:
        """The intersection; None where the lengths exclude each other."""
        pairs = zip_longest(self.prefix, other.prefix)
        prefix = [both(self.rest if a is None else a, other.rest if b is None else b) for a, b in pairs]
        least, most = max(self.least, other.least), lower(self.most, other.most)
        contains, unique = dict.fromkeys(self.contains + other.contains), self.unique or other.unique
        rest = both(self.rest, other.rest)
        return Arrays(tuple(prefix), rest, least, most, tuple(contains), unique).settled()

    def settled(self) -> Arrays | None:
        """Cut ``most`` and ``prefix`` at the first impossible item; None where counts exclude each other."""
        most = self.most
        for i, state in enumerate((*self.prefix, self.rest)):
            if state == NOTHING and (most is None or i < most):
                most = i
        if most is not None and self.least > most:
            return None
        for _, start, least, at_most in self.contains:
            if least and at_most is not None and least > at_most:
                return None
            if least and most is not None and least > most - start:
                return None
        prefix = self.prefix if most is None else self.prefix[:most]
        return Arrays(prefix, self.rest, self.least, most, self.contains, self.unique)

    def at(self, index: int) -> State:
        """The state of the item at ``index``."""
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def required(self) -> Iterator[State]:
        """The states of the items that every array has."""
        return map(self.at, range(min(self.least, len(self.prefix) + 1)))

    def negated(self) -> Iterator[Arrays]:
        """Sets that cover the arrays which miss a condition; ``unique`` has no such set and is left out."""
        for i, state in enumerate(self.prefix):
            if state:
                yield Arrays((ANYTHING,) * i + (not_all(state),), least=i + 1)
        if self.rest:
            yield Arrays(contains=(Contains(not_all(self.rest), len(self.prefix), 1, None),))
        if self.least:
            yield Arrays(most=self.least - 1)
        if self.most is not None:
            yield Arrays(least=self.most + 1)
        for state, start, least, most in self.contains:
            if least:
                yield Arrays(contains=(Contains(state, start, 0, least - 1),))
            if most is not None:
                yield Arrays(contains=(Contains(state, start, most + 1, None),))
