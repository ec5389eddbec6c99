"""Values that experts make: each token's value is a weighted sum of SiLU(W_e h) of a few experts
(K2-Horizon)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import LoadError
from oxillama.models.layers.experts import by_expert, routed
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
        self.router: Linear = weights.linear([(name, n)], d, biases=())
        self.bias: np.ndarray | None = (
            weights.vector(f"{name}.bias", n) if weights.has(f"{name}.bias") else None
        )
        if self.bias is not None and self.sizes.gating == "softmax_after_topk":
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
        n, sizes, work = len(h), self.sizes, step.work
        logits = work.rows["router", n, sizes.n_experts]
        self.router.apply(h, logits, step)
        chosen, weights = routed(self.kernels, logits, self.bias, sizes, self.n_used)
        counts, rows, factors = by_expert(self.kernels, chosen, weights, sizes.n_experts)
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
