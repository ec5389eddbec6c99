"""Per-layer embeddings (Gemma 3n, 2025): a second embedding table, and a projection of the first."""

from __future__ import annotations

import math

import numpy as np

from oxillama.reference.floats import F32
from oxillama.reference.rows import ACTIVATIONS, norm
from oxillama.reference.source import Source


def layer_inputs(source: Source, tokens: np.ndarray, x: np.ndarray, n_layers: int, eps: float) -> np.ndarray:
    """float32 (n, layers, width): (table(token) sqrt(width) + norm(W x / sqrt(d))) / sqrt(2).

    Without the table: norm(W x / sqrt(d)).

    x (n, d) are the scaled embeddings of the tokens. The norm is computed separately for each layer's part.
    """
    width = source.key("embedding_length_per_layer_input")
    projected = source.linear("per_layer_model_proj", x) * F32(1 / math.sqrt(x.shape[1]))
    weight = source.vector("per_layer_proj_norm.weight")
    projected = norm(projected.reshape(len(x), n_layers, width), eps, weight)
    if not source.has("per_layer_token_embd.weight"):
        return projected
    rows = source.embeddings("per_layer_token_embd.weight", tokens).reshape(projected.shape)
    found: np.ndarray = (projected + rows * F32(math.sqrt(width))) * F32(math.sqrt(0.5))
    return found


def layer_input(source: Source, block: str, h: np.ndarray, embedded: np.ndarray) -> np.ndarray:
    """W2 (activation(W1 h) * e) for rows h (n, d) and their per-layer embeddings e (n, width)."""
    gates = ACTIVATIONS[source.facts.activation](source.linear(f"{block}.inp_gate", h))
    return source.linear(f"{block}.proj", gates * embedded)
