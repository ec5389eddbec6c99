"""The parts of a model that are loaded and evicted together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from oxillama._kernels.memory import ALIGNMENT
from oxillama.errors import ConfigError
from oxillama.gguf.extent import Extent
from oxillama.models.offload.plan import Sizes
from oxillama.models.offload.reader import Work
from oxillama.models.weights.linear import Linear, MatrixGroup
from oxillama.models.weights.packer import Source

if TYPE_CHECKING:
    from oxillama._kernels.linear.linear import Linear as CompiledLinear


Fetch = Callable[[Source, int, np.ndarray], object]
"""Reads the panels of a matrix with a number of columns into memory, uint8."""

ReadExtent = Callable[[Extent, np.ndarray], object]
"""Reads the bytes of an extent into memory, uint8."""


class Brings(Protocol):
    """A pager, as panels see it."""

    def bring(self, panels: PagedPanels) -> np.ndarray:
        """The memory of their part, when they are in it."""
        ...


class PagedPanels:
    """The packed matrices of one linear layer, in memory that its part has temporarily.

    Args:
        pager: reads them; None if only sizes are needed. It is not kept alive.
        sources: the matrices.
        cols: columns of each.
        extents: the panels of each in a packed file, or None.

    Attributes:
        part: number of the part that they belong to, after `LayerPager.arrange`.
        first: number of the first matrix in the part.
        spans: where each matrix lies in the memory of the part.
        placed: whether they are in memory until the pager removes them.
    """

    __slots__ = ("_linear", "_pager", "cols", "extents", "first", "part", "placed", "sources", "spans")

    def __init__(
        self,
        pager: Brings | None,
        sources: list[Source],
        cols: int,
        extents: Sequence[Extent | None] | None = None,
    ) -> None:
        self._pager = None if pager is None else weakref.ref(pager)
        self.sources: list[Source] = sources
        self.cols: int = cols
        self.extents: Sequence[Extent | None] | list[None] = extents or [None] * len(sources)
        self.part: int = 0
        self.first: int = 0
        self.spans: list[slice] = []
        self.placed: bool = False
        self._linear: CompiledLinear | None = None  # the layer that has the matrices now

    def place(self, linear: CompiledLinear) -> bool:
        """As `Panels.place`; never for good."""
        if not self.placed:
            pager = None if self._pager is None else self._pager()
            assert pager is not None, "the model is gone"
            memory = pager.bring(self)
            if self._linear is None:
                linear.give([memory[span] for span in self.spans])
                self._linear = linear
        return False

    def take_away(self) -> None:
        """Leaves the linear layer without panels."""
        linear, self._linear, self.placed = self._linear, None, False
        if linear is not None:
            linear.give(None)


class PagedMatrix(NamedTuple):
    """A matrix of a part.

    Attributes:
        source: the matrix in the model's file.
        cols: its columns.
        span: where its panels lie in the memory of the part.
        extent: its panels in a packed file, or None.
    """

    source: Source
    cols: int
    span: slice
    extent: Extent | None

    def expect(self) -> None:
        """Advises the system to read the panels, or the tensor that they are packed from, ahead."""
        (self.source.blocks if self.extent is None else self.extent).expect()

    def read(self, memory: np.ndarray, fetch: Fetch, read_extent: ReadExtent) -> None:
        """Brings the panels into the memory of the part: from the packed file, or else by ``fetch``."""
        if self.extent is None:
            fetch(self.source, self.cols, memory[self.span])
        else:
            read_extent(self.extent, memory[self.span])


@dataclass(slots=True, eq=False)
class Load:
    """Memory with the panels of a part, or into which they are being read.

    Attributes:
        memory: uint8.
        work: the reads, a task for each matrix; None once all are done.
    """

    memory: np.ndarray
    work: Work | None = None


class Part:
    """Linear layers whose panels share one piece of memory: a layer of the model, or one of its experts.

    Args:
        number: among the parts of the model.
        name: for messages.
        panels: of the linear layers, in the order of their use.
        is_expert: whether only some passes use it.

    Attributes:
        tensors: names of the tensors that it is made of.
        nbytes: of the memory.
        load: its memory; None while it is not in memory.
        is_pinned: whether the user wants it to stay.
        stays: whether it keeps its memory from its first use on.
        uses: how often it was used recently, at most `expert_cache.MOST_USES`.
    """

    def __init__(self, number: int, name: str, panels: list[PagedPanels], is_expert: bool = False) -> None:
        self.number: int = number
        self.name: str = name
        self.panels: list[PagedPanels] = panels
        self.is_expert: bool = is_expert
        self.tensors: frozenset[str] = frozenset(
            source.info.name for each in panels for source in each.sources
        )
        self.nbytes: int = 0
        n_matrices = 0
        for each in panels:
            each.part, each.first = number, n_matrices
            each.spans = []
            for source in each.sources:
                n_bytes = source.packed_bytes(each.cols)
                each.spans.append(slice(self.nbytes, self.nbytes + n_bytes))
                self.nbytes += padded(n_bytes)
            n_matrices += len(each.sources)
        self.load: Load | None = None
        self.is_pinned = self.stays = False
        self.uses = 0

    def matrices(self) -> Iterator[PagedMatrix]:
        """Each matrix, in the order of their use."""
        for each in self.panels:
            for source, span, extent in zip(each.sources, each.spans, each.extents):
                yield PagedMatrix(source, each.cols, span, extent)

    def take_away(self) -> None:
        """Leaves the linear layers without panels."""
        for each in self.panels:
            each.take_away()


def parts_of(groups: Sequence[MatrixGroup]) -> list[Part]:
    """The parts of a model: of each group the matrices that every pass uses, then its experts."""
    parts: list[Part] = []
    for group in groups:
        if group.linears:
            parts.append(Part(len(parts), group.name, [panels_of(linear) for linear in group.linears]))
        for i, members in enumerate(group.experts.members if group.experts else ()):
            panels = [panels_of(linear) for linear in members]
            parts.append(Part(len(parts), f"{group.name}, expert {i}", panels, is_expert=True))
    return parts


def panels_of(linear: Linear) -> PagedPanels:
    """What the pager gave the linear layer, or the like for one that only has sizes."""
    panels = linear.panels
    return panels if isinstance(panels, PagedPanels) else PagedPanels(None, linear.sources, linear.cols)


def pin(parts: Sequence[Part], patterns: Sequence[str]) -> None:
    """Marks the parts whose tensors have these names. Raises ConfigError for a name of no tensor."""
    for pattern in patterns:
        found = [part for part in parts if any(fnmatchcase(name, pattern) for name in part.tensors)]
        if not found:
            raise ConfigError(f"offload_pinned: expected names of the model's matrices, got {pattern!r}")
        for part in found:
            part.is_pinned = True


def sizes_of(parts: Sequence[Part], groups: Sequence[MatrixGroup]) -> Sizes:
    """The bytes of the parts."""
    dense = [part for part in parts if not part.is_expert]
    experts = [part for part in parts if part.is_expert]
    return Sizes(
        parts=[part.nbytes for part in dense],
        pinned={i for i, part in enumerate(dense) if part.is_pinned},
        expert=max((part.nbytes for part in experts), default=0),
        experts=sum(part.nbytes for part in experts),
        pinned_experts=sum(part.nbytes for part in experts if part.is_pinned),
        n_used=max((group.experts.n_used for group in groups if group.experts), default=0),
    )


def padded(n_bytes: int) -> int:
    """Bytes that panels take in the memory of a part."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
