"""Values that experts make: each token's value is a weighted sum of SiLU(W_e h) of a few experts
(K2-Horizon)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import LoadError
from oxillama.models.layers.experts import KERNEL_GATINGS
from oxillama.models.sizes import Experts
from oxillama.models.spec import Spec
from oxillama.models.weights.grouped import GroupedLinear, grouped_linear
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


class ValueExperts:
    """The value experts of one layer; they are chosen as the experts of feed-forward blocks are.

    Args:
        width: of all values of a token.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights, width: int) -> None:
        assert spec.value_experts is not None
        self.sizes: Experts = spec.value_experts
        self.n_used: int = spec.layers[i].value_experts
        name, n, d = f"blk.{i}.attn_v_gate", self.sizes.n_experts, spec.n_embd
        self.kernels: Kernels = weights.kernels
        self.gating: str = KERNEL_GATINGS.get(self.sizes.gating, self.sizes.gating)
        self.router: Linear = weights.linear([(name, n)], d, biases=())
        self.bias: np.ndarray | None = (
            weights.vector(f"{name}.bias", n) if weights.has(f"{name}.bias") else None
        )
        if self.bias is not None and self.gating == "chosen":
            raise LoadError(f"{name}.bias: expected no such tensor for experts chosen by their logits")
        self.experts: GroupedLinear = grouped_linear(weights, [(f"blk.{i}.attn_v_exps", width)], d, n)

    def linears(self) -> list[Linear]:
        return [self.router, *self.experts.members]

    def projected_behind(self, linear: Linear) -> Callable[[np.ndarray, np.ndarray, Step], None]:
        """A function that fills rows of q, k and v for an input: q and k by ``linear``, v by the experts."""

        def project(h: np.ndarray, qkv: np.ndarray, step: Step) -> None:
            qk = step.work.rows["qk", len(h), linear.rows]
            linear.apply(h, qk, step)
            qkv[:, : linear.rows], qkv[:, linear.rows :] = qk, self.run(h, step)

        return project

    def run(self, h: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, width): the values for h (n, d)."""
        n, sizes, work, route = len(h), self.sizes, step.work, self.kernels.routing
        logits = work.rows["router", n, sizes.n_experts]
        self.router.apply(h, logits, step)
        chosen, weights = np.empty((n, self.n_used), np.int32), np.empty((n, self.n_used), np.float32)
        route.route(logits, self.bias, self.gating, 1, 1, sizes.normalize, sizes.scale, chosen, weights)
        counts, rows = np.empty(sizes.n_experts, np.int32), np.empty(chosen.size, np.int32)
        factors = np.empty(chosen.size, np.float32)
        route.group(chosen, weights, counts, rows, factors)
        out = work.rows["values", n, self.experts.rows]
        out[:] = 0
        numbers = np.flatnonzero(counts)
        counts = counts[numbers]
        for some, taken in work.rounds(counts.tolist()):
            y = work.rows["routed", taken.stop - taken.start, self.experts.rows]
            own = rows[taken]
            self.experts.apply(numbers[some].tolist(), counts[some], h, own, y, step, own)
            self.kernels.vector.activate(y, "silu", y, step.n_threads)
            self.kernels.vector.add_rows(out, own, factors[taken], y, step.n_threads)
        return out
