"""Linear layers of one shape, applied to rows of their own in one call of the kernels: experts, and heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.weights.linear import Linear, Pass
from oxillama.models.weights.loader import Weights
from oxillama.models.weights.packer import MatrixPart, Source

if TYPE_CHECKING:
    from oxillama._kernels.linear.linear import LowRankPlan
    from oxillama.models.workspace import Step


class GroupedLinear:
    """Linear layers of one shape, each applied to its own rows of a batch: one per expert, or per head.

    Attributes:
        members: the layers, by number of the expert or head.
        rows, cols: of each.
    """

    def __init__(self, kernels: Kernels, members: list[Linear]) -> None:
        self.kernels = kernels
        self.members = members
        self.rows: int = members[0].rows
        self.cols: int = members[0].cols

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
        """out[i] = x[rows[i]] W^T + bias (x[i] without ``rows``), plus the terms of adapters.

        The first ``counts[0]`` rows i take the layer ``numbers[0]``, the next ``counts[1]`` the layer
        ``numbers[1]``, and so on.

        Args:
            tokens: int32 (m,), the row of the pass that each row of ``out`` belongs to.
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

    def each(self, x: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, members, rows): each part of x (n, members, cols) times its own matrix."""
        n, members, cols = x.shape
        work = step.work
        inputs = work.rows["by_head", n, members * cols].reshape(members * n, cols)
        outputs = work.rows["by_head_out", n, members * self.rows].reshape(members * n, self.rows)
        inputs.reshape(members, n, cols)[:] = x.transpose(1, 0, 2)
        counts, tokens = np.full(members, n, np.int32), np.tile(np.arange(n, dtype=np.int32), members)
        for some, rows in work.rounds(counts.tolist()):
            numbers = list(range(some.start, some.stop))
            self.apply(numbers, counts[some], inputs[rows], None, outputs[rows], step, tokens[rows])
        found: np.ndarray = outputs.reshape(members, n, self.rows).transpose(1, 0, 2)
        return found


def row_groups(weights: Weights, name: str, n: int, rows: int, cols: int) -> GroupedLinear:
    """The parts of ``rows`` rows of the matrix ``name``, which has n of them, each a linear layer of its
    own."""
    whole = weights.source(name, (cols, n * rows), rows)
    parts = [MatrixPart(slice(i * rows, (i + 1) * rows)) for i in range(n)]
    sources = [replace(slice_of(whole, i, n), part=part) for i, part in enumerate(parts)]
    return GroupedLinear(weights.kernels, [weights.linear_of([source], cols, None) for source in sources])


def slice_of(whole: Source, i: int, n: int) -> Source:
    """The i-th of n equal pieces of a tensor."""
    nbytes = whole.nbytes // n
    return replace(whole, blocks=whole.blocks.part(i * nbytes, nbytes), nbytes=nbytes)


def grouped_linear(
    weights: Weights,
    names: Sequence[tuple[str, int]],
    cols: int,
    n_experts: int,
    scaled: bool = False,
    suffix: str = "weight",
) -> GroupedLinear:
    """A linear layer per expert, of (n_experts, rows, cols) tensors and (n_experts, rows) biases.

    ``names``, and scales, one for each expert, as in `Weights.linear`.
    """
    slices: list[list[Source]] = [[] for _ in range(n_experts)]
    biases = []
    for name, rows in names:
        if weights.has(f"{name.removesuffix('_exps')}.0.weight"):  # older files: a tensor per expert
            for expert, found in enumerate(slices):
                one = f"{name.removesuffix('_exps')}.{expert}"
                found.append(weights.source(one, (cols, rows), rows, expert))
        else:
            whole = weights.source(name, (cols, rows, n_experts), rows, suffix=suffix, scaled=True)
            part = whole.part if suffix == "weight" else None  # adapters change weights alone
            scales = [1.0] * n_experts if scaled else weights.scales(name, n_experts)
            for expert, found in enumerate(slices):
                own = slice_of(whole, expert, n_experts)
                found.append(replace(own, expert=expert, scale=scales[expert], part=part))
        if suffix == "weight" and weights.has(f"{name}.bias"):
            biases.append(weights.matrix(f"{name}.bias", n_experts, rows))
        else:
            biases.append(np.zeros((n_experts, rows), np.float32))
    has_bias = suffix == "weight" and any(weights.has(f"{name}.bias") for name, _ in names)
    bias = np.hstack(biases) if has_bias else None
    members = [
        weights.linear_of(sources, cols, None if bias is None else np.ascontiguousarray(bias[expert]))
        for expert, sources in enumerate(slices)
    ]
    return GroupedLinear(weights.kernels, members)
