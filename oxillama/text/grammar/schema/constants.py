"""Sets of null, true and false, by their JSON texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oxillama.text.grammar.rules import Alt, Node, Text


class Constants(NamedTuple):
    """A set of constants of one type, by their JSON texts: ``every`` lists all texts of the type."""

    texts: tuple[str, ...]
    every: tuple[str, ...]

    def meet(self, other: Constants) -> Constants | None:
        """The intersection; None if it is empty."""
        kept = tuple(text for text in self.texts if text in other.texts)
        return Constants(kept, self.every) if kept else None

    def negated(self) -> Iterator[Constants]:
        """The other constants of the type, if any."""
        rest = tuple(text for text in self.every if text not in self.texts)
        if rest:
            yield Constants(rest, self.every)

    def node(self) -> Node:
        """The JSON texts of the constants."""
        return Alt(tuple(map(Text, self.texts)))


NULL = Constants(("null",), ("null",))
BOOLEAN = Constants(("true", "false"), ("true", "false"))
