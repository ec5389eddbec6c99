"""What a model is: the facts of its family, and the sizes and numbers that its file states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from oxillama.models.family import Family
from oxillama.models.rope import Rope


@dataclass(frozen=True)
class LayerSpec:
    """Sizes of one layer.

    Attributes
    ----------
    n_heads, n_kv_heads : query heads and key/value heads; the first is a multiple of the second.
    n_ff : width of its feed-forward block.
    window : positions a position sees, its own included; 0 for all before it.
    chunk : it sees none before the last multiple of this; 0 for all.
    rope : which of the model's rotations it uses, None for none.
    scaled_queries : queries grow with their position.
    experts : its feed-forward block is made of experts.
    mixer : name of its mixer.
    scale : the hidden state is multiplied by it behind the layer.
    """

    n_heads: int
    n_kv_heads: int
    n_ff: int
    window: int = 0
    chunk: int = 0
    rope: int | None = 0
    scaled_queries: bool = False
    experts: bool = False
    mixer: str = "attention"
    scale: float = 1.0


@dataclass(frozen=True)
class Experts:
    """Experts of a model: how many, how many a token takes, how wide, and how they are chosen (`Routing`)."""

    n_experts: int
    n_used: int
    width: int
    shared_width: int
    gating: str
    normalize: bool
    scale: float
    groups: int = 1
    groups_used: int = 1


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention: keys and values of all heads come from one short vector.

    Attributes
    ----------
    q_rank : width of the compressed queries, 0 where they are not.
    kv_rank : width of what keys and values are made of.
    key_dim, value_dim : of a head; the last dimensions of a key rotate.
    """

    q_rank: int
    kv_rank: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class RecurrentSizes:
    """Sizes of recurrent layers.

    Attributes
    ----------
    taps : tokens that a convolution sees.
    inner : channels.
    n : numbers that a channel remembers.
    heads : of Mamba-2 and RWKV; the rank of Mamba's steps.
    groups : that share what goes into and comes out of the memory.
    norms : of Mamba's dt, B and C: "" none, "plain" without weights, "learned".
    ranks : of RWKV's low-rank matrices, by their name.
    """

    taps: int
    inner: int
    n: int
    heads: int
    groups: int = 1
    norms: str = ""
    ranks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Temperature:
    """Queries are multiplied by 1 + rate * ln(floor((position + offset) / length) + 1)."""

    rate: float
    length: int
    offset: int


@dataclass(frozen=True)
class Spec:
    """Sizes and numbers of one model, checked against each other.

    Attributes
    ----------
    layers : of each layer.
    n_embd, n_vocab : width of the hidden state, rows of the embedding table.
    key_dim, value_dim : width of a head's query and key, and of its value.
    ropes : rotations that layers refer to.
    norm_eps : epsilon of the norms.
    context_length : tokens the model was trained with.
    score_scale : attention scores are multiplied by it.
    soft_cap, final_soft_cap : c tanh(x / c) of scores and of logits; 0 for none.
    clamp : q, k and v are limited to +-this; 0 for none.
    alibi_bias : largest slope exponent of linear biases, 0 without.
    embedding_scale, residual_scale, logit_scale : embeddings, what blocks add, and logits are multiplied by.
    temperature, experts, latent, ssm : or None.
    pooling : the file's pooling of hidden states: "mean", "cls", "last", "none", "rank" (scores of a
        classifier), or "" where the file does not say.
    labels : of a classifier, () where the file names none.
    unread : options that the file states and the architecture does not have.
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
    soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    clamp: float = 0.0
    alibi_bias: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    temperature: Temperature | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    recurrent: RecurrentSizes | None = None
    causal: bool = True
    pooling: str = ""
    labels: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def depends_on_context(self) -> bool:
        """Whether bits depend on the context that the model is run with: LongRoPE and dynamic NTK scaling."""
        return self.family.longrope or any(rope.kind in ("longrope", "dynamic") for rope in self.ropes)

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_kv_heads(self) -> int:
        """Key heads of the layer that has most."""
        return max(layer.n_kv_heads for layer in self.layers)

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers that keep keys and values."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.n_kv_heads)

    def each_layer(self, **changes: object) -> Spec:
        """The same with every layer changed."""
        return replace(self, layers=tuple(replace(layer, **changes) for layer in self.layers))  # type: ignore[arg-type]
