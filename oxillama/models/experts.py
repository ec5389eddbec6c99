"""Feed-forward blocks of many experts, of which each token takes a few (Shazeer et al., 2017)."""

from __future__ import annotations

import math

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import LoadError
from oxillama.models.family import Routing
from oxillama.models.feed import Feed, load_feed
from oxillama.models.spec import Experts, Spec
from oxillama.models.workspace import Step
from oxillama.tensor import Matrices, Weights


class ExpertFeed:
    """The experts of one layer. Only the matrices of those that a row of the batch takes are touched.

    Rows are grouped by expert, and experts run in order of their numbers, so that a token's sum is the same
    in every batch.
    """

    def __init__(
        self,
        kernels: Kernels,
        sizes: Experts,
        routing: Routing,
        router: Matrices,
        experts: list[Feed],
        bias: np.ndarray | None,
        shared: Feed | None,
        shared_gate: Matrices | None,
        scale: float,
    ) -> None:
        self.kernels = kernels
        self.sizes = sizes
        self.scales_input = routing.scales_input
        self.router = router
        self.experts = experts
        self.bias = bias
        self.shared = shared
        self.shared_gate = shared_gate
        self.scale = scale
        self.n_embd = router.cols

    def linears(self) -> list[Matrices]:
        shared = [*self.shared.linears()] if self.shared else []
        gate = [self.shared_gate] if self.shared_gate else []
        return [self.router, *(m for feed in self.experts for m in feed.linears()), *shared, *gate]

    def widths(self) -> dict[str, int]:
        """Buffers it works in."""
        feeds = [self.experts[0], *([self.shared] if self.shared else [])]
        return {
            "gate_up": max(feed.first.rows for feed in feeds),
            "fed": max(feed.width for feed in feeds),
            "router": self.sizes.n_experts,
            "routed_in": self.n_embd,
            "routed_out": self.n_embd,
        }

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        if not accumulate:
            out[:] = 0
        chosen, weights = self._route(h, step)
        if len(h) == 1:
            rows = np.zeros(1, np.int32)
            for j, expert in enumerate(chosen[0].tolist()):
                self._run_expert(expert, h, rows, weights[0, j : j + 1], out, step)
        else:
            order = np.argsort(chosen, axis=None, kind="stable")
            rows = (order // chosen.shape[1]).astype(np.int32)
            factors = weights.reshape(-1)[order]
            numbers, starts = np.unique(chosen.reshape(-1)[order], return_index=True)
            for expert, start, end in zip(numbers.tolist(), starts, [*starts[1:], len(order)]):
                part = rows[start:end]
                x = step.work.rows("routed_in", len(part), self.n_embd)
                np.take(h, part, axis=0, out=x, mode="clip")
                self._run_expert(expert, x, part, factors[start:end], out, step)
        if self.shared is not None:
            self._run_shared(self.shared, h, out, step)
        if self.scale != 1:
            out *= np.float32(self.scale)

    def _route(self, h: np.ndarray, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """int32 (n, k): each row's experts, ascending; float32 (n, k): their weights."""
        sizes, n = self.sizes, len(h)
        logits = step.work.rows("router", n, sizes.n_experts)
        self.router.apply(h, logits, step.work.scratch, step.n_threads)
        chosen, weights = np.empty((n, sizes.n_used), np.int32), np.empty((n, sizes.n_used), np.float32)
        self.kernels.routing.route(
            logits,
            self.bias,
            sizes.gating,
            sizes.groups,
            sizes.groups_used,
            sizes.normalize,
            sizes.scale,
            chosen,
            weights,
        )
        return chosen, weights

    def _run_expert(
        self, expert: int, x: np.ndarray, rows: np.ndarray, factors: np.ndarray, out: np.ndarray, step: Step
    ) -> None:
        """out[rows] += factors * the expert's output for x (m, d), or its output for factors * x."""
        y = step.work.rows("routed_out", len(x), self.n_embd)
        if self.scales_input:
            x = x * factors[:, None]
            factors = np.ones_like(factors)
        self.experts[expert].run(x, y, step, False)
        self.kernels.vector.add_rows(out, rows, factors, y, step.n_threads)

    def _run_shared(self, shared: Feed, h: np.ndarray, out: np.ndarray, step: Step) -> None:
        """out += the shared expert's output for h, gated if it is."""
        if self.shared_gate is None:
            shared.run(h, out, step, True)
            return
        factors = np.empty((len(h), 1), np.float32)
        self.shared_gate.apply(h, factors, step.work.scratch, step.n_threads)
        self.kernels.vector.activate(factors, "sigmoid", factors, 1)
        y = step.work.rows("routed_out", len(h), self.n_embd)
        shared.run(h, y, step, False)
        rows = np.arange(len(h), dtype=np.int32)
        self.kernels.vector.add_rows(out, rows, factors, y, step.n_threads)


def load_experts(spec: Spec, i: int, weights: Weights) -> ExpertFeed:
    """The experts of layer ``i``."""
    sizes, routing, block, d = spec.experts, spec.family.routing, f"blk.{i}", spec.n_embd
    assert sizes is not None
    assert routing is not None
    up, gate = (f"{block}.ffn_up_exps", sizes.width), (f"{block}.ffn_gate_exps", sizes.width)
    if not routing.gated:
        names = [up]
    elif weights.has(f"{block}.ffn_gate_up_exps.weight"):
        names = [(f"{block}.ffn_gate_up_exps", 2 * sizes.width)]
    else:
        names = [gate, up]
    first = weights.experts(names, d, sizes.n_experts)
    down = weights.experts([(f"{block}.ffn_down_exps", d)], sizes.width, sizes.n_experts)
    experts = [Feed(weights.kernels, *pair, spec.family.activation) for pair in zip(first, down)]
    bias = f"{block}.exp_probs_b.bias"
    if weights.has(bias) and (sizes.gating == "chosen" or routing.scales_input):
        raise LoadError(f"{bias}: experts that are chosen by their logits have no other bias")
    shared = load_feed(spec, weights, block, sizes.shared_width, "_shexp") if sizes.shared_width else None
    shared_gate = weights.linear([(f"{block}.ffn_gate_inp_shexp", 1)], d) if routing.shared_gate else None
    scale = 1.0
    if routing.beside_dense and weights.has(f"{block}.ffn_up.weight"):
        shared, scale = load_feed(spec, weights, block, spec.layers[i].n_ff), math.sqrt(0.5)
    return ExpertFeed(
        weights.kernels,
        sizes,
        routing,
        weights.linear([(f"{block}.ffn_gate_inp", sizes.n_experts)], d),
        experts,
        weights.vector(bias, sizes.n_experts) if weights.has(bias) else None,
        shared,
        shared_gate,
        scale,
    )
