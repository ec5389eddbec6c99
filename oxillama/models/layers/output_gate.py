"""Gates of attended values (Qiu et al., "Gated Attention", 2025), which read the input of attention."""

from __future__ import annotations

import math

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import LoadError
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

LN2 = np.float32(math.log(2))


class OutputGate:
    """Multiplies each head, or each element, by the activation of its gate, a row of ``attn_gate`` h."""

    def __init__(self, kernels: Kernels, matrix: Linear, activation: str) -> None:
        self.kernels = kernels
        self.matrix = matrix
        self.activation = activation

    def apply(self, h: np.ndarray, attended: np.ndarray, step: Step) -> None:
        """attended (n, heads dim) *= activation(gates), for the block's input h (n, d)."""
        n = len(h)
        gates = step.work.rows["attn_gate", n, self.matrix.rows]
        self.matrix.apply(h, gates, step)
        name = self.activation
        if name == "softplus2":  # log2(1 + 2^g)
            gates *= LN2
            name = "softplus"
        self.kernels.vector.activate(gates, name, gates, step.n_threads)
        if self.activation == "softplus2":
            gates *= np.float32(1) / LN2
        by_gate = attended.reshape(n, self.matrix.rows, -1)
        by_gate *= gates[:, :, None]


def load_output_gate(spec: Spec, i: int, weights: Weights, value_dim: int) -> OutputGate | None:
    """The gate of layer ``i``, whose heads have values of ``value_dim``; None without one."""
    family, name, heads = spec.family, f"blk.{i}.attn_gate", spec.layers[i].n_heads
    if family.attn_gate_optional and not weights.has(f"{name}.weight"):
        return None
    by_head = family.attn_gate == "head" or weights.shape(f"{name}.weight") == (spec.n_embd, heads)
    by_head = by_head and family.attn_gate != "elements"
    matrix = weights.linear([(name, heads if by_head else heads * value_dim)], spec.n_embd)
    return OutputGate(weights.kernels, matrix, family.gate_activation)


def check_query_gates(spec: Spec, layer: LayerSpec) -> None:
    """Raises LoadError unless gates beside queries, which are as wide as these, are as wide as values."""
    if layer.value_dim != layer.key_dim:
        key = f"{spec.family.name}.attention.value_length"
        raise LoadError(f"{key}: expected {layer.key_dim}, as keys have, got {layer.value_dim}")
