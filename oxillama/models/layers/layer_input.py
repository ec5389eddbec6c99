"""Embeddings that each layer has of its own (Gemma 3n, 2025): a second table, a projection of the first."""

from __future__ import annotations

import math

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Embedding, Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


class LayerEmbeddings:
    """The embeddings of a token for all layers: (table(token) sqrt(p) + norm(W x / sqrt(d))) / sqrt(2), or
    without a table norm(W x / sqrt(d)).

    x is the model's (scaled) embedding of width d, p the width of a layer's; each layer's part is normed.
    """

    def __init__(self, spec: Spec, weights: Weights) -> None:
        layers, width = spec.n_layers, spec.layer_width
        self.width: int = layers * width
        self.table: Embedding | None = None
        if spec.family.per_layer_table:
            self.table = weights.embedding("per_layer_token_embd.weight", spec.n_vocab, self.width)
        self.projection: Linear = weights.linear([("per_layer_model_proj", self.width)], spec.n_embd)
        self.norm: HeadNorm = load_head_norm(spec, weights, "per_layer_proj_norm.weight", layers, width)
        self.table_scale: np.float32 = np.float32(math.sqrt(width))
        self.scale: np.float32 = np.float32(1 / math.sqrt(spec.n_embd))

    def look_up(self, x: np.ndarray, step: Step) -> None:
        """Fills the buffer "layer_inputs" (n, layers p) for the embeddings x (n, d) of the step's tokens."""
        n = len(x)
        found = step.work.rows["layer_inputs", n, self.width]
        self.projection.apply(x, found, step)
        found *= self.scale
        self.norm.apply(found, step.n_threads)
        if self.table is None:
            return
        rows = step.work.rows["layer_rows", n, self.width]
        self.table.lookup(step.batch.tokens, rows)
        rows *= self.table_scale
        found += rows
        found *= np.float32(math.sqrt(0.5))


class LayerInput:
    """The term that layer ``i`` adds from its embedding e: W2 (gelu(W1 x) * e)."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        block, width = f"blk.{i}", spec.layer_width
        self.kernels: Kernels = weights.kernels
        self.all_layers: int = spec.n_layers * width
        self.part: slice = slice(i * width, (i + 1) * width)
        self.activation = spec.family.activation
        self.gate: Linear = weights.linear([(f"{block}.inp_gate", width)], spec.n_embd)
        self.projection: Linear = weights.linear([(f"{block}.proj", spec.n_embd)], width)

    def linears(self) -> list[Linear]:
        return [self.gate, self.projection]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n = len(h)
        gates = step.work.rows["layer_gate", n, self.gate.rows]
        self.gate.apply(h, gates, step)
        self.kernels.vector.activate(gates, self.activation, gates, step.n_threads)
        gates *= step.work.rows["layer_inputs", n, self.all_layers][:, self.part]
        self.projection.apply(gates, out, step, accumulate)
