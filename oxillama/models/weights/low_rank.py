"""Adapters on the rows of a pass: y += s B A x beside the products of the matrices (Hu et al., LoRA, 2021).

The products are computed in float32, row by row, so that a row has the same bits in every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels

if TYPE_CHECKING:
    from oxillama._kernels.linear.linear import LowRank, LowRankPlan


@dataclass(frozen=True)
class EmbeddingDelta:
    """The term that an adapter adds to embeddings: ``scale * B a[token]``.

    Attributes:
        table: float32 (n_vocab, rank), the rows a.
        b: the kernels' `Linear` B (n_embd, rank).
        factor: of the adapter, without the user's scale.
    """

    table: np.ndarray
    b: Any
    factor: float


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in the layouts of one model's matrices.

    Attributes:
        factors: by `Linear` of the model, what is added to its products.
        embedding: what is added to the token embeddings, None for nothing.
        row_bytes: scratch memory for one row.
    """

    factors: Mapping[object, LowRank]
    embedding: EmbeddingDelta | None = None
    row_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        needed = [factor.scratch_bytes(1) for factor in self.factors.values()]
        needed += [self.embedding.b.scratch_bytes(1)] if self.embedding is not None else []
        object.__setattr__(self, "row_bytes", max(needed, default=0))


Stack = tuple[tuple[Adapter, float], ...]
"""Adapters in the order in which they are added, each with its scale."""


@dataclass(frozen=True)
class RowGroup:
    """Neighbouring rows of a pass that take the same adapters.

    Attributes:
        start, count: the rows.
        stack: their adapters.
    """

    start: int
    count: int
    stack: Stack


@dataclass(frozen=True)
class AdaptedRows:
    """The adapters of the rows of a pass; rows outside all groups have no adapters.

    Attributes:
        kernels: the target that computes.
        n_rows: of the pass.
        groups: in order of their rows.
    """

    kernels: Kernels
    n_rows: int
    groups: tuple[RowGroup, ...]
    _plans: dict[object, tuple[LowRankPlan, ...]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls, kernels: Kernels, n_rows: int, groups: list[RowGroup], last: AdaptedRows | None
    ) -> AdaptedRows | None:
        """The adapters of a pass of ``n_rows`` rows; None without groups, and ``last`` again where it is the
        same."""
        found = tuple(joined(groups))
        if not found:
            return None
        is_same = last is not None and last.groups == found and last.n_rows == n_rows
        return last if is_same else cls(kernels, n_rows, found)

    def scratch_bytes(self, n_rows: int) -> int:
        """Scratch memory of all plans for ``n_rows`` rows, each of them perhaps a group of its own."""
        return n_rows * max(sum(adapter.row_bytes for adapter, _ in group.stack) for group in self.groups)

    def of_rows(self, rows: np.ndarray) -> AdaptedRows:
        """The adapters of some of the rows, int (m,), as a pass of ``m`` rows."""
        return AdaptedRows(self.kernels, len(rows), tuple(self._runs(rows, np.zeros(len(rows), np.int64))))

    def plans(self, linear: object) -> tuple[LowRankPlan, ...]:
        """What is added to the products of ``linear`` and the rows of the pass."""
        found = self._plans.get(linear)
        if found is None:
            found = self._plans[linear] = self._plans_of([(linear, group) for group in self.groups])
        return found

    def group_plans(
        self, linears: list[object], counts: np.ndarray, tokens: np.ndarray
    ) -> tuple[LowRankPlan, ...]:
        """What is added where the first ``counts[0]`` rows are products of ``linears[0]``, and so on.

        ``tokens``, int32 (m,), are the rows of the pass that they belong to.
        """
        owners = np.repeat(np.arange(len(linears)), counts)
        return self._plans_of([(linears[owners[run.start]], run) for run in self._runs(tokens, owners)])

    def add_to_embeddings(
        self, tokens: np.ndarray, out: np.ndarray, scratch: np.ndarray, n_threads: int
    ) -> None:
        """out (n, n_embd) += what the adapters add to the embeddings of ``tokens`` (n,)."""
        for group in self.groups:
            span = slice(group.start, group.start + group.count)
            for adapter, scale in group.stack:
                delta = adapter.embedding
                if delta is not None:
                    h = delta.table[tokens[span]] * np.float32(scale * delta.factor)
                    delta.b.apply(h, out[span], scratch, n_threads, True)

    def _runs(self, rows: np.ndarray, owners: np.ndarray) -> list[RowGroup]:
        """Groups of neighbouring ``rows`` of these with the same adapters and the same owner."""
        of = np.full(self.n_rows, -1)
        for number, group in enumerate(self.groups):
            of[group.start : group.start + group.count] = number
        kind = of[rows]
        changes = np.flatnonzero((np.diff(kind) != 0) | (np.diff(owners) != 0)) + 1
        edges = [0, *changes.tolist(), len(rows)]
        return [
            RowGroup(start, end - start, self.groups[kind[start]].stack)
            for start, end in pairwise(edges)
            if start < end and kind[start] >= 0
        ]

    def _plans_of(self, parts: list[tuple[object, RowGroup]]) -> tuple[LowRankPlan, ...]:
        """A plan for the first adapters of all stacks, one for the second ones, and so on."""
        found = []
        for level in range(max((len(group.stack) for _, group in parts), default=0)):
            calls = []
            for linear, group in parts:
                if level < len(group.stack):
                    adapter, scale = group.stack[level]
                    factor = adapter.factors.get(linear)
                    if factor is not None:
                        calls.append((factor, scale, group.start, group.count))
            if calls:
                factors, scales, starts, counts = zip(*calls)
                arrays = np.array(scales, np.float64), np.array(starts, np.int32), np.array(counts, np.int32)
                found.append(self.kernels.linear.LowRankPlan(list(factors), *arrays))
        return tuple(found)


def joined(groups: list[RowGroup]) -> list[RowGroup]:
    """The groups, with neighbours of the same adapters merged."""
    found: list[RowGroup] = []
    for group in groups:
        last = found[-1] if found else None
        if last and last.start + last.count == group.start and last.stack == group.stack:
            found[-1] = RowGroup(last.start, last.count + group.count, last.stack)
        else:
            found.append(group)
    return found
