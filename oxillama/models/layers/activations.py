"""Activations that only some architectures have: limited and sparse gates, xIELU and SiTU."""

from __future__ import annotations

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.feed_forward import Activation
from oxillama.models.sizes import Situ, Xielu
from oxillama.models.spec import LayerSpec, Spec


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


class LimitedInputs(Activation):
    """activation(min(gate, limit)) * clip(up, -limit, limit) (Maple)."""

    def __init__(self, kernels: Kernels, name: str, limit: float) -> None:
        super().__init__(kernels, name)
        self.limit: np.float32 = np.float32(limit)

    def gate(self, gate_up: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        """As `Activation.gate`; ``gate_up`` is limited in place."""
        d = out.shape[1]
        np.minimum(gate_up[:, :d], self.limit, out=gate_up[:, :d])
        np.clip(gate_up[:, d:], -self.limit, self.limit, out=gate_up[:, d:])
        super().gate(gate_up, out, n_threads)


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


class SituGate(Activation):
    """b tanh(gate / b) sigmoid(gate) * l tanh(up / l), with up itself for l = 0 (Kimi K3)."""

    def __init__(self, kernels: Kernels, numbers: Situ) -> None:
        super().__init__(kernels, "sigmoid")
        self.numbers = numbers

    def _bounded(self, x: np.ndarray, bound: float, n_threads: int) -> np.ndarray:
        """bound tanh(x / bound)."""
        y = x / np.float32(bound)
        self.kernels.vector.activate(y, "tanh", y, n_threads)
        y *= np.float32(bound)
        return y

    def gate(self, gate_up: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        """As `Activation.gate`."""
        d = out.shape[1]
        gates, up = np.ascontiguousarray(gate_up[:, :d]), gate_up[:, d:]
        self.activate(gates, out, n_threads)
        out *= self._bounded(gates, self.numbers.gate, n_threads)
        out *= self._bounded(up, self.numbers.up, n_threads) if self.numbers.up else up


class SparseGate(Activation):
    """activation(max(0, gate - (mean + scale * std))) * up: few gates are open (Gemma 3n, 2025).

    Mean and standard deviation (with n - 1) are taken over a row's gates.
    """

    def __init__(self, kernels: Kernels, name: str, scale: float) -> None:
        super().__init__(kernels, name)
        self.scale = scale

    def gate(self, gate_up: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        """As `Activation.gate`; the gates in ``gate_up`` are cut in place."""
        self.kernels.vector.cut(gate_up, out.shape[1], self.scale, n_threads)
        super().gate(gate_up, out, n_threads)


def special_activation(spec: Spec, layer: LayerSpec, kernels: Kernels, limit: float) -> Activation:
    """The activation of a layer that has one of these; ``limit`` bounds its gates, 0 for no bound."""
    name = spec.family.activation
    if spec.situ is not None:
        return SituGate(kernels, spec.situ)
    if layer.xielu is not None:
        return XieluActivation(kernels, layer.xielu)
    if layer.sparsity is not None:
        return SparseGate(kernels, name, layer.sparsity)
    return (LimitedGate if spec.family.limits == "after" else LimitedInputs)(kernels, name, limit)
