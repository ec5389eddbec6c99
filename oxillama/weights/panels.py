"""Where linear layers get their packed matrices from.

A `PanelStore` belongs to a model and gives each of its linear layers a `Panels`, which provides the packed
matrices when the layer is applied. `ResidentStore` packs them at first use and keeps them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from oxillama.weights.packer import Packer, Source

if TYPE_CHECKING:
    from oxillama._kernels.linear import Linear


class Panels(Protocol):
    """The packed matrices of one linear layer."""

    def place(self, linear: Linear) -> bool:
        """Gives the kernels' `Linear` its panels (``linear.give``), unless it has them.

        Returns True if they stay there for good. Otherwise this is called before each product, and the panels
        stay until the product is done.

        Raises ModelFileError if a file cannot be read or has changed since it was opened, and GGUFError if
        a format cannot hold a value. The next call tries again.
        """
        ...


class PanelStore(Protocol):
    """Gives the linear layers of a model their `Panels`.

    Attributes
    ----------
    resident_bytes : of the matrices that are in memory; None for all of them.
    """

    resident_bytes: int | None = None

    def panels(self, sources: list[Source], cols: int) -> Panels:
        """The panels of a layer of matrices of ``cols`` columns.

        Layers call this in the order in which they are built, which is the same for each load of a model.
        """
        ...

    def arrange(self, groups: Sequence[Any]) -> None:
        """Takes the model's groups of matrices (`MatrixGroup`), in the order of a pass, once it is built.

        Raises ConfigError if the store cannot hold such a model.
        """
        return

    def preload(self, linears: Sequence[Any], progress: Callable[[str, int], object]) -> None:
        """Brings the linear layers of the model into memory now; ``progress`` gets (tensor name, bytes)."""
        for linear in linears:
            linear.pack()

    def begin_pass(self) -> None:
        """Called before linear layers are applied. Raises ModelFileError if a file has changed."""
        return

    def end_pass(self) -> None:
        """Called afterwards, even if that failed. Raises ModelFileError as `begin_pass`."""
        return

    def rest(self) -> float:
        """Called when the engine is idle; returns the seconds after which to call again."""
        return math.inf

    def busy_seconds(self) -> float:
        """A clock of computing time, which stops while computing waits for panels."""
        return time.perf_counter()


@contextmanager
def panels_in_use(store: PanelStore) -> Iterator[None]:
    """A block that applies linear layers. Raises ModelFileError as `PanelStore.begin_pass`."""
    store.begin_pass()
    try:
        yield
    finally:
        store.end_pass()


class ResidentPanels:
    """Panels in memory, packed at their first use."""

    def __init__(self, packer: Packer, sources: list[Source], cols: int) -> None:
        self._packer = packer
        self._cols = cols
        self._parts = [(source, packer.memory(source.packed_bytes(cols))) for source in sources]
        self._n_packed = 0

    def place(self, linear: Linear) -> bool:
        """As `Panels.place`. Matrices that were packed before an error are not packed again."""
        for source, data in self._parts[self._n_packed :]:
            self._packer.pack(source, self._cols, data)
            self._n_packed += 1
        linear.give([data for _, data in self._parts])
        return True


class ResidentStore(PanelStore):
    """Packs each matrix once and keeps it in memory."""

    def __init__(self, packer: Packer) -> None:
        self.packer = packer

    def panels(self, sources: list[Source], cols: int) -> ResidentPanels:
        return ResidentPanels(self.packer, sources, cols)
