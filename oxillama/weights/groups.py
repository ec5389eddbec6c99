"""The linear layers of a model, in groups that are used one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from oxillama.weights.linear import Linear


class ExpertPages(Protocol):
    """Loads experts of one layer into memory, if not all of them are in memory."""

    def most(self, n: int) -> int:
        """How many of ``n`` experts may be used together."""
        ...

    def hold(self, now: list[int], soon: list[int]) -> None:
        """Keeps the experts ``now``, at most `most`, in memory until the next call, and reads those ``soon``.

        Missing experts are read while others compute.
        """
        ...


@dataclass
class Experts:
    """The experts of one layer.

    Attributes
    ----------
    members : the linear layers of each.
    n_used : experts that a token uses.
    pages : loads them before they are used; None if all are in memory.
    """

    members: list[list[Linear]]
    n_used: int
    pages: ExpertPages | None = None


@dataclass
class MatrixGroup:
    """Linear layers that a pass uses together: those of a layer of the model, or the output.

    Attributes
    ----------
    name : for messages.
    linears : those that every pass uses, in the order of their use.
    experts : those of which a pass uses some.
    """

    name: str
    linears: list[Linear]
    experts: Experts | None = field(default=None)
