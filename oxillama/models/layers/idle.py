"""Layers that do less than others: a matrix instead of attention, no token mixer, or nothing (Deci, 2024)."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.models.layers.feed_forward import FeedForward
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


class LinearMixer:
    """``attn_output`` of the hidden states, without attention, and without its bias."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        self.matrix: Linear = weights.linear([(f"blk.{i}.attn_output", spec.n_embd)], spec.n_embd)

    def linears(self) -> list[Linear]:
        return [self.matrix]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the matrix times h (n, d), or out + that."""
        self.matrix.apply(h, out, step, accumulate)


class IdleLayer:
    """A layer without a token mixer: x += feed_forward(norm(x)), or, without a width, nothing."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        width = spec.layers[i].n_ff
        self.feed_forward: Any = FeedForward(spec, i, weights, width) if width else None
        self.norm: Norm | None = load_norm(spec, weights, f"blk.{i}.ffn_norm") if width else None

    def blocks(self) -> list[Any]:
        """Its block, if it has one."""
        return [] if self.feed_forward is None else [self.feed_forward]

    def linears(self) -> list[Linear]:
        return [matrix for block in self.blocks() for matrix in block.linears()]

    def with_blocks(self, wrap: Any) -> IdleLayer:
        """A copy whose block is what ``wrap`` makes of it."""
        found = object.__new__(IdleLayer)
        found.norm, found.feed_forward = self.norm, self.feed_forward and wrap(self.feed_forward)
        return found

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to hidden states x (n, d), in place."""
        if self.norm is not None:
            h = self.norm.apply(x, step.work.rows.like("h", x), step.n_threads)
            self.feed_forward.run(h, x, step, True)
