"""Feed-forward blocks with experts, of which each token uses a few (Shazeer et al., 2017)."""

from __future__ import annotations

import math

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import LoadError
from oxillama.models.layers.feed_forward import Activation, FeedForward, load_activation
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.sizes import Experts
from oxillama.models.spec import Spec
from oxillama.models.weights.grouped import GroupedLinear, grouped_linear
from oxillama.models.weights.linear import Experts as ExpertMatrices, Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

LEAST_SUM = np.float32(6.103515625e-5)
"""The least sum by which weights are divided, as the routing kernel has it."""
KERNEL_GATINGS = {"softmax_after_topk": "chosen"}
"""The routing kernel's names, where they differ."""


class MixtureOfExperts:
    """The experts of one layer; with ``latent`` they read and write a narrower state, through two matrices.

    Only the matrices of experts that the batch uses are read.

    Rows are grouped by expert, and many experts run in one call. A token's outputs are added in the order of
    the experts' numbers, so that the sum has the same bits in every batch.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        sizes, routing, block, d = spec.experts, spec.family.routing, f"blk.{i}", spec.n_embd
        self.n_used: int = spec.layers[i].experts
        expert_width = spec.layers[i].expert_width
        assert sizes is not None
        assert routing is not None
        self.kernels: Kernels = weights.kernels
        self.sizes = sizes
        self.n_embd = d
        self.scales_input: bool = routing.scales_input
        self.router_has_input: bool = routing.reads != "normed"
        up, gate = (f"{block}.ffn_up_exps", expert_width), (f"{block}.ffn_gate_exps", expert_width)
        if not routing.gated:
            names = [up]
        elif weights.has(f"{block}.ffn_gate_up_exps.weight"):
            names = [(f"{block}.ffn_gate_up_exps", 2 * expert_width)]
        else:
            names = [gate, up]
        width = sizes.latent or d
        self.latent: tuple[Linear, Linear] | None = None
        if sizes.latent:
            into = weights.linear([(f"{block}.ffn_latent_down", width)], d)
            norm = f"{block}.ffn_routed_norm"
            has_norm = weights.has(f"{norm}.weight")
            self.latent_norm: Norm | None = load_norm(spec, weights, norm, width) if has_norm else None
            self.latent = into, weights.linear([(f"{block}.ffn_latent_up", d)], width)
        self.first: GroupedLinear = grouped_linear(weights, names, width, sizes.n_experts)
        scaled = routing.scaled_outputs
        names = [(f"{block}.ffn_down_exps", width)]
        self.down: GroupedLinear = grouped_linear(weights, names, expert_width, sizes.n_experts, scaled)
        self.experts: ExpertMatrices = ExpertMatrices(
            [[*pair] for pair in zip(self.first.members, self.down.members)], self.n_used
        )
        bias = f"{block}.exp_probs_b"
        bias = f"{bias}.bias" if routing.bias == "yes" or not weights.has(bias) else bias
        self.table: np.ndarray | None = (
            load_table(spec, i, weights) if spec.layers[i].chosen_by_token else None
        )
        if (
            self.table is not None
            or routing.bias == "no"
            or (routing.bias == "auto" and not weights.has(bias))
        ):
            bias = ""
        if bias and (sizes.gating == "softmax_after_topk" or routing.scales_input):
            raise LoadError(f"{bias}: expected no such tensor for experts chosen by their logits")
        self.shared: FeedForward | None = None
        if sizes.shared_width:
            self.shared = FeedForward(spec, i, weights, sizes.shared_width, "_shexp")
        name = f"{block}.ffn_gate_inp_shexp"
        self.shared_gate: Linear | None = weights.linear([(name, 1)], d) if routing.shared_gate else None
        self.scale: float = 0.5 if routing.mean_with_shared and self.shared else 1.0
        if routing.beside_dense == "scaled" and weights.has(f"{block}.ffn_up.weight"):
            self.shared = FeedForward(spec, i, weights, spec.layers[i].n_ff)
            self.scale = math.sqrt(0.5)
        name = f"{block}.ffn_gate_inp"
        self.router: Linear = weights.linear([(name, sizes.n_experts)], d, scaled=routing.reads == "block")
        self.activation: Activation = load_activation(spec, i, weights.kernels, routed=True)
        self.bias: np.ndarray | None = weights.vector(bias, sizes.n_experts) if bias else None
        name = f"{block}.ffn_down_exps.scale"
        self.output_scales: np.ndarray | None = weights.vector(name, sizes.n_experts) if scaled else None

    @property
    def routed_experts(self) -> list[ExpertMatrices]:
        """The experts of the layer."""
        return [self.experts]

    def linears(self) -> list[Linear]:
        shared = [*self.shared.linears()] if self.shared else []
        gate = [self.shared_gate] if self.shared_gate else []
        experts = [linear for members in self.experts.members for linear in members]
        return [self.router, *(self.latent or ()), *experts, *shared, *gate]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        if accumulate and self.scale != 1:
            y = step.work.rows.like("scaled_sum", out)
            self.run(h, y, step, False)
            out += y
            return
        if not accumulate:
            out[:] = 0
        counts, rows, factors = self._route(h, step)
        numbers = np.flatnonzero(counts)
        counts = counts[numbers]
        read, written = h, out
        if self.latent is not None:
            read, written = (
                step.work.rows[f"expert_{name}", len(h), self.down.rows] for name in ("input", "sum")
            )
            self.latent[0].apply(h, read, step)
            written[:] = 0
        matrices = self.first, self.down
        self._run_chosen(self.experts, matrices, numbers, counts, read, rows, factors, written, step)
        if self.latent is not None:
            if self.latent_norm is not None:
                self.latent_norm.apply(written, written, step.n_threads)
            self.latent[1].apply(written, out, step, True)
        if self.shared is not None:
            self._run_shared(self.shared, h, out, step)
        if self.scale != 1:
            out *= np.float32(self.scale)

    def _route(self, h: np.ndarray, step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `by_expert`, of the rows of h."""
        sizes, n = self.sizes, len(h)
        logits = step.work.rows["router", n, sizes.n_experts]
        if self.router_has_input:
            h = step.work.rows["router_input", n, self.n_embd]  # filled by the layer
        self.router.apply(h, logits, step)
        if self.table is not None:
            return by_expert(self.kernels, *self._looked_up(self.table, logits, step), sizes.n_experts)
        chosen, weights = routed(self.kernels, logits, self.bias, sizes, self.n_used)
        if self.output_scales is not None:
            weights *= self.output_scales[chosen]
        return by_expert(self.kernels, chosen, weights, sizes.n_experts)

    def _looked_up(self, table: np.ndarray, logits: np.ndarray, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """The experts (n, k) of the rows' tokens, and their weights: the root of softplus of their logits."""
        chosen, sizes = table[step.batch.tokens], self.sizes
        weights = np.take_along_axis(logits, chosen, axis=1)
        self.kernels.vector.activate(weights, "softplus", weights, 1)
        np.sqrt(weights, out=weights)
        if sizes.normalize:
            total = np.zeros(len(weights), np.float32)
            for column in weights.T:  # a fixed order gives the same bits everywhere
                total += column
            weights /= np.maximum(total, LEAST_SUM)[:, None]
        weights *= np.float32(sizes.scale)
        return chosen, weights

    def _run_chosen(
        self,
        experts: ExpertMatrices,
        matrices: tuple[GroupedLinear, GroupedLinear],
        numbers: np.ndarray,
        counts: np.ndarray,
        h: np.ndarray,
        rows: np.ndarray,
        factors: np.ndarray,
        out: np.ndarray,
        step: Step,
    ) -> None:
        """out[rows] += factors * the experts' outputs for h[rows], or their outputs for factors * h[rows]:
        of as many experts at a time as fit the buffers and the memory."""
        pages, work, n_threads, (first, down) = experts.pages, step.work, step.n_threads, matrices
        most = len(numbers) if pages is None else pages.most(len(numbers))
        rounds = list(work.rounds(counts.tolist(), most))
        for i, (some, span) in enumerate(rounds):
            used = numbers[some].tolist()
            if pages is not None:
                pages.hold(used, numbers[rounds[i + 1][0]].tolist() if i + 1 < len(rounds) else [])
            own, weights, x = rows[span], factors[span], h
            n, taken = len(own), own if not self.scales_input else None
            if self.scales_input:
                x, weights = h[own] * weights[:, None], np.ones_like(weights)
            hidden, fed = work.rows["gate_up", n, first.rows], work.rows["fed", n, down.cols]
            y = work.rows["routed", n, down.rows]
            first.apply(used, counts[some], x, taken, hidden, step, own)
            is_gated = first.rows == 2 * down.cols
            (self.activation.gate if is_gated else self.activation.activate)(hidden, fed, n_threads)
            down.apply(used, counts[some], fed, None, y, step, own)
            self.kernels.vector.add_rows(out, own, weights, y, n_threads)

    def _run_shared(self, shared: FeedForward, h: np.ndarray, out: np.ndarray, step: Step) -> None:
        """out += the shared expert's output for h, gated if it is."""
        if self.shared_gate is None:
            shared.run(h, out, step, True)
            return
        factors = np.empty((len(h), 1), np.float32)
        self.shared_gate.apply(h, factors, step)
        self.kernels.vector.activate(factors, "sigmoid", factors, 1)
        y = step.work.rows["routed", len(h), self.n_embd]
        shared.run(h, y, step, False)
        rows = np.arange(len(h), dtype=np.int32)
        self.kernels.vector.add_rows(out, rows, factors, y, step.n_threads)


def routed(
    kernels: Kernels, logits: np.ndarray, bias: np.ndarray | None, sizes: Experts, n_used: int
) -> tuple[np.ndarray, np.ndarray]:
    """The experts (n, n_used) that a router's logits (n, experts) choose for each row, and their weights."""
    shape = len(logits), n_used
    chosen, weights = np.empty(shape, np.int32), np.empty(shape, np.float32)
    gating = KERNEL_GATINGS.get(sizes.gating, sizes.gating)
    args = sizes.groups, sizes.groups_used, sizes.normalize, sizes.scale, chosen, weights
    kernels.routing.route(logits, bias, gating, *args)
    return chosen, weights


def by_expert(
    kernels: Kernels, chosen: np.ndarray, weights: np.ndarray, n_experts: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int32 (experts,): rows of each expert; int32 (n k,): these rows, by expert; float32 (n k,): their
    weights; of the experts (n, k) of each row."""
    counts, rows = np.empty(n_experts, np.int32), np.empty(chosen.size, np.int32)
    factors = np.empty(chosen.size, np.float32)
    kernels.routing.group(chosen, weights, counts, rows, factors)
    return counts, rows, factors


def load_table(spec: Spec, i: int, weights: Weights) -> np.ndarray:
    """int32 (n_vocab, k): the experts of each token, ascending (DeepSeek-V4)."""
    name, k = f"blk.{i}.ffn_gate_tid2eid.weight", spec.layers[i].experts
    info = weights.file.tensors.get(name)
    if info is None or info.shape != (k, spec.n_vocab) or info.format.name != "I32":
        found = "none" if info is None else f"{info.format.name} {info.shape}"
        raise LoadError(f"{name}: expected I32 of shape {(k, spec.n_vocab)}, got {found}")
    weights.taken.add(name)
    table = np.sort(weights.file.data(name).view("<i4").reshape(spec.n_vocab, k), axis=1)
    n = spec.experts.n_experts if spec.experts else 0
    if table.min() < 0 or table.max() >= n:
        raise LoadError(f"{name}: expected experts from 0 to {n - 1}, got {table.min()} to {table.max()}")
    return np.ascontiguousarray(table, np.int32)


class DenseBesideExperts:
    """A dense block and experts, whose outputs are added."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        self.dense: FeedForward = FeedForward(spec, i, weights, spec.layers[i].n_ff)
        self.experts: MixtureOfExperts = MixtureOfExperts(spec, i, weights)

    @property
    def routed_experts(self) -> list[ExpertMatrices]:
        """The experts of the layer."""
        return self.experts.routed_experts

    def linears(self) -> list[Linear]:
        return [*self.dense.linears(), *self.experts.linears()]


class DenseAndExpertsOfInput(DenseBesideExperts):
    """A dense block, and experts that read the layer's input, which the layer keeps (Arctic)."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        self.norm: Norm = load_norm(spec, weights, f"blk.{i}.ffn_norm_exps")

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        self.dense.run(h, out, step, accumulate)
        given, normed = (step.work.rows.like(name, h) for name in ("router_input", "h2"))
        self.experts.run(self.norm.apply(given, normed, step.n_threads), out, step, True)


class DenseAndExperts(DenseBesideExperts):
    """A dense block and experts side by side, each with norms of its own before and behind it (Gemma 4).

    norm1(dense(norm(x))) + norm2(experts(norm3(x))); the router reads x / rms(x), times a vector.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        block, d = f"blk.{i}", spec.n_embd
        self.kernels: Kernels = weights.kernels
        super().__init__(spec, i, weights)
        names = ("ffn_norm", "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
        self.norms: list[Norm] = [load_norm(spec, weights, f"{block}.{name}") for name in names]
        factors = weights.vector(f"{block}.ffn_gate_inp.scale", d) / np.float32(math.sqrt(d))
        self.router_norm: Norm = Norm(self.kernels, False, spec.norm_eps, factors, None)

    def run(self, x: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for x (n, d), or out + that."""
        work, n_threads = step.work, step.n_threads
        before, after, before_experts, after_experts = self.norms
        h, y = work.rows.like("normed", x), work.rows.like("beside", x)
        before.apply(x, h, n_threads)
        self.dense.run(h, y, step, False)
        if accumulate:
            after.add(y, out, n_threads)
        else:
            after.apply(y, out, n_threads)
        self.router_norm.apply(x, work.rows.like("router_input", x), n_threads)
        before_experts.apply(x, h, n_threads)
        self.experts.run(h, y, step, False)
        after_experts.add(y, out, n_threads)
