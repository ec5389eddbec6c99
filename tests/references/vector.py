"""References of the row-wise kernels, in extended precision (float64 where the machine has no more)."""

from __future__ import annotations

import math

import numpy as np

Wide = np.longdouble


def rms_norm(
    x: np.ndarray, weight: np.ndarray | float, eps: float, bias: np.ndarray | float = 0.0
) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight + bias (Zhang and Sennrich, 2019)."""
    wide = x.astype(Wide)
    return wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + Wide(eps)) * weight + bias


def layer_norm(
    x: np.ndarray, weight: np.ndarray | float, eps: float, bias: np.ndarray | float = 0.0
) -> np.ndarray:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba, Kiros and Hinton, 2016)."""
    wide = x.astype(Wide)
    return rms_norm(wide - wide.mean(axis=-1, keepdims=True), weight, eps, bias)


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    wide = x.astype(Wide)
    return wide / (1 + np.exp(-wide))


def erf(x: np.ndarray) -> np.ndarray:
    """float64."""
    return np.array([math.erf(value) for value in x.ravel().tolist()]).reshape(x.shape)


def activate(name: str, x: np.ndarray) -> np.ndarray:
    """An activation by the name the kernels know it by."""
    wide = x.astype(Wide)
    with np.errstate(over="ignore"):
        return {
            "silu": silu,
            "gelu": lambda v: v / 2 * (1 + np.tanh(np.sqrt(Wide(2) / np.pi) * (v + 0.044715 * v**3))),
            "gelu_erf": lambda v: v / 2 * (1 + erf(v / np.sqrt(2))),
            "gelu_quick": lambda v: v / (1 + np.exp(-1.702 * v)),
            "relu": lambda v: np.maximum(v, 0),
            "relu_squared": lambda v: np.maximum(v, 0) ** 2,
            "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
            "tanh": np.tanh,
            "softplus": lambda v: np.log1p(np.exp(-np.abs(v))) + np.maximum(v, 0),
            "exp": np.exp,
            "erfc": lambda v: 1 - erf(v),
            "silu_clamped": lambda v: np.minimum(v, 7) / (1 + np.exp(-1.702 * np.minimum(v, 7))),
        }[name](wide)


def gate(name: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """activation(gate) * up; the clamped one also clamps what it gates, and adds 1 (gpt-oss's)."""
    wide = up.astype(Wide)
    return activate(name, gate) * (np.clip(wide, -7, 7) + 1 if name == "silu_clamped" else wide)


def softmax(x: np.ndarray) -> np.ndarray:
    wide = x.astype(Wide)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def frequencies(n_rot: int, base: float, scale: float = 1.0, factors: np.ndarray | None = None) -> np.ndarray:
    """Radians per position of each rotating pair (Su et al., 2021)."""
    powers = Wide(base) ** (-2 * np.arange(n_rot // 2, dtype=Wide) / n_rot)
    return powers * Wide(scale) / (1 if factors is None else factors.astype(Wide))


def rope(x: np.ndarray, angles: np.ndarray, neox: bool) -> np.ndarray:
    """Heads (n, heads, dim) with the pairs of their first dimensions turned by angles (n, pairs)."""
    pairs = angles.shape[1]
    i = np.arange(pairs)
    one, two = (i, i + pairs) if neox else (2 * i, 2 * i + 1)
    turned = (x[..., one] + 1j * x[..., two]) * np.exp(1j * angles)[:, None, :]
    out = x.astype(turned.real.dtype)
    out[..., one], out[..., two] = turned.real, turned.imag
    return out
