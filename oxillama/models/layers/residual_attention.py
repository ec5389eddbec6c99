"""Residual attention: blocks read a weighted sum of earlier hidden states (Kimi K3).

Before every ``period``-th layer the hidden state x goes into a bank, and x begins anew with the output of
that layer's attention. A block's input is a sum of the banked states and x, weighted by softmax(w
rms_norm(state)). The bank and x are in a row of the buffer "bank".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.wrapped import WrappedLayer
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


class Mixed:
    """The weighted sum of ``n_banked`` states and x.

    Args:
        name: of its score's weights, a vector.
    """

    def __init__(self, spec: Spec, weights: Weights, name: str, n_banked: int) -> None:
        assert spec.connections is not None
        self.n_banked = n_banked
        self.width: int = spec.connections.streams * spec.n_embd
        self.kernels: Kernels = weights.kernels
        self.eps: float = spec.norm_eps
        self.score: Linear = weights.linear([(name, 1)], spec.n_embd)

    def apply(self, x: np.ndarray, out: np.ndarray, step: Step) -> None:
        """out (n, d) = the sum for x (n, d)."""
        n, d = x.shape
        work, total = step.work, self.n_banked + 1
        bank = work.rows["bank", n, self.width]
        bank[:, self.n_banked * d : total * d] = x
        normed, scores = work.rows["normed", n, d], np.empty((total, n, 1), np.float32)
        for source, score in enumerate(scores):
            normed[:] = bank[:, source * d : (source + 1) * d]
            self.kernels.vector.rms_norm(normed, None, self.eps, normed, step.n_threads)
            self.score.apply(normed, score, step)
        shares = scores - scores.max(axis=0)
        self.kernels.vector.activate(shares, "exp", shares, 1)
        whole = np.zeros((n, 1), np.float32)
        for share in shares:  # a fixed order gives the same bits everywhere
            whole += share
        weights = np.ascontiguousarray((shares / whole)[:, :, 0].T)
        self.kernels.vector.mix_streams(bank, total, weights, out, step.n_threads)


class Streams:
    """The end: the hidden state becomes a sum of the bank and itself."""

    begin_with: tuple[Linear, ...] = ()

    def __init__(self, spec: Spec, weights: Weights) -> None:
        assert spec.connections is not None
        n = spec.connections.streams - 1
        self.head: Mixed | None = Mixed(spec, weights, "output_res_score", n) if spec.is_last else None

    @property
    def end_with(self) -> list[Linear]:
        """The vector of its scores."""
        return [self.head.score] if self.head else []

    def linears(self) -> list[Linear]:
        return self.end_with

    def begin(self, x: np.ndarray, step: Step) -> None:
        """The bank is empty."""

    def end(self, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the sum."""
        assert self.head is not None
        mixed = step.work.rows.like("h", x)
        self.head.apply(x, mixed, step)
        x[:] = mixed


class BankedLayer(WrappedLayer):
    """A layer with the blocks and norms of an ordinary one, whose blocks read sums."""

    def __init__(self, spec: Spec, i: int, weights: Weights, layer: Any) -> None:
        super().__init__(layer)
        assert spec.connections is not None
        period, names = spec.connections.period, ("attn_res_score", "ffn_res_score")
        self.banks: bool = i % period == 0
        before = -(-i // period)
        counts = before, before + self.banks
        self.mixes: list[Mixed | None] = [
            Mixed(spec, weights, f"blk.{i}.{name}", n) if n else None for name, n in zip(names, counts)
        ]
        self.width: int = spec.connections.streams * spec.n_embd
        self.before: int = before

    def own_linears(self) -> list[Linear]:
        return [mix.score for mix in self.mixes if mix]

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to hidden states x (n, d), in place."""
        layer, h, (n, d) = self.layer, step.work.rows.like("h", x), x.shape
        attn_mix, ffn_mix = self.mixes
        if attn_mix is not None:
            attn_mix.apply(x, h, step)
        layer.attn_norm.apply(h if attn_mix else x, h, step.n_threads)
        if self.banks:
            bank = step.work.rows["bank", n, self.width]
            bank[:, self.before * d : (self.before + 1) * d] = x
        layer.mixer.run(h, x, step, not self.banks)
        assert ffn_mix is not None
        ffn_mix.apply(x, h, step)
        layer.feed_forward.run(layer.ffn_norm.apply(h, h, step.n_threads), x, step, True)
