"""Linear layers: y = x W^T + bias, with matrices packed for the kernels.

`Linear` here asks its `Panels` for the packed matrices when it is first applied; the product itself is the
compiled ``kernels.linear.Linear``, which each `Linear` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.formats import LAYOUTS
from oxillama.gguf.model_file import TensorInfo
from oxillama.weights.packer import Source
from oxillama.weights.panels import Panels

if TYPE_CHECKING:
    from oxillama._kernels.linear import LowRankPlan
    from oxillama.weights.low_rank import AdaptedRows

Observer = Callable[[TensorInfo, int, np.ndarray], None]
"""Called with a matrix (its tensor, its expert) and the float32 (n, cols) that the matrix multiplies."""


@dataclass
class Pass:
    """The parameters of a pass that its linear layers need.

    Attributes
    ----------
    scratch : uint8, memory that each product overwrites.
    n_threads : threads to use.
    adapted : the rows that take adapters; None where no row does.
    """

    scratch: np.ndarray
    n_threads: int
    adapted: AdaptedRows | None = None


class Linear:
    """A linear layer of one or more matrices that share an input, stacked by rows.

    The panels are made when the layer is first applied, or by `pack`. A file thus opens at once, and matrices
    that are never used (those of an expert, for example) are never read.

    Parameters
    ----------
    kernels : the target that multiplies.
    panels : where the packed matrices come from.
    sources : the matrices.
    cols : columns of every matrix.
    bias : float32 (rows,), or None.

    Attributes
    ----------
    rows, cols : of all matrices together.
    sources : the matrices.
    observer : called with the input of each matrix, or None.
    """

    def __init__(
        self, kernels: Kernels, panels: Panels, sources: list[Source], cols: int, bias: np.ndarray | None
    ) -> None:
        self.sources = sources
        self.observer: Observer | None = None
        self._panels: Panels | None = panels
        parts = [(LAYOUTS[source.format.layout or ""].id, source.rows, None) for source in sources]
        self._linear = kernels.linear.Linear(parts, cols, bias)
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


class GroupedLinear:
    """Linear layers of one shape, each applied to its own rows of a batch: one per expert, or per head.

    Attributes
    ----------
    members : the layers, by number of the expert or head.
    rows, cols : of each.
    """

    def __init__(self, kernels: Kernels, members: list[Linear]) -> None:
        self.kernels = kernels
        self.members = members
        self.rows, self.cols = members[0].rows, members[0].cols

    def apply(
        self,
        numbers: list[int],
        counts: np.ndarray,
        x: np.ndarray,
        rows: np.ndarray | None,
        out: np.ndarray,
        step: Pass,
        tokens: np.ndarray,
    ) -> None:
        """out[i] = x[rows[i]] W^T + bias (x[i] where ``rows`` is None), and what adapters add.

        The first ``counts[0]`` rows i take the layer ``numbers[0]``, the next ``counts[1]`` the layer
        ``numbers[1]``, and so on.

        Parameters
        ----------
        tokens : int32 (m,), the row of the pass that each row of ``out`` belongs to.
        """
        linears, start = [], 0
        for number, count in zip(numbers, counts.tolist()):
            member, span = self.members[number], slice(start, start + count)
            if member.observer is None:
                linears.append(member.prepare(x))
            else:
                linears.append(member.prepare(x[span] if rows is None else x[rows[span]]))
            start += count
        plans: tuple[LowRankPlan, ...] = ()
        if step.adapted is not None:
            members: list[object] = [self.members[number] for number in numbers]
            plans = step.adapted.group_plans(members, counts, tokens)
        self.kernels.linear.apply_groups(linears, counts, x, rows, out, step.scratch, step.n_threads, plans)
