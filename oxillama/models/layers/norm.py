"""RMS norms and layer norms of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama._kernels import Kernels
from oxillama.base.lazy_import import lazy
from oxillama.models.spec import Spec
from oxillama.models.weights.loader import Weights

load_group_norm: Callable[..., Norm] = lazy("oxillama.models.layers.head_norm:GroupNorm")


class Norm:
    """RMS or layer norm of rows; weight and bias float32 (d,) or None."""

    def __init__(
        self, kernels: Kernels, centred: bool, eps: float, weight: np.ndarray | None, bias: np.ndarray | None
    ) -> None:
        self.kernels = kernels
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
    """The norm called ``name``, of rows of ``width``; None for the hidden state's width."""
    family = spec.family
    d = width or spec.n_embd
    bare = weights.has(name) and not weights.has(f"{name}.weight")  # some converters leave out the suffix
    has_weight = family.norm_weight and not (family.plain_embd_norm and name == "token_embd_norm")
    weight = weights.vector(name if bare else f"{name}.weight", d) if has_weight else None
    bias = load_bias(spec, weights, name, d)
    if spec.norm_groups > 1 and width is None:
        return load_group_norm(weights.kernels, spec, weight)
    eps = family.post_norm_eps if family.post_norm_eps and ".post_" in name else spec.norm_eps
    return Norm(weights.kernels, family.norm == "layer", eps, weight, bias)


def load_bias(spec: Spec, weights: Weights, name: str, width: int) -> np.ndarray | None:
    """The bias of a norm; None without a bias."""
    wanted = spec.family.norm_bias
    if wanted == "no" or (wanted == "auto" and not weights.has(f"{name}.bias")):
        return None
    return weights.vector(f"{name}.bias", width)
