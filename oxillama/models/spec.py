"""The specification of a model: the facts of its family, and the sizes and numbers of its file."""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple

from oxillama.frozen import frozen
from oxillama.models.family import Family
from oxillama.models.rope import Rope


class Xielu(NamedTuple):
    """Numbers of the activation xIELU: factors of the square, of the exponential and of x, and a bound of
    the exponent."""

    positive: float
    negative: float
    linear: float
    bound: float


@frozen()
class LayerSpec:
    """Sizes of one layer.

    Attributes
    ----------
    n_heads, n_kv_heads : query heads and key/value heads; the first is a multiple of the second.
    n_ff : width of its feed-forward block.
    key_dim, value_dim : width of a head's query and key, and of its value.
    kv_from : index of the layer whose keys and values it attends to; None for its own.
    selected_by : index of the layer whose selector chooses the positions it attends to; None for no choice.
    window : a position attends to so many positions, its own included; 0 for all before it.
    chunk : a position attends to none before the last multiple of this; 0 for all.
    rope : index of its rotation among the model's, None for none.
    scaled_queries : queries are multiplied by `Temperature`.
    experts, expert_width : experts that a token uses in its feed-forward block, 0 for none, and their width.
    mixer : name of its token mixer, or "feed_forward" where its only block is one.
    scale : factor of the hidden state after the layer.
    limit, expert_limit : bounds of the gates and ups of its dense block and shared expert, and of its routed
        experts; 0 for none.
    sparsity : gates of its dense block below the row's mean and this many standard deviations are 0; None for
        no such limit.
    xielu : numbers of its activation, where that is xIELU.
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
    experts: int = 0
    expert_width: int = 0
    mixer: str = "attention"
    scale: float = 1.0
    limit: float = 0.0
    expert_limit: float = 0.0
    sparsity: float | None = None
    xielu: Xielu | None = None


@frozen()
class Experts:
    """Experts of a model: how many, the width of the shared one, and their choice (`Routing`)."""

    n_experts: int
    shared_width: int
    gating: str
    normalize: bool
    scale: float
    groups: int = 1
    groups_used: int = 1
    latent: int = 0


@frozen()
class Latent:
    """Sizes of multi-head latent attention: keys and values of all heads come from one compressed vector.

    Attributes
    ----------
    q_rank : width of the compressed queries, 0 where queries are not compressed.
    kv_rank : width of the compressed vector of keys and values.
    key_dim, value_dim : of a head.
    rotated : last dimensions of a key, which all heads share and which rotate.
    """

    q_rank: int
    kv_rank: int
    key_dim: int
    value_dim: int
    rotated: int


@frozen()
class Selector:
    """Sizes of the selectors of positions (`layers/selector.py`).

    Attributes
    ----------
    n_heads, width : heads of its queries, and their width and that of a key.
    n_chosen : positions that a row attends to, at most.
    neox : pairs (i, i + n_rot / 2) rotate, not (2i, 2i + 1).
    """

    n_heads: int
    width: int
    n_chosen: int
    neox: bool


@frozen()
class RecurrentSizes:
    """Sizes of recurrent layers.

    Attributes
    ----------
    taps : tokens of a convolution.
    inner : channels.
    n : size of a channel's state.
    heads : of Mamba-2, RWKV and, of values, the delta rule; in Mamba the rank of dt.
    groups : of heads that share B and C, or q and k.
    interleaved : every ``groups``-th head is of the same group, not neighbours.
    norms : of Mamba's dt, B and C: "" none, "plain" without weights, "learned".
    ranks : of RWKV's low-rank matrices, by name.
    """

    taps: int
    inner: int
    n: int
    heads: int
    groups: int = 1
    interleaved: bool = False
    norms: str = ""
    ranks: dict[str, int] = field(default_factory=dict)


@frozen()
class Temperature:
    """Queries are multiplied by 1 + rate * ln(floor((position + offset) / length) + 1)."""

    rate: float
    length: int
    offset: int


@frozen()
class Spec:
    """Sizes and numbers of one model, checked against each other.

    Attributes
    ----------
    layers : of each layer.
    n_embd, n_vocab : width of the hidden state, rows of the embedding table.
    key_dim, value_dim : the widest of all layers.
    layer_width : width of a layer's own embedding (`Family.per_layer_input`), 0 for none.
    ropes : rotations, by `LayerSpec.rope`.
    norm_eps : epsilon of the norms.
    context_length : tokens of the training context.
    score_scale : factor of attention scores.
    soft_cap, final_soft_cap : c in c tanh(x / c), of scores and of logits; 0 for none.
    clamp : q, k and v are limited to [-clamp, clamp]; 0 for none.
    alibi_bias : largest slope exponent of linear biases, 0 without.
    relative_buckets : distances that have a learned bias of their own, 0 without such biases.
    embedding_scale, residual_scale, value_scale, logit_scale : factors of embeddings, of the blocks' outputs,
        of attended values, of logits.
    temperature, experts, latent, selector, recurrent : None where the model has none.
    pooling : the file's pooling of hidden states: "mean", "cls", "last", "none", "rank" (scores of a
        classifier), or "" if the file does not state it.
    labels : of a classifier, () where the file names none.
    unread : options that the file states and that are ignored for its architecture.
    ignored : tensors that the model does not use on purpose (`Family.ignores`, MTP layers).
    part : the layers that are run here, the first and the one behind the last; None for all. The others are
        those of other stages of a pipeline.
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
    layer_width: int = 0
    soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    clamp: float = 0.0
    alibi_bias: float = 0.0
    relative_buckets: int = 0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    value_scale: float = 1.0
    logit_scale: float = 1.0
    temperature: Temperature | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    selector: Selector | None = None
    recurrent: RecurrentSizes | None = None
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
