"""Linear layers of one shape, applied to rows of their own in one call of the kernels: experts, and heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oxillama._kernels import Kernels
from oxillama.weights.linear import Linear, Pass

if TYPE_CHECKING:
    from oxillama._kernels.linear.signatures import LowRankPlan


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
