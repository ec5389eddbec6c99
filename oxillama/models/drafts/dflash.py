"""DFlash: drafts of a whole block in one pass, by block diffusion (Chen et al., 2026).

Inputs of layers of the target, side by side, make one state g = norm(W_fc f) for each token of the text. In
every layer the keys and values of g stand for the token (*injected* rows). A *block* is the last token and
mask tokens behind it; its rows see each other and the injected rows, and row i gives the logits of the token
at its own position.

Three kinds of files choose from these logits in their own way (`Choice`): plain ones, DSpark, and DFlash 2,
whose blocks also have convolutions (`Convolved`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.decoder import Decoder
from oxillama.models.drafts.choices import Choice, MarkovChoice, SelectorChoice
from oxillama.models.drafts.draft_model import DraftInput, DraftModel, check_same, read_tapped
from oxillama.models.family import Activation
from oxillama.models.layers.block_attention import BlockAttention, Convolved
from oxillama.models.layers.layer import Layer, load_plain_layer
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Embedding, Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Batch, Step

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu"}
MASK = "tokenizer.ggml.mask_token_id"
MAX_BLOCK = 1024


class DFlashInput(DraftInput):
    """States of injected rows, of the features ``hidden`` (if ``observed``), or the embeddings of a block."""

    def __init__(self, spec: Spec, weights: Weights, table: Embedding, width: int) -> None:
        super().__init__(table, weights.linear([("fc", spec.n_embd)], width))
        self.norm: Norm = load_norm(spec, weights, "enc.output_norm")
        self.scale: float = spec.embedding_scale

    def look_up(self, batch: Batch, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the states or the embeddings of the batch's rows."""
        if self.observed:
            self.projection.apply(self.hidden, x, step)
            self.norm.apply(x, x, step.n_threads)
            return
        self.table.lookup(batch.tokens, x)
        if self.scale != 1:
            x *= np.float32(self.scale)


@dataclass(frozen=True, repr=False)
class InjectedLayer(Layer):
    """A layer that runs the rows of a block; of injected rows it only stores keys and values.

    ``attention`` and ``inputs`` are parts of the model.
    """

    attention: BlockAttention | None = None
    inputs: DFlashInput | None = None

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to hidden states x (n, d), in place; states of injected rows do not change."""
        assert self.attention is not None and self.inputs is not None
        if self.inputs.observed:
            self.attention.inject(x, step)
        else:
            super().run(x, step)


class DFlash(DraftModel):
    """A DFlash drafter; see `DraftModel`.

    Raises LoadError if a tensor is missing or has a wrong shape, or something does not fit the target.

    Attributes:
        block_size: rows of a block.
        mask: the token of all but the first.
        choice: chooses tokens from logits.
    """

    inputs: DFlashInput  # type: ignore[assignment]

    def __init__(self, spec: Spec, weights: Weights, target: Decoder) -> None:
        read = Reader(weights.file, spec.family.name, spec.family.options)
        is_second = weights.has("selector_hidden.weight")
        check_options(spec, read)
        if not is_second:  # what follows the order of the others' logits needs neither
            spec = replace(spec, logit_scale=1.0, final_soft_cap=0.0)
        super().__init__(spec, weights, target)
        check_same(f"{read.prefix}.embedding_length", spec.n_embd, target.spec.n_embd)
        self.tapped = read_tapped(read, target.spec.n_layers)
        self.block_size: int = read.size("block_size", 16)
        has_size = 2 <= self.block_size <= MAX_BLOCK
        read.expect(has_size, "block_size", f"2 to {MAX_BLOCK} rows", self.block_size)
        table = self.load_ends(weights, target)
        self.mask: int = weights.file.get(MASK, int)
        n_tokens = table.table.nbytes // table.row_bytes
        if not 0 <= self.mask < n_tokens:
            raise LoadError(f"{MASK}: expected one of {n_tokens} embeddings, got {self.mask}")
        self.inputs = DFlashInput(spec, weights, table, len(self.tapped) * spec.n_embd)
        self.layers = [self._load_layer(i, weights, read, is_second) for i in range(spec.n_layers)]
        self.choice: Choice = Choice()
        if is_second:
            self.choice = SelectorChoice(weights, read, target.spec.n_vocab, spec.n_embd)
        elif weights.has("markov_w1.weight"):
            self.choice = MarkovChoice(weights, read, target.spec.n_vocab, self.spec, self.ids)

    def linears(self) -> list[Linear]:
        return [*super().linears(), *self.choice.linears()]

    def _load_layer(self, i: int, weights: Weights, read: Reader, is_second: bool) -> InjectedLayer:
        spec, block, size = self.spec, f"blk.{i}", self.block_size
        norms = [
            (name,) if weights.has(f"{block}.{name}.weight") else ()
            for name in ("post_attention_norm", "post_ffw_norm")
        ]
        facts = replace(
            spec.family,
            activation=ACTIVATIONS[read.text("hidden_activation", "silu")],
            v_norm=not weights.has(f"{block}.attn_v.weight"),
            attn_post_norm=norms[0],
            ffn_post_norm=norms[1],
        )
        layer = load_plain_layer(replace(spec, family=facts).each_layer(mixer="block"), i, weights)
        attention = layer.mixer
        assert isinstance(attention, BlockAttention) and layer.feed_forward is not None
        attention.see(read.flag("attention.causal", False), size)
        if is_second:
            taps, group = read.size("conv_kernel_size"), read.size("conv_group_size")
            read.expect(spec.n_embd % group == 0, "conv_group_size", f"a divisor of {spec.n_embd}", group)
            mixer, feed_forward = (
                Convolved(part, f"{block}.{name}_conv", weights, spec.n_embd, taps, group, size)
                for part, name in ((layer.mixer, "attn"), (layer.feed_forward, "ffn"))
            )
            layer = replace(layer, mixer=mixer, feed_forward=feed_forward)
        return InjectedLayer(**vars(layer), attention=attention, inputs=self.inputs)


def check_options(spec: Spec, read: Reader) -> None:
    """Raises LoadError for an option without support."""
    read.refuse("hyper_connection.count", (0,))
    activation = read.text("hidden_activation", "silu")
    known = f"one of {', '.join(ACTIVATIONS)}"
    read.expect(activation in ACTIVATIONS, "hidden_activation", known, repr(activation))
    sections = list(read.sections("rope.dimension_sections"))
    read.expect(not any(sections[1:]), "rope.dimension_sections", "zeros behind the first", sections)
    if any(layer.window for layer in spec.layers):
        key = "attention.sliding_window_pattern"
        read.expect(read.is_array(key), key, "an array beside a window", "none")
