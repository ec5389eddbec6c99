"""Linear layers: y = x W^T + bias, with matrices packed for the kernels; and tables of embeddings.

The `PanelStore` of a model gives each of its linear layers a `Panels`, which the layer asks for the packed
matrices when it is applied. `ResidentStore` packs them at first use and keeps them. The product itself is the
compiled ``kernels.linear.Linear``, which each `Linear` holds. Small tables of embeddings are in memory, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oxillama._kernels import Kernels, pack
from oxillama.base.formats import FORMAT_BY_ID, LAYOUTS, Format
from oxillama.gguf.extent import Extent
from oxillama.gguf.model_file import TensorInfo
from oxillama.models.weights.packer import Packer, Source

if TYPE_CHECKING:
    from oxillama._kernels.linear.linear import Linear as CompiledLinear
    from oxillama.models.weights.low_rank import AdaptedRows


class Panels(Protocol):
    """The packed matrices of one linear layer."""

    def place(self, linear: CompiledLinear) -> bool:
        """Gives the kernels' `Linear` its panels (``linear.give``), unless it has them.

        Returns True if they stay there for good. Otherwise this is called before each product, and the panels
        stay until the product is done.

        Raises ModelFileError if a file cannot be read or has changed since it was opened, and GGUFError if
        a format cannot hold a value. The next call tries again.
        """
        ...


class PanelStore(Protocol):
    """Gives the linear layers of a model their `Panels`.

    Attributes:
        resident_bytes: of the matrices that are in memory; None for all of them.
    """

    resident_bytes: int | None = None

    def panels(self, sources: list[Source], cols: int) -> Panels:
        """The panels of a layer of matrices of ``cols`` columns.

        Layers call this in the order in which they are built, which is the same for each load of a model.
        """
        ...

    def arrange(self, groups: Sequence[MatrixGroup]) -> None:
        """Takes the model's groups of matrices, in the order of a pass, once it is built.

        Raises ConfigError if the store cannot hold such a model.
        """
        return

    def preload(self, linears: Sequence[Linear], progress: Callable[[str, int], object]) -> None:
        """Brings the linear layers of the model into memory now; ``progress`` gets (tensor name, bytes)."""
        for linear in linears:
            linear.pack()

    def begin_pass(self) -> None:
        """Called before linear layers are applied. Raises ModelFileError if a file has changed."""
        return

    def end_pass(self) -> None:
        """Called after a pass, even if the pass failed. Raises ModelFileError as `begin_pass`."""
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

    def place(self, linear: CompiledLinear) -> bool:
        """See `Panels.place`. After an error, a second call does not pack the same matrices again."""
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


Observer = Callable[[TensorInfo, int, np.ndarray], None]
"""Called with a matrix (its tensor, its expert) and the float32 (n, cols) that the matrix multiplies."""


@dataclass(eq=False, repr=False)
class Pass:
    """The parameters of a pass that its linear layers need.

    Attributes:
        scratch: uint8, memory that each product overwrites.
        n_threads: threads to use.
        adapted: the rows that take adapters; None where no row does.
    """

    scratch: np.ndarray
    n_threads: int
    adapted: AdaptedRows | None = None


class Linear:
    """A linear layer of one or more matrices that share an input, stacked by rows.

    The panels are made when the layer is first applied, or by `pack`. A file thus opens at once, and matrices
    that are never used (of an expert, for example) are never read.

    Args:
        kernels: the target that multiplies.
        panels: where the packed matrices come from.
        sources: the matrices.
        cols: columns of every matrix.
        bias: float32 (rows,), or None.

    Attributes:
        rows, cols: of all matrices together.
        sources: the matrices.
        observer: called with the input of each matrix, or None.
    """

    def __init__(
        self, kernels: Kernels, panels: Panels, sources: list[Source], cols: int, bias: np.ndarray | None
    ) -> None:
        self.sources = sources
        self.observer: Observer | None = None
        self._panels: Panels | None = panels
        parts = [(LAYOUTS[source.format.layout or ""].id, source.rows, None) for source in sources]
        scales = np.array([source.scale for source in sources], np.float32)
        self._linear = kernels.linear.Linear(parts, cols, bias, scales=scales)
        self.rows: int = self._linear.rows
        self.cols = cols
        self.scratch_bytes: Callable[[int], int] = self._linear.scratch_bytes

    def apply(self, x: np.ndarray, out: np.ndarray, step: Pass, accumulate: bool = False) -> None:
        """out (n, rows) = x (n, cols) W^T + bias, and what adapters add; with ``accumulate``, out += that.

        Row i of x belongs to row i of the pass.
        """
        if self._panels is not None or self.observer is not None:
            self.prepare(x)
        plans = () if step.adapted is None else step.adapted.plans(self)
        self._linear.apply(x, out, step.scratch, step.n_threads, accumulate, plans)

    def prepare(self, x: np.ndarray) -> Any:
        """Gets the panels, calls the observer with x (n, cols), and returns the kernels' `Linear`."""
        if self._panels is not None:
            self.pack()
        if self.observer is not None:
            for source in self.sources:
                self.observer(source.info, source.expert, x)
        return self._linear

    @property
    def panels(self) -> Panels | None:
        """The source of the panels; None once they are in memory for good."""
        return self._panels

    @property
    def packed(self) -> bool:
        """Whether the panels of all matrices are in memory for good."""
        return self._panels is None

    def pack(self) -> None:
        """Gets the panels of all matrices, unless they are in memory for good."""
        if self._panels is not None and self._panels.place(self._linear):
            self._panels = None


