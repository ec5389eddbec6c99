"""Feed-forward blocks without experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama._kernels import Kernels
from oxillama.base.lazy_import import lazy
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

load_special_activation: Callable[..., Activation] = lazy(
    "oxillama.models.layers.activations:special_activation"
)


class Activation:
    """An activation of the kernels.

    Args:
        name: the kernels' name of the activation.
    """

    def __init__(self, kernels: Kernels, name: str) -> None:
        self.kernels = kernels
        self.name = name

    def activate(self, x: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        """out (n, d) = activation(x), x (n, d)."""
        self.kernels.vector.activate(x, self.name, out, n_threads)

    def gate(self, gate_up: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        """out (n, d) = activation(gate) * up; gate_up (n, 2 d) holds the gate's columns first."""
        self.kernels.vector.gate(gate_up, self.name, out, n_threads)


def load_activation(spec: Spec, i: int, kernels: Kernels, routed: bool = False) -> Activation:
    """The activation of layer ``i``: of its routed experts, or of its dense block and shared expert."""
    layer, name = spec.layers[i], spec.family.activation
    limit = layer.expert_limit if routed else layer.limit
    if limit or layer.xielu is not None or layer.sparsity is not None or spec.situ is not None:
        return load_special_activation(spec, layer, kernels, limit)
    return Activation(kernels, name)


class FeedForward:
    """down(activation(gate h) * up h) (Shazeer, "GLU Variants Improve Transformer", 2020), or without a gate
    down(activation(up h)).

    Args:
        i: number of the layer.
        width: of the block.
        ending: of its tensors' names: "" for the dense block, "_shexp" for a shared expert.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights, width: int, ending: str = "") -> None:
        d, kind, block = spec.n_embd, spec.family.gate, f"blk.{i}"
        if ending and spec.family.routing and spec.family.routing.shared_gate_up:
            kind = "fused"
        up, gate = f"{block}.ffn_up{ending}", f"{block}.ffn_gate{ending}"
        if kind == "auto":
            doubled = weights.shape(f"{up}.weight") == (d, 2 * width)
            kind = "pair" if weights.has(f"{gate}.weight") else "fused" if doubled else "none"
        names = {
            "pair": [(gate, width), (up, width)],
            "fused": [(up, 2 * width)],
            "none": [(up, width)],
        }[kind]
        self.width = width
        self.gated: bool = kind != "none"
        self.first: Linear = weights.linear(names, d)
        self.down: Linear = weights.linear([(f"{block}.ffn_down{ending}", d)], width)
        self.activation: Activation = load_activation(spec, i, weights.kernels)
        name, inner = f"{block}.ffn_sub_norm", spec.family.sub_norms
        self.sub_norm: Norm | None = load_norm(spec, weights, name, width) if inner else None
        scales = f"{block}.ffn.act.scales"  # divisors of the activations
        self.divisors: np.ndarray | None = (
            weights.vector(scales, width) if weights.has(scales) and not ending else None
        )

    def linears(self) -> list[Linear]:
        return [self.first, self.down]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, work, n_threads = len(h), step.work, step.n_threads
        hidden, fed = work.rows["gate_up", n, self.first.rows], work.rows["fed", n, self.width]
        self.first.apply(h, hidden, step)
        (self.activation.gate if self.gated else self.activation.activate)(hidden, fed, n_threads)
        if self.divisors is not None:
            fed /= self.divisors
        if self.sub_norm is not None:
            self.sub_norm.apply(fed, fed, n_threads)
        self.down.apply(fed, out, step, accumulate)
