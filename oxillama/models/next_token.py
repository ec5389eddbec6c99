"""MTP layers: blocks for next-token prediction behind the layers of some files, which draft for the model.

The block's input at position p is made of the embedding of token p and of the model's hidden state h of
position p - 1, after the last norm (zeros before the first):

    y = W [norm_e(embedding) | norm_h(h)].

A layer with attention, whose keys are those of such y, a norm and an output matrix make logits of token
p + 1. The normed state takes the place of h for a further token (DeepSeek-V3, 2024).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.decoder import Decoder, load_frequencies
from oxillama.models.layers.layer import AnyLayer, load_layer
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.spec import Spec
from oxillama.models.workspace import Batch, Step
from oxillama.weights.linear import Embedding, Linear, PanelStore
from oxillama.weights.loader import Weights


class NextTokenInput:
    """The input of a block for next-token prediction.

    Attributes
    ----------
    given : float32 (rows, n_embd), the hidden states of the next pass; set before it.
    """

    def __init__(self, spec: Spec, weights: Weights, block: str) -> None:
        d, own = spec.n_embd, f"{block}.embed_tokens.weight"
        name = own if weights.has(own) else "token_embd.weight"
        self.tokens: Embedding = weights.embedding(name, spec.n_vocab, d)
        self.norms: tuple[Norm, Norm] = (
            load_norm(spec, weights, f"{block}.enorm"),
            load_norm(spec, weights, f"{block}.hnorm"),
        )
        self.projection: Linear = weights.linear([(f"{block}.eh_proj", d)], 2 * d)
        self.scale: float = spec.embedding_scale
        self.given: np.ndarray = np.zeros((0, d), np.float32)

    def tables(self) -> list[Embedding]:
        """The tables of embeddings."""
        return [self.tokens]

    def linears(self) -> list[Linear]:
        return [self.projection]

    def look_up(self, batch: Batch, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the input of the block for the batch's tokens and the given states."""
        d = x.shape[1]
        both = step.work.rows["next_token", len(x), self.projection.cols]
        self.tokens.lookup(batch.tokens, x)
        if self.scale != 1:
            x *= np.float32(self.scale)
        of_token, of_state = self.norms
        both[:, :d] = of_token.apply(x, x, step.n_threads)
        both[:, d:] = of_state.apply(self.given, x, step.n_threads)
        self.projection.apply(both, x, step)


class NextTokenHead(Decoder):
    """The MTP layer of a file: a model of one layer, with the output matrix of its model.

    Parameters
    ----------
    spec : of the model.
    weights : of its file.
    target : the model.

    Raises
    ------
    LoadError : a tensor is missing or has a wrong shape.
    """

    inputs: NextTokenInput  # type: ignore[assignment]

    def __init__(self, spec: Spec, weights: Weights, target: Decoder) -> None:
        i = spec.n_layers
        block = f"blk.{i}.nextn"
        attends = spec.layers[max(spec.attending)]
        others = tuple(replace(layer, n_kv_heads=0) for layer in spec.layers)
        self.spec: Spec = replace(
            spec, layers=(*others, replace(attends, window=0, kv_from=None)), recurrent=None, part=None
        )
        self.kernels: Kernels = weights.kernels
        self.context: int = target.context
        self.store: PanelStore = target.store  # of the output matrix
        self.inputs = NextTokenInput(self.spec, weights, block)
        self.streams: Any | None = None
        self.classifier: Any | None = None
        self.projection: Any | None = None
        self.layers: list[AnyLayer] = [load_layer(self.spec, i, weights)]
        self.state_floats = self.record_floats = 0
        own = f"{block}.shared_head_norm"
        has_norm = weights.has(f"{own}.weight")
        self.output_norm: Norm | None = load_norm(spec, weights, own) if has_norm else target.output_norm
        head = f"{block}.shared_head_head"
        self.output = target.output
        if weights.has(f"{head}.weight"):
            self.output = weights.linear([(head, spec.n_vocab)], spec.n_embd)
        self.frequencies: list[np.ndarray] = [
            load_frequencies(spec, k, weights, self.context) for k in range(len(spec.ropes))
        ]


def load_next_token_head(spec: Spec, weights: Weights, target: Decoder) -> NextTokenHead | None:
    """The MTP layer of a file; None for a file without one that can draft."""
    there = weights.has(f"blk.{spec.n_layers}.nextn.eh_proj.weight")
    return NextTokenHead(spec, weights, target) if there and spec.family.next_token else None
