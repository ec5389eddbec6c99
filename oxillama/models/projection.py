"""Matrices behind the pooling of an encoder, as Sentence Transformers' "Dense" modules (EmbeddingGemma)."""

from __future__ import annotations

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear, Pass
from oxillama.models.weights.loader import Weights


class Projection:
    """W_n ... W_1 x of pooled hidden states x.

    Args:
        matrices: in the order of their use.
    """

    def __init__(self, matrices: list[Linear]) -> None:
        self.matrices = matrices

    def linears(self) -> list[Linear]:
        return self.matrices

    def run(self, pooled: np.ndarray, n_threads: int) -> np.ndarray:
        """float32 (n, width of the last matrix) of pooled hidden states, float32 (n, n_embd)."""
        x = np.ascontiguousarray(pooled, np.float32)
        for matrix in self.matrices:
            x = applied(matrix, x, n_threads)
        return x


def applied(matrix: Linear, x: np.ndarray, n_threads: int) -> np.ndarray:
    """float32 (n, rows) = x (n, cols) W^T + bias, outside of a forward pass."""
    y = np.empty((len(x), matrix.rows), np.float32)
    matrix.apply(x, y, Pass(aligned_empty(matrix.scratch_bytes(len(x))), n_threads))
    return y


def load_projection(spec: Spec, weights: Weights) -> Projection | None:
    """The matrices of `Family.projections` that the file has; None without any. Raises LoadError."""
    width, matrices = spec.n_embd, []
    for name in spec.family.projections:
        if weights.has(f"{name}.weight"):
            rows = (*weights.shape(f"{name}.weight"), 0, 0)[1]
            matrices.append(weights.linear([(name, rows)], width))
            width = rows
    return Projection(matrices) if matrices else None
