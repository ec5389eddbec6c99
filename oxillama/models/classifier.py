"""Classification heads of rerankers: one pooled hidden state in, a score for each label out."""

from __future__ import annotations

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.projection import applied
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights


class Classifier:
    """scores = W_out tanh(W h + b) + b_out, or only one of the two layers (RoBERTa, 2019).

    Args:
        dense: W (n_embd, n_embd), or (n_labels, n_embd) without ``out``; None without such a layer.
        out: W_out (n_labels, n_embd), or None.
        softmax: scores are the softmax over the labels.

    Attributes:
        pooling: the token whose hidden state ``h`` is, "cls" (the first) or "last".
    """

    def __init__(
        self, kernels: Kernels, dense: Linear | None, out: Linear | None, pooling: str, softmax: bool
    ) -> None:
        self.kernels = kernels
        self.dense = dense
        self.out = out
        self.pooling = pooling
        self.softmax = softmax

    def linears(self) -> list[Linear]:
        """Its matrices, in the order in which `run` uses them."""
        return [linear for linear in (self.dense, self.out) if linear is not None]

    def run(self, hidden: np.ndarray, n_threads: int) -> np.ndarray:
        """float32 (n, n_labels): scores for pooled hidden states, float32 (n, n_embd)."""
        x = np.ascontiguousarray(hidden, np.float32)
        for linear in self.linears():
            x = applied(linear, x, n_threads)
            if linear is self.dense:
                self.kernels.vector.activate(x, "tanh", x, n_threads)
        if not self.softmax:
            return x
        labels, scores = np.empty(x.shape, np.int32), np.empty_like(x)
        self.kernels.routing.route(x, None, "softmax", 1, 1, False, 1.0, labels, scores)  # all labels
        return scores


def load_classifier(spec: Spec, weights: Weights) -> Classifier | None:
    """The head, None where the family or the file has none. Raises LoadError."""
    kind, d = spec.family.classifier, spec.n_embd
    dense, out = weights.has("cls.weight") and kind == "cls", weights.has("cls.output.weight")
    if not kind or not (dense or out):
        return None
    n_labels = len(spec.labels) or 1
    return Classifier(
        weights.kernels,
        weights.linear([("cls", d if out else n_labels)], d) if dense else None,
        weights.linear([("cls.output", n_labels)], d) if out else None,
        pooling=kind,
        softmax=kind == "last",
    )
