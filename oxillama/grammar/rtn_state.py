"""The states and edges of a recursive transition network."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.errors import GrammarError

MORE, ENOUGH = 1, 2
RESET, KEEP, NEXT, ONE = 0, 4, 8, 12
COUNT_BITS = 12


@dataclass(slots=True)
class State:
    """Edges as (what, op, target): bytes as bits, a token set's number, or a subnetwork's number."""

    bytes: list[tuple[int, int, int]] = field(default_factory=list)
    tokens: list[tuple[int, int, int]] = field(default_factory=list)
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    epsilon: list[tuple[int, int]] = field(default_factory=list)
    final: bool = False
    count: tuple[int, int] | None = None  # m and n of x{m,n}; n is -1 for no bound


def too_large(most: int) -> GrammarError:
    """The error of a network of more than ``most`` states."""
    return GrammarError(f"grammar: expected at most {most} states, got more")
