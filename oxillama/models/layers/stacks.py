"""Passes through a stack of layers whose tensors later passes use again, each with keys of its own.

A looped model norms the hidden state between two passes. HRM (Wang et al., "Hierarchical Reasoning Model",
2025) has two states, "high" and "low", and a stack of layers for each: a pass reads their sum and replaces
one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.layers.wrapped import WrappedLayer
from oxillama.models.spec import Spec
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

STATES = ("high", "low")


class StackedLayer(WrappedLayer):
    """A layer that begins or ends a pass. The ordinary layer runs between the beginning and the end."""

    def __init__(self, spec: Spec, i: int, weights: Weights, layer: Any) -> None:
        super().__init__(layer)
        self.begins: str = spec.layers[i].begins
        self.ends: str = spec.layers[i].ends
        name = spec.family.output_norm if self.ends == "norm" else "hrm.norm"  # the latter has no weight
        self.norm: Norm | None = load_norm(spec, weights, name) if self.ends else None
        self.first: np.ndarray | None = (
            weights.vector("hrm.z_l_init", spec.n_embd) if self.begins == "first" else None
        )

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to hidden states x (n, d), in place."""
        if self.begins:
            high, low = (step.work.rows.like(name, x) for name in STATES)
            if self.first is not None:
                high[:], low[:] = x, self.first
            np.add(high, low, out=x)
        self.layer.run(x, step)
        if self.norm is not None:
            self.norm.apply(x, x, step.n_threads)
        if self.ends in STATES:
            step.work.rows.like(self.ends, x)[:] = x
