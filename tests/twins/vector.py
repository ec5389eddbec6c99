"""Twins of the row-wise kernels, in extended precision (float64 where the machine has no more)."""

from __future__ import annotations

import numpy as np

Wide = np.longdouble


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019)."""
    wide = x.astype(Wide)
    return wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + Wide(eps)) * weight


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    wide = x.astype(Wide)
    return wide / (1 + np.exp(-wide))


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
