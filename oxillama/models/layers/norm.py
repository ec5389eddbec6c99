"""Norms of rows and of heads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.spec import LayerSpec, Spec
from oxillama.weights.loader import Weights


class Norm:
    """RMS or layer norm of rows; weight and bias float32 (d,) or None."""

    def __init__(
        self, kernels: Kernels, centred: bool, eps: float, weight: np.ndarray | None, bias: np.ndarray | None
    ) -> None:
        self.kernel: Callable[..., None] = kernels.vector.layer_norm if centred else kernels.vector.rms_norm
        self.eps = eps
        self.weight = weight
        self.bias = bias

    def apply(self, x: np.ndarray, out: np.ndarray, n_threads: int) -> np.ndarray:
        """out (n, d) = norm of x (n, d), which may be the same array; returns it."""
        self.kernel(x, self.weight, self.eps, out, n_threads, self.bias)
        return out

    def add(self, x: np.ndarray, out: np.ndarray, n_threads: int) -> None:
        """out (n, d) += norm of x (n, d)."""
        self.kernel(x, self.weight, self.eps, out, n_threads, self.bias, True)


def load_norm(spec: Spec, weights: Weights, name: str, width: int | None = None) -> Norm:
    """The norm called ``name``, of rows of ``width`` (the hidden state's where that is None)."""
    family = spec.family
    d = width or spec.n_embd
    bare = weights.has(name) and not weights.has(f"{name}.weight")  # some converters leave out the suffix
    weight = weights.vector(name if bare else f"{name}.weight", d) if family.norm_weight else None
    bias = load_bias(spec, weights, name, d)
    return Norm(weights.kernels, family.norm == "layer", spec.norm_eps, weight, bias)


def load_bias(spec: Spec, weights: Weights, name: str, width: int) -> np.ndarray | None:
    """The bias of a norm, None for none."""
    wanted = spec.family.norm_bias
    if wanted == "no" or (wanted == "auto" and not weights.has(f"{name}.bias")):
        return None
    return weights.vector(f"{name}.bias", width)


class HeadNorm:
    """Norms of some columns in place, head by head; weight and bias float32 (heads, head_dim) or None."""

    def __init__(
        self,
        kernels: Kernels,
        centred: bool,
        eps: float,
        heads: int,
        head_dim: int,
        weight: np.ndarray | None,
        bias: np.ndarray | None = None,
        column: int = 0,
    ) -> None:
        self.kernel: Callable[..., None] = kernels.vector.head_norm
        self.shape: tuple[int, int] = (heads, head_dim)
        self.weight = weight
        self.bias = bias
        self.eps = eps
        self.column = column
        self.centred = centred

    def apply(self, x: np.ndarray, n_threads: int) -> None:
        """Normalizes the heads that begin at the norm's column of x (n, width)."""
        self.kernel(x, *self.shape, self.weight, self.eps, n_threads, self.column, self.centred, self.bias)


def load_qk_norms(
    spec: Spec, weights: Weights, block: str, layer: LayerSpec, kv_heads: int
) -> list[HeadNorm]:
    """Norms of q and k in rows of all q heads, then all k heads, of which a layer may have none."""
    family, kernels, dim, heads = spec.family, weights.kernels, layer.key_dim, layer.n_heads
    centred = family.norm == "layer"
    if family.qk_norm == "unit":
        return [HeadNorm(kernels, False, spec.norm_eps, heads + kv_heads, dim, None)]
    if not family.qk_norm or (family.qk_norm_optional and not weights.has(f"{block}.attn_q_norm.weight")):
        return []
    found = []
    for name, n, column in (("attn_q_norm", heads, 0), ("attn_k_norm", kv_heads, heads * dim)):
        if n == 0:
            continue
        full, bias = f"{block}.{name}", None
        if family.qk_norm == "row":
            weight = weights.vector(f"{full}.weight", n * dim)
            if weights.has(f"{full}.bias"):
                bias = weights.vector(f"{full}.bias", n * dim)
            found.append(HeadNorm(kernels, centred, spec.norm_eps, 1, n * dim, weight, bias, column))
            continue
        if family.qk_norm == "heads":
            weight = weights.matrix(f"{full}.weight", n, dim)
        else:
            weight = np.tile(weights.vector(f"{full}.weight", dim), (n, 1))
        found.append(HeadNorm(kernels, centred, spec.norm_eps, n, dim, weight, None, column))
    return found
