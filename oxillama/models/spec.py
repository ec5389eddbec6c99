"""The specification of a model: the facts of its family, and the sizes and numbers of its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oxillama.models.family import Family
from oxillama.models.rope import Rope

if TYPE_CHECKING:
    from oxillama.models import sizes


@dataclass(frozen=True)
class LayerSpec:
    """Sizes of one layer.

    Attributes:
        n_heads, n_kv_heads: query heads and key/value heads; the first is a multiple of the second.
        n_ff: width of its feed-forward block.
        key_dim, value_dim: width of a head's query and key, and of its value.
        kv_from: index of the layer whose keys and values it attends to; None for its own.
        selected_by: index of the layer whose selector chooses its positions; None without a selector.
        window: positions that a position attends to, its own included; 0 for all before it.
        chunk: a position attends to positions from the last multiple of this on; 0 for all.
        rope: index of its rotation among the model's; None without rotation.
        scaled_queries: queries are multiplied by `Temperature`.
        value_experts: experts that make a token's value, 0 for a matrix.
        experts, expert_width: experts that a token uses in its feed-forward block, 0 for none, and their
            width.
        mixer: name of its token mixer, or "feed_forward" where its only block is one.
        scale: factor of the hidden state after the layer.
        limit, expert_limit: bounds of the gates and ups of its dense block and shared expert, and of its
            routed experts; 0 for none.
        sparsity: gates of its dense block below the row's mean and this many standard deviations are 0; None
            for no such limit.
        xielu: numbers of its activation, where that is xIELU.
        latent: sizes of its latent attention, where they are not the model's.
        block_size: tokens of the blocks whose compressed keys it sees, 0 for none.
        chosen_by_token: a token's experts are looked up in a table.
        places: of its keys in a page: its key heads are divided among them.
        block: number of its tensors in the file, which layers may share; None for its own.
        begins, ends: it begins or ends a pass through a stack of layers (`layers/stacks.py`).
    """

    n_heads: int
    n_kv_heads: int
    n_ff: int
    key_dim: int
    value_dim: int
    kv_from: int | None = None
    selected_by: int | None = None
    window: int = 0
    chunk: int = 0
    rope: int | None = 0
    scaled_queries: bool = False
    value_experts: int = 0
    experts: int = 0
    expert_width: int = 0
    mixer: str = "attention"
    scale: float = 1.0
    limit: float = 0.0
    expert_limit: float = 0.0
    sparsity: float | None = None
    xielu: sizes.Xielu | None = None
    latent: sizes.Latent | None = None
    block_size: int = 0
    chosen_by_token: bool = False
    places: int = 1
    block: int | None = None
    begins: str = ""
    ends: str = ""


@dataclass(frozen=True, repr=False)
class Spec:
    """Sizes and numbers of one model, checked against each other.

    Attributes:
        layers: of each layer.
        n_embd, n_vocab: width of the hidden state, rows of the embedding table.
        key_dim, value_dim: the widest of all layers.
        layer_width: width of a layer's own embedding (`Family.per_layer_input`), 0 for none.
        output_width: width of an encoder's last hidden states (`Family.token_projection`), 0 for ``n_embd``.
        ropes: rotations, by `LayerSpec.rope`.
        norm_eps: epsilon of the norms.
        norm_groups: slices of a row that are normed apart.
        context_length: tokens of the training context.
        score_scale: factor of attention scores.
        soft_cap, final_soft_cap: c in c tanh(x / c), of scores and of logits; 0 for none.
        clamp: q, k and v are limited to [-clamp, clamp]; 0 for none.
        alibi_bias: largest slope exponent of linear biases, 0 without.
        relative_buckets: distances that have a learned bias of their own, 0 without such biases.
        embedding_scale, residual_scale, value_scale, logit_scale: factors of embeddings, of the blocks'
            outputs, of attended values, of logits.
        temperature, experts, value_experts, latent, selector, recurrent, switch, connections, situ, ngrams,
            compression, decision: None where the model has none.
        pooling: the file's pooling of hidden states: "mean", "cls", "last", "none", "rank" (scores of a
            classifier), or "" if the file does not state it.
        labels: of a classifier, () where the file names none.
        unread: options that the file states and that are ignored for its architecture.
        ignored: tensors that the model does not use on purpose (`Family.ignores`, MTP layers).
        part: the layers that are run here, the first and the end; None for all. The others are run by other
            stages of a pipeline.
    """

    family: Family
    layers: tuple[LayerSpec, ...]
    n_embd: int
    n_vocab: int
    key_dim: int
    value_dim: int
    ropes: tuple[Rope, ...]
    norm_eps: float
    context_length: int
    score_scale: float
    norm_groups: int = 1
    layer_width: int = 0
    output_width: int = 0
    soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    clamp: float = 0.0
    alibi_bias: float = 0.0
    relative_buckets: int = 0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    value_scale: float = 1.0
    logit_scale: float = 1.0
    temperature: sizes.Temperature | None = None
    experts: sizes.Experts | None = None
    value_experts: sizes.Experts | None = None
    latent: sizes.Latent | None = None
    selector: sizes.Selector | None = None
    recurrent: sizes.RecurrentSizes | None = None
    switch: sizes.Switch | None = None
    connections: sizes.Connections | None = None
    situ: sizes.Situ | None = None
    ngrams: sizes.Ngrams | None = None
    compression: sizes.Compression | None = None
    decision: sizes.Decision | None = None
    causal: bool = True
    pooling: str = ""
    labels: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    part: tuple[int, int] | None = None

    @property
    def here(self) -> range:
        """The layers that are run here."""
        return range(self.n_layers) if self.part is None else range(*self.part)

    @property
    def is_first(self) -> bool:
        """Whether the embeddings are looked up here."""
        return self.here.start == 0

    @property
    def is_last(self) -> bool:
        """Whether the last layer, the output norm and the output matrix are run here."""
        return self.here.stop == self.n_layers

    @property
    def depends_on_context(self) -> bool:
        """Whether bits depend on the context that the model is run with: LongRoPE and dynamic NTK scaling."""
        return self.family.longrope or any(rope.kind in ("longrope", "dynamic") for rope in self.ropes)

    @property
    def embedding_width(self) -> int:
        """Width of the vectors that it embeds texts with."""
        return self.output_width or self.n_embd

    def latent_of(self, i: int) -> sizes.Latent | None:
        """Sizes of the latent attention of layer ``i``."""
        return self.layers[i].latent or self.latent

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def attending(self) -> tuple[int, ...]:
        """Indices of the layers with keys and values of their own."""
        own = (i for i, layer in enumerate(self.layers) if layer.n_kv_heads and layer.kv_from is None)
        return tuple(own)

    def each_layer(self, **changes: object) -> Spec:
        """A copy with these changes in every layer."""
        return replace(self, layers=tuple(replace(layer, **changes) for layer in self.layers))  # type: ignore[arg-type]

    def with_layers(self, **changes: Sequence[object]) -> Spec:
        """A copy with other values of these fields, one for each layer."""
        each = (dict(zip(changes, values)) for values in zip(*changes.values()))
        layers = (replace(layer, **changed) for layer, changed in zip(self.layers, each, strict=True))
        return replace(self, layers=tuple(layers))
