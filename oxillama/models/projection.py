"""Matrices behind the pooling of an encoder, as Sentence Transformers' "Dense" modules (EmbeddingGemma)."""

from __future__ import annotations

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama.models.spec import Spec
from oxillama.weights.linear import Linear, Pass
from oxillama.weights.loader import Weights


class Projection:
    """W_n ... W_1 x of pooled hidden states x.

    Parameters
    ----------
    matrices : in the order of their use.
    """

    def __init__(self, matrices: list[Linear]) -> None:
        self.matrices = matrices

    def linears(self) -> list[Linear]:
        return self.matrices

    def run(self, pooled: np.ndarray, n_threads: int) -> np.ndarray:
        """float32 (n, width of the last matrix) of pooled hidden states, float32 (n, n_embd)."""
        x = np.ascontiguousarray(pooled, np.float32)
        for linear in self.matrices:
            y = np.empty((len(x), linear.rows), np.float32)
            linear.apply(x, y, Pass(aligned_empty(linear.scratch_bytes(len(x))), n_threads))
            x = y
        return x


def load_projection(spec: Spec, weights: Weights) -> Projection | None:
    """The matrices of `Family.projections` that the file has, None for none. Raises LoadError."""
    width, matrices = spec.n_embd, []
    for name in spec.family.projections:
        if weights.has(f"{name}.weight"):
            rows = (*weights.shape(f"{name}.weight"), 0, 0)[1]
            matrices.append(weights.linear([(name, rows)], width))
            width = rows
    return Projection(matrices) if matrices else None
