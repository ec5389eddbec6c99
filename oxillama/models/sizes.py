"""Sizes and numbers of parts that only some models have: experts, latent attention, recurrent layers, and
more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Xielu(NamedTuple):
    """Numbers of the activation xIELU: factors of the square, of the exponential and of x, and a bound of
    the exponent."""

    positive: float
    negative: float
    linear: float
    bound: float


class Situ(NamedTuple):
    """Numbers of the activation SiTU: bounds of gates and of ups, 0 for none."""

    gate: float
    up: float


@dataclass(frozen=True, repr=False)
class Experts:
    """Experts of a model: how many, the width of the shared one, and their choice (`Routing`).

    ``chunk_group`` experts have one chunk expert (`layers/chunk_experts.py`) of the width ``chunk_width``.
    """

    n_experts: int
    shared_width: int
    gating: str
    normalize: bool
    scale: float
    groups: int = 1
    groups_used: int = 1
    latent: int = 0
    chunk_group: int = 0
    chunk_width: int = 0
    chunk_scale: float = 1.0


@dataclass(frozen=True, repr=False)
class Latent:
    """Sizes of multi-head latent attention: keys and values of all heads come from one compressed vector.

    Attributes:
        q_rank: width of the compressed queries, 0 where queries are not compressed.
        kv_rank: width of the compressed vector of keys and values.
        key_dim, value_dim: of a head.
        rotated: last dimensions of a key, which all heads share and which rotate.
    """

    q_rank: int
    kv_rank: int
    key_dim: int
    value_dim: int
    rotated: int


@dataclass(frozen=True, repr=False)
class Selector:
    """Sizes of the selectors of positions or blocks (`layers/selector.py`, `layers/sparse_attention.py`).

    Attributes:
        n_heads, width: heads of its queries, and the width of a query head and of a key.
        n_chosen: positions, or blocks, that a row attends to, at most.
        neox: pairs (i, i + n_rot / 2) rotate, not (2i, 2i + 1).
        turns_last: the last dimensions rotate, not the first.
        epsilon: of the keys' norm.
        block: positions of a block, where whole blocks are chosen.
        local: newest blocks that always are.
    """

    n_heads: int
    width: int
    n_chosen: int
    neox: bool
    turns_last: bool = False
    epsilon: float = 1e-6
    block: int = 1
    local: int = 0


@dataclass(frozen=True, repr=False)
class RecurrentSizes:
    """Sizes of recurrent layers.

    Attributes:
        taps: tokens of a convolution.
        inner: channels.
        n: size of a channel's state.
        heads: of Mamba-2, RWKV and, of values, the delta rule; in Mamba the rank of dt.
        groups: of heads that share B and C, or q and k.
        interleaved: every ``groups``-th head is of the same group, not neighbours.
        norms: of Mamba's dt, B and C: "" none, "plain" without weights, "learned". "auto": RWKV's heads are
            normed if the file has the norm.
        ranks: of RWKV's low-rank matrices, by name.
        gate: activation of the gates of outputs in the delta rule with one decay.
        least_decay: lower bound of the logarithms of Kimi's decays, 0 for none.
        unit_eps: epsilon of the lengths of q and k in the delta rule, 0 for the epsilon of the norms.
    """

    taps: int
    inner: int
    n: int
    heads: int
    groups: int = 1
    interleaved: bool = False
    norms: str = ""
    ranks: dict[str, int] = field(default_factory=dict)
    gate: str = "silu"
    least_decay: float = 0.0
    unit_eps: float = 0.0


@dataclass(frozen=True, repr=False)
class Connections:
    """Streams of hidden states (`layers/hyper_connections.py`).

    Attributes:
        streams: how many.
        epsilon: is added to weights.
        magnitude: largest factor of a block's output, but for epsilon.
        rounds: divisions by sums of the matrix by which streams mix, 0 for no such matrix.
        has_head: the streams end as a weighted sum, not as their mean.
        rank: of the gates in `layers/gated_streams.py`.
        period: layers after which a state is banked (`layers/residual_attention.py`); ``streams`` are then
            the states of the bank and one more.
    """

    streams: int
    epsilon: float = 0.0
    magnitude: float = 2.0
    rounds: int = 0
    has_head: bool = True
    rank: int = 0
    period: int = 0


@dataclass(frozen=True, repr=False)
class Compression:
    """Sizes of attention to compressed blocks (`layers/compressed_attention.py`).

    Attributes:
        q_rank: width of the compressed queries.
        window: positions that a row sees uncompressed.
        groups, rank: of heads that go through a matrix each, and the rows of that.
    """

    q_rank: int
    window: int
    groups: int
    rank: int


@dataclass(frozen=True, repr=False)
class Ngrams:
    """Embeddings of n-grams (`layers/ngrams.py`).

    Attributes:
        layer: which adds them.
        size, heads: the longest n-gram, and heads that hash n-grams of one length.
        kernel: taps of the convolution.
        eos: the token behind which a text begins anew.
        width, rows: of the table.
        multipliers: of the tokens, the newest first, below 2^64.
        sizes, offsets: of each head, its rows of the table.
    """

    layer: int
    size: int
    heads: int
    kernel: int
    eos: int
    width: int
    rows: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def n_heads(self) -> int:
        """Heads of n-grams of all lengths."""
        return (self.size - 1) * self.heads


@dataclass(frozen=True, repr=False)
class Switch:
    """Adapters that tokens of the text choose (`layers/switch.py`).

    Attributes:
        activate, substitute: tokens that choose each adapter, and the tokens whose embeddings they have.
        rank: of the adapters.
        gain: absolute value of the scores by which the choice finds these tokens.
    """

    activate: tuple[int, ...]
    substitute: tuple[int, ...]
    rank: int
    gain: float


@dataclass(frozen=True, repr=False)
class Temperature:
    """Queries are multiplied by 1 + rate * ln(floor((position + offset) / length) + 1)."""

    rate: float
    length: int
    offset: int


@dataclass(frozen=True, repr=False)
class Decision:
    """How a model answers typed questions (`decision_heads.py`).

    Attributes:
        kind: of the head, as the file names it.
        temperatures: of a type of question ("choice"), or of one with so many options ("choice.3_5").
        n_blocks, routing_blocks: blocks of the head; blocks in which options read the prompt.
        heads, widths: attention heads and feed-forward widths of the head's blocks.
        head_tokens: maximum number of tokens of a question with its options; 0 for no such limit.
        eps: of the head's norms.
        pointer_width: of its output, where options are pointed at.
    """

    kind: str
    temperatures: tuple[tuple[str, float], ...]
    n_blocks: int
    routing_blocks: int
    heads: tuple[int, ...]
    widths: tuple[int, ...]
    head_tokens: int
    eps: float
    pointer_width: int
