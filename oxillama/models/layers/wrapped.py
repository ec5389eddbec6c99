"""Layers around an ordinary layer."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

from oxillama.models.weights.linear import Linear


class WrappedLayer:
    """A layer that uses the blocks and norms of an ordinary one.

    Args:
        layer: the ordinary layer.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def blocks(self) -> list[Any]:
        """The blocks of the ordinary layer, in order."""
        found: list[Any] = self.layer.blocks()
        return found

    def with_blocks(self, wrap: Any) -> Self:
        """A copy whose blocks are what ``wrap`` makes of them."""
        found = copy(self)
        found.layer = self.layer.with_blocks(wrap)
        return found

    def linears(self) -> list[Linear]:
        """The linear layers of this layer and of the ordinary layer."""
        return [*self.own_linears(), *self.layer.linears()]

    def own_linears(self) -> list[Linear]:
        """The linear layers that the ordinary layer does not have."""
        return []