KEPT_BYTES = 16 << 20
"""The largest table that is kept in memory from its first use on. Models with such a table are so fast that
reading rows would take some percent of their time."""


class Embedding:
    """A table of embeddings whose rows are dequantized when they are looked up.

    Args:
        name: of the tensor, for errors.
        table: the rows in the file.
        format_id: id of its format.
        cols: elements of a row.
        kernels: the target that quantizes.
        requantize: format that rows are quantized to, and dequantized from again; None to use them as they
            are.
    """

    def __init__(
        self,
        name: str,
        table: Extent,
        format_id: int,
        cols: int,
        kernels: Kernels,
        requantize: Format | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.row_bytes: int = FORMAT_BY_ID[format_id].nbytes(cols)
        self.format_id = format_id
        self.cols = cols
        self.kernels = kernels
        self.requantize = requantize
        self._kept: np.ndarray | None = None  # the table, if it is small

    def lookup(self, ids: np.ndarray, out: np.ndarray) -> None:
        """out (n, cols) float32 = the rows of ``ids`` (n,).

        Raises GGUFError if ``requantize`` cannot hold a value of these rows, and ModelFileError if the file
        cannot be read or has changed since it was opened.
        """
        if self._kept is None and self.table.nbytes <= KEPT_BYTES:
            self._kept = self.table.read().reshape(-1, self.row_bytes)
        rows = self.table.read_rows(ids, self.row_bytes) if self._kept is None else self._kept[ids]
        pack.dequantize(self.format_id, rows.reshape(-1), out)
        if self.requantize is not None and len(ids):
            from oxillama.models.weights.requantize import check_range, quantized  # on use

            check_range(self.name, out, self.requantize)
            blocks = quantized(self.kernels, out, self.requantize, None)
            pack.dequantize(self.requantize.id, blocks.reshape(-1), out)


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


@dataclass(eq=False, repr=False)
class Experts:
    """The experts of one layer.

    Attributes:
        members: the linear layers of each.
        n_used: experts that a token uses.
        pages: loads them before they are used; None if all are in memory.
    """

    members: list[list[Linear]]
    n_used: int
    pages: ExpertPages | None = None


@dataclass(eq=False, repr=False)
class MatrixGroup:
    """Linear layers that a pass uses together: in a layer of the model, or the output.

    Attributes:
        name: for messages.
        linears: those that every pass uses, in the order of their use.
        experts: a pass uses some of them.
    """

    name: str
    linears: list[Linear]
    experts: Experts | None = field(default=None)
