"""Gemma 4's assistant: a few narrow layers that draft on the keys and values of their target.

The state h of the target's last row, after the last norm, and the embedding of the token that follows make
the input x = W_pre [sqrt(W) embedding | h], where W is the target's width. The layers have queries only: one
with a window attends to the keys and values of the target's last but one layer, the others to the last
layer's. With y = norm(x) behind them, the logits are E y, and W_post y takes the place of h for a further
token. All tokens of a draft have the position of the first, so that they see the same keys.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.decoder import Decoder
from oxillama.models.drafts.draft_model import DraftInput, DraftModel, check_same
from oxillama.models.layers.attention import Attention
from oxillama.models.layers.layer import load_plain_layer
from oxillama.models.metadata import Reader
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Batch, Step, Threads, Workspace


class AssistantInput(DraftInput):
    """The projection of embeddings and states ``hidden`` (rows, width), both as wide as the target's."""

    def __init__(self, spec: Spec, weights: Weights, target: Decoder) -> None:
        assert target.inputs is not None, "a pipeline has no drafters"
        projection = weights.linear([("nextn.pre_projection", spec.n_embd)], 2 * target.spec.n_embd)
        super().__init__(target.inputs.tokens, projection)
        self.scale: float = target.spec.embedding_scale

    def look_up(self, batch: Batch, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the projected embeddings of the batch's tokens and the given states."""
        n, width = self.hidden.shape
        embedded = step.work.rows["embedded", n, width]
        self.table.lookup(batch.tokens, embedded)
        both = step.work.rows["assistant", n, 2 * width]
        np.multiply(embedded, np.float32(self.scale), out=both[:, :width])
        both[:, width:] = self.hidden
        self.projection.apply(both, x, step)


class Assistant(DraftModel):
    """The assistant of a Gemma 4 model; see `DraftModel`. A pass gets the target's pages.

    Its layers have numbers after the target's layers, so that they find the target's keys.
    """

    inputs: AssistantInput  # type: ignore[assignment]

    def __init__(self, spec: Spec, weights: Weights, target: Decoder) -> None:
        super().__init__(spec, weights, target)
        self.load_ends(weights, target)
        read, first, there = Reader(weights.file, spec.family.name), target.spec.n_layers, target.spec.family
        if there.name != "gemma4":
            raise LoadError(f"general.architecture: {read.prefix} drafts for gemma4, got a {there.name}")
        width = read.size("embedding_length_out")
        check_same(f"{read.prefix}.embedding_length_out", width, target.spec.n_embd)
        windows = [layer.window for layer in spec.layers]
        if not all(windows) and not weights.has("rope_freqs.weight"):
            raise LoadError("rope_freqs.weight: expected a tensor of this name, got none")
        layers = [attending(layer, target.spec, i, read) for i, layer in enumerate(spec.layers)]
        self.spec = replace(self.spec, layers=(*target.spec.layers, *layers))
        weights.ignore(spec.ignored)
        weights.name_layers("", {}, {f"{first + i}": f"{i}" for i in range(len(layers))})
        self.inputs = AssistantInput(spec, weights, target)
        self.post_projection: Linear = weights.linear([("nextn.post_projection", width)], spec.n_embd)
        for i, window in enumerate(windows):
            layer = load_plain_layer(self.spec, first + i, weights)
            assert isinstance(layer.mixer, Attention)
            # a row attends as if it were at the last position with keys, one before its own
            layer.mixer.options = replace(layer.mixer.options, window=window and window - 1)
            self.layers.append(layer)

    def linears(self) -> list[Linear]:
        return [*super().linears(), self.post_projection]

    def next_states(self, normed: np.ndarray, work: Workspace, tuner: Threads) -> np.ndarray:
        """float32 (n, width): states in the place of the target's, from normed ones (n, n_embd) of a pass."""
        found = np.empty((len(normed), self.post_projection.rows), np.float32)
        self.post_projection.apply(normed, found, self.linear_pass(work, tuner))
        return found


def attending(layer: LayerSpec, target: Spec, i: int, read: Reader) -> LayerSpec:
    """Layer ``i`` of an assistant with the keys that it reads. Raises LoadError where they do not fit."""
    at = max(0, target.n_layers - (2 if layer.window else 1))
    seen, local = target.layers[at], "_swa" if layer.window else ""
    for key, wanted, found in (
        ("attention.head_count_kv", seen.n_kv_heads, layer.n_kv_heads),
        (f"attention.key_length{local}", seen.key_dim, layer.key_dim),
        (f"attention.value_length{local}", seen.value_dim, layer.value_dim),
        ("attention.sliding_window_pattern", bool(seen.window), bool(layer.window)),
    ):
        as_there = f"{wanted} in layer {i}, as in layer {at} of the model"
        read.expect(found == wanted, key, as_there, found)
    if layer.window:
        fits, most = 1 < layer.window <= seen.window, f"2 to {seen.window}, as the model has"
        read.expect(fits, "attention.sliding_window", most, layer.window)
    source = at if seen.kv_from is None else seen.kv_from
    return replace(layer, kv_from=source, window=seen.window, block=i)
