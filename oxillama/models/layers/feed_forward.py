"""Feed-forward blocks without experts."""

from __future__ import annotations

import numpy as np

from oxillama.models.layers.activations import load_activation
from oxillama.models.spec import Spec
from oxillama.models.workspace import Step
from oxillama.weights.linear import Linear
from oxillama.weights.loader import Weights


class FeedForward:
    """down(activation(gate h) * up h) (Shazeer, "GLU Variants Improve Transformer", 2020), or without a gate
    down(activation(up h)).

    Parameters
    ----------
    i : number of the layer.
    width : of the block.
    ending : of its tensors' names, "" for the dense block, or that of a shared expert.
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
        self.gated = kind != "none"
        self.first = weights.linear(names, d)
        self.down = weights.linear([(f"{block}.ffn_down{ending}", d)], width)
        self.activation = load_activation(spec, i, weights.kernels)
        scales = f"{block}.ffn.act.scales"  # divisors of the activations
        self.divisors = weights.vector(scales, width) if weights.has(scales) and not ending else None

    def linears(self) -> list[Linear]:
        return [self.first, self.down]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, work, n_threads = len(h), step.work, step.n_threads
        hidden, fed = work.rows["gate_up", n, self.first.rows], work.rows["fed", n, self.width]
        self.first.apply(h, hidden, step)
        if self.gated:
            self.activation.gate(hidden, fed, n_threads)
        else:
            self.activation.activate(hidden, fed, n_threads)
        if self.divisors is not None:
            fed /= self.divisors
        self.down.apply(fed, out, step, accumulate)
