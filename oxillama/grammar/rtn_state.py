"""The states and edges of a recursive transition network."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.errors import GrammarError


@dataclass(slots=True)
class State:
    """Edges as (what, op, target): bytes as bits, a token set's number, or a subnetwork's number."""

    bytes: list[tuple[int, int, int]] = field(default_factory=list)
    tokens: list[tuple[int, int, int]] = field(default_factory=list)
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    epsilon: list[tuple[int, int]] = field(default_factory=list)
    final: bool = False
    count: tuple[int, int, int] | None = None  # as `Program` has them: least, most, slack

    def of_kind(self, kind: int) -> list[tuple[int, int, int]]:
        """The edges by the kernels' number of their kind: bytes, tokens, calls."""
        return (self.bytes, self.tokens, self.calls)[kind]


def too_large(most: int) -> GrammarError:
    """The error of a network of more than ``most`` states."""
    return GrammarError(f"grammar: expected at most {most} states, got more")
