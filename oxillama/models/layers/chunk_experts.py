"""Smaller experts behind the experts of a layer, one for each group of neighbours (Grove MoE, 2025).

They read the output of the experts. A token uses the chunk experts of its best experts' groups, each as often
as it was chosen, with the weight that the router gives to the expert of the *chunk's* number.
"""

from __future__ import annotations

import numpy as np

from oxillama.models.layers.experts import LEAST_SUM, MixtureOfExperts
from oxillama.models.spec import Spec
from oxillama.models.weights.grouped import GroupedLinear, grouped_linear
from oxillama.models.weights.linear import Experts as ExpertMatrices, Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


class ChunkedExperts(MixtureOfExperts):
    """y = experts(h), then y + scale * chunk experts of y."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        block, sizes, d = f"blk.{i}", self.sizes, spec.n_embd
        self.group: int = sizes.chunk_group
        self.n_chunks: int = sizes.n_experts // self.group
        parts = [(f"{block}.ffn_{part}_chexps", sizes.chunk_width) for part in ("gate", "up")]
        self.chunk_first: GroupedLinear = grouped_linear(weights, parts, d, self.n_chunks)
        parts = [(f"{block}.ffn_down_chexps", d)]
        self.chunk_down: GroupedLinear = grouped_linear(weights, parts, sizes.chunk_width, self.n_chunks)
        self.chunks: ExpertMatrices = ExpertMatrices(
            [[*pair] for pair in zip(self.chunk_first.members, self.chunk_down.members)],
            min(self.n_used, self.n_chunks),
        )

    @property
    def routed_experts(self) -> list[ExpertMatrices]:
        """The experts of the layer, and the chunk experts."""
        return [self.experts, self.chunks]

    def linears(self) -> list[Linear]:
        return [*super().linears(), *(linear for members in self.chunks.members for linear in members)]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        y = step.work.rows.like("chunk_input", h)
        super().run(h, y, step, False)
        weights = self._chunk_weights(step.work.rows["router", len(h), self.sizes.n_experts])
        weights *= np.float32(self.sizes.chunk_scale)
        if accumulate:
            out += y
        else:
            out[:] = y
        number, rows = np.nonzero(weights.T)
        counts = np.bincount(number, minlength=self.n_chunks).astype(np.int32)
        used = np.flatnonzero(counts)
        factors, rows = weights.T[number, rows], rows.astype(np.int32)
        matrices = self.chunk_first, self.chunk_down
        self._run_chosen(self.chunks, matrices, used, counts[used], y, rows, factors, out, step)

    def _chunk_weights(self, logits: np.ndarray) -> np.ndarray:
        """float32 (n, chunks): the weight of each chunk expert, from the router's logits (n, experts)."""
        n, n_experts = logits.shape
        numbers, shares = np.empty((n, n_experts), np.int32), np.empty((n, n_experts), np.float32)
        route = self.kernels.routing.route
        route(logits, None, "softmax", 1, 1, False, 1.0, numbers, shares)  # shares of all experts, in order
        best = np.argsort(-logits, axis=1, kind="stable")[:, : min(self.n_used, self.n_chunks)]
        times = (best[:, :, None] // self.group == np.arange(self.n_chunks)).sum(axis=1)
        found: np.ndarray = times.astype(np.float32) * shares[:, : self.n_chunks]
        total = np.zeros(n, np.float32)
        for column in found.T:  # a fixed order gives the same bits everywhere
            total += column
        found /= np.maximum(total, LEAST_SUM)[:, None]
        return found
