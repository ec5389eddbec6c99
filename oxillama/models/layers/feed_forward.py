"""Feed-forward blocks without experts."""

from __future__ import annotations

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.spec import Spec, Xielu
from oxillama.models.workspace import Step
from oxillama.weights.linear import Linear
from oxillama.weights.loader import Weights


class Activation:
    """An activation of the kernels.

    Parameters
    ----------
    name : by which they know it.
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


class LimitedGate(Activation):
    """min(activation(gate), limit) * clip(up, -limit, limit): a gate whose output is bounded (Step 3.5)."""

    def __init__(self, kernels: Kernels, name: str, limit: float) -> None:
        super().__init__(kernels, name)
        self.limit: np.float32 = np.float32(limit)

    def gate(self, gate_up: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        d = out.shape[1]
        out[:] = gate_up[:, :d]
        self.activate(out, out, n_threads)
        np.minimum(out, self.limit, out=out)
        out *= np.clip(gate_up[:, d:], -self.limit, self.limit)


class XieluActivation(Activation):
    """xIELU (Huang and Schlag, "Deriving Activation Functions Using Integration", 2024), where x > 0:
    p x^2 + b x, else: n (e^min(x, eps) - 1 - x) + b x.

    The exponential is the kernels', so that the bits are the same on every machine.
    """

    def __init__(self, kernels: Kernels, numbers: Xielu) -> None:
        super().__init__(kernels, "exp")
        self.numbers = numbers

    def activate(self, x: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        p, n, b, eps = map(np.float32, self.numbers)
        power = np.minimum(x, eps)
        super().activate(power, power, n_threads)
        out[:] = np.where(x > 0, p * x * x, n * (power - np.float32(1) - x)) + b * x


class SparseGate(Activation):
    """activation(max(0, gate - (mean + scale * std))) * up: few gates are open (Gemma 3n, 2025).

    Mean and standard deviation (with n - 1) are those of a row's gates.
    """

    def __init__(self, kernels: Kernels, name: str, scale: float) -> None:
        super().__init__(kernels, name)
        self.scale = scale

    def gate(self, gate_up: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        """As `Activation.gate`; the gates in ``gate_up`` are cut in place."""
        self.kernels.vector.cut(gate_up, out.shape[1], self.scale, n_threads)
        super().gate(gate_up, out, n_threads)


def load_activation(spec: Spec, i: int, kernels: Kernels, routed: bool = False) -> Activation:
    """That of layer ``i``: of its routed experts, or of its dense block and its shared expert."""
    layer, name = spec.layers[i], spec.family.activation
    if name == "xielu":
        assert layer.xielu is not None
        return XieluActivation(kernels, layer.xielu)
    if layer.sparsity is not None:
        return SparseGate(kernels, name, layer.sparsity)
    limit = layer.expert_limit if routed else layer.limit
    return LimitedGate(kernels, name, limit) if limit else Activation(kernels, name)


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
        self.gated: bool = kind != "none"
        self.first: Linear = weights.linear(names, d)
        self.down: Linear = weights.linear([(f"{block}.ffn_down{ending}", d)], width)
        self.activation: Activation = load_activation(spec, i, weights.kernels)
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
        if self.gated:
            self.activation.gate(hidden, fed, n_threads)
        else:
            self.activation.activate(hidden, fed, n_threads)
        if self.divisors is not None:
            fed /= self.divisors
        self.down.apply(fed, out, step, accumulate)
