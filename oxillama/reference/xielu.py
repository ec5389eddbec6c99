"""xIELU (Huang and Schlag, 2024), an activation with four parameters for each layer."""

from __future__ import annotations

import math

import numpy as np

from oxillama.reference.floats import F32, exp
from oxillama.reference.source import Source


def softplus(x: float) -> float:
    """ln(1 + e^x) in double."""
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def read_xielu(source: Source, n_layers: int) -> list[tuple[float, float, float, float]]:
    """(p, n, beta, eps) of each layer; keys have no architecture prefix, and one value or one per layer."""
    columns = []
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        value = source.file.metadata[f"xielu.{name}"]
        columns.append(value.tolist() if isinstance(value, np.ndarray) else [value] * n_layers)
    return [(softplus(p), beta + softplus(n), beta, eps) for p, n, beta, eps in zip(*columns)]


def xielu(x: np.ndarray, p: float, n: float, beta: float, eps: float) -> np.ndarray:
    """p x^2 + beta x for x > 0, else n (e^min(x, eps) - 1 - x) + beta x; nothing is fused."""
    below = F32(n) * (exp(np.minimum(x, F32(eps))) - F32(1) - x)
    found: np.ndarray = np.where(x > 0, F32(p) * x * x, below) + F32(beta) * x
    return found
