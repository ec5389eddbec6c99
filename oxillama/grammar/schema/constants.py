"""Sets of the values that are few: null, true and false, by their texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oxillama.grammar.rules import Alt, Node, Text


class Constants(NamedTuple):
    """One of these texts, which are all of one type of values: ``every`` lists the type's."""

    texts: tuple[str, ...]
    every: tuple[str, ...]

    def meet(self, other: Constants) -> Constants | None:
        """Both; None where they share no value."""
        kept = tuple(text for text in self.texts if text in other.texts)
        return Constants(kept, self.every) if kept else None

    def negated(self) -> Iterator[Constants]:
        """The other values of the type."""
        rest = tuple(text for text in self.every if text not in self.texts)
        if rest:
            yield Constants(rest, self.every)

    def node(self) -> Node:
        """The JSON texts."""
        return Alt(tuple(map(Text, self.texts)))


NULL = Constants(("null",), ("null",))
BOOLEAN = Constants(("true", "false"), ("true", "false"))
