"""Norms of heads, and the norms of q and k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.norm import Norm
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.weights.loader import Weights

QK_LAYER_EPS = 1e-5  # llama.cpp fixes the eps of layer norms of q and k


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


def load_head_norm(
    spec: Spec, weights: Weights, name: str, heads: int, dim: int, column: int = 0, each: bool = False
) -> HeadNorm:
    """The RMS norm of heads; the tensor ``name`` has a weight for all, or, with ``each``, one for each."""
    n = heads * dim
    weight = weights.vector(name, n) if each else np.tile(weights.vector(name, dim), heads)
    shaped = weight.reshape(heads, dim)
    return HeadNorm(weights.kernels, False, spec.norm_eps, heads, dim, shaped, column=column)


class GroupNorm(Norm):
    """RMS norm of equal slices of a row, then one weight for the row (K2-Horizon)."""

    def __init__(self, kernels: Kernels, spec: Spec, weight: np.ndarray) -> None:
        super().__init__(kernels, False, spec.norm_eps, weight, None)
        n = spec.norm_groups
        self.heads: HeadNorm = HeadNorm(kernels, False, spec.norm_eps, n, spec.n_embd // n, weight)

    def apply(self, x: np.ndarray, out: np.ndarray, n_threads: int) -> np.ndarray:
        """As `Norm.apply`."""
        if out is not x:
            out[:] = x
        self.heads.apply(out, n_threads)
        return out


def load_qk_norms(
    spec: Spec, weights: Weights, block: str, layer: LayerSpec, kv_heads: int
) -> list[HeadNorm]:
    """Norms of q and k in rows of all q heads, then all k heads, of which a layer may have none."""
    family, kernels, dim, heads = spec.family, weights.kernels, layer.key_dim, layer.n_heads
    kind, eps = family.qk_norm, spec.norm_eps
    if kind == "unit":
        return [HeadNorm(kernels, False, eps, heads + kv_heads, dim, None)]
    if kind == "gain":
        gains = np.repeat(weights.matrix(f"{block}.attn_q_norm.weight", heads, 1), dim, axis=1)
        of_k = HeadNorm(kernels, False, eps, kv_heads, dim, None, column=heads * dim)
        return [HeadNorm(kernels, False, eps, heads, dim, gains), of_k]
    if not kind or (family.qk_norm_optional and not weights.has(f"{block}.attn_q_norm.weight")):
        return []
    centred, eps = family.norm == "layer" or kind == "layer", QK_LAYER_EPS if kind == "layer" else eps
    found = []
    for name, n, column in (("attn_q_norm", heads, 0), ("attn_k_norm", kv_heads, heads * dim)):
        if n == 0:
            continue
        of_weight, of_bias, is_row = f"{block}.{name}.weight", f"{block}.{name}.bias", kind == "row"
        if kind == "head":
            weight = np.tile(weights.vector(of_weight, dim), (n, 1))
        elif is_row or weights.shape(of_weight) == (n * dim,):
            weight = weights.vector(of_weight, n * dim)
        else:
            weight = weights.matrix(of_weight, n, dim)
        bias = None
        if kind in ("row", "layer") and weights.has(of_bias):
            bias = weights.vector(of_bias, n * dim) if is_row else weights.matrix(of_bias, n, dim)
        shape = (1, n * dim) if is_row else (n, dim)
        found.append(HeadNorm(kernels, centred, eps, *shape, weight, bias, column))
    return found


def load_v_norm(spec: Spec, weights: Weights, layer: LayerSpec, column: int) -> HeadNorm:
    """The norm of the heads of v, without weights, in rows where they begin at ``column``."""
    heads, dim = layer.n_kv_heads, layer.value_dim
    return HeadNorm(weights.kernels, False, spec.norm_eps, heads, dim, None, column=column)
