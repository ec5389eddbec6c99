"""Feed-forward blocks without experts."""

from __future__ import annotations

import numpy as np

from oxillama.models.layers.activations import Activation, load_activation
from oxillama.models.spec import Spec
from oxillama.models.workspace import Step
from oxillama.weights.linear import Linear
from oxillama.weights.loader import Weights


class FeedForward:
    """down(activation(gate h) * up h) (Shazeer, "GLU Variants Improve Transformer", 2020), or without a gate
    down(activation(up h)).

    Parameters
    ----------
    first : gate and up matrices, or the up matrix alone.
    down : its columns are the block's width.
    activation : between them.
    divisors : float32 (width,), divisors of the activations, or None.
    """

    def __init__(
        self,
        first: Linear,
        down: Linear,
        activation: Activation,
        divisors: np.ndarray | None = None,
    ) -> None:
        self.first = first
        self.down = down
        self.activation = activation
        self.width = down.cols
        self.gated = first.rows == 2 * down.cols
        self.divisors = divisors

    def linears(self) -> list[Linear]:
        return [self.first, self.down]

    def widths(self) -> dict[str, int]:
        """Floats per row of each buffer."""
        return {"gate_up": self.first.rows, "fed": self.width}

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


def load_feed_forward(spec: Spec, i: int, weights: Weights, width: int, ending: str = "") -> FeedForward:
    """The dense block of layer ``i``, or with an ``ending`` of its tensors' names a shared expert."""
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
    scales = f"{block}.ffn.act.scales"
    return FeedForward(
        weights.linear(names, d),
        weights.linear([(f"{block}.ffn_down{ending}", d)], width),
        load_activation(spec, i, weights.kernels),
        weights.vector(scales, width) if weights.has(scales) and not ending else None,
    )
