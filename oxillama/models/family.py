"""What holds for every model of an architecture, as data.

A family says how it differs from another: ``QWEN2 = register(LLAMA.derive("qwen2", rope="neox"))``. What is
built from it tests these facts, never names. Sizes and numbers come from a model's file (`spec.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxillama.models.metadata import Reader
    from oxillama.models.spec import Spec


@dataclass(frozen=True)
class Routing:
    """How the experts of a family are chosen and fed; metadata may say otherwise.

    Attributes
    ----------
    gating : "softmax" over all experts, "sigmoid" of each, or softmax over the "chosen".
    normalize : the chosen experts' weights are divided by their sum.
    width : of an expert where the file does not say: "ff", or "ff/used" for that over the experts a token
        takes.
    shared_width : of the expert that sees every token, where the file does not say: "" for no such expert,
        "ff", or "expert" for that of the others.
    shared_gate : a learned sigmoid scales the shared expert's output.
    scales_input : an expert's weight multiplies what goes into it, not what comes out.
    gated : experts have a gate.
    beside_dense : where a layer also has a dense block, both are added and multiplied by sqrt(1/2).
    """

    gating: str = "softmax"
    normalize: bool = True
    width: str = "ff"
    shared_width: str = ""
    shared_gate: bool = False
    scales_input: bool = False
    gated: bool = True
    beside_dense: bool = False


@dataclass(frozen=True)
class Family:
    """Facts of an architecture. The names of tensors lack "blk.<i>." and ".weight".

    Attributes
    ----------
    name : ``general.architecture``, the prefix of its metadata keys.
    options : of the metadata keys that not every family has (`OPTIONS` in `metadata.py`), those that it has.
    rope : "norm" rotates pairs (2i, 2i+1), "neox" pairs (i, i + n_rot/2), "none" nothing.
    longrope : ``rope_factors_long`` and ``_short`` are used whatever the file calls its scaling.
    local_rope : windowed layers rotate like the others ("same"), without any scaling ("plain"), or with
        that of magnitudes only ("unscaled").
    local_base : base of windowed layers' rotation where the file does not say; 0 for that of the others.
    rope_on_windows_only : layers without a window do not rotate.
    no_rope_every : every so many layers one does not rotate; 0 for none.
    norm : "rms" or "layer".
    norm_weight : norms have weights.
    norm_bias : they have biases: "no", "yes", or "maybe".
    residual : "sequential"; "parallel" (attention and feed-forward block see the same input); "post" (a norm
        follows each addition, as in the first transformers).
    attn_norm, ffn_norm : norms before the blocks, "" for none. Where there is no ``ffn_norm``, a parallel
        feed-forward block takes what attention takes.
    attn_post_norm, ffn_post_norm : norms after the blocks, before (or, "post", after) the addition: the first
        of the names that the file has; () for none.
    embd_norm : a norm of the embeddings.
    output_norm : name of the last norm, "" for none.
    mixer : "attention", "mla" with compressed keys and values, or the name of a recurrent one (`MIXERS` in
        `layer.py`).
    recurrent : the mixer of layers without key heads; "" where every layer must have some. If it is also
        ``mixer``, no layer attends, and the file need not tell of heads.
    feed : feed-forward block: "dense" (or experts), "" for none, or another of `FEEDS` in `layer.py`.
    qk_norm : norms of q and k: "", "head" (one weight for all heads), "heads" (each its own), "row" (over all
        heads at once), or "unit" (each head, without weights, after the rotation).
    qk_norm_optional : they are there if the file has them.
    sinks : each head has a logit that competes for attention and adds nothing.
    alibi_bias : largest slope exponent of attention with linear biases, 0 without.
    window, window_period : default window, and that every so many layers the last has none (0: all have it).
    chunk : instead of a window; such layers see no position before the last multiple of this. 0 for none.
    soft_cap, final_soft_cap : of attention scores and of logits where the file does not say; 0 for none.
    embedding_scale : of embeddings, 0 for the root of their width.
    logit_scale : the file's "multiplies" or "divides" logits.
    activation : by its name among the kernels'.
    gate : the feed-forward block has a gate and an up matrix ("pair"), both in one ("fused"), no gate
        ("none"), or whichever the file has ("either").
    routing : of experts, None where the family has none.
    positions : "no", "yes", or "maybe" learned position embeddings.
    token_types : the first row of a table of types is added to embeddings.
    causal : a position sees what is before it only.
    output : output matrix: "either" its own or the embedding table, "own", "tied", or "none" (an encoder).
    classifier : scoring head of rerankers, where the file has one: "" none, "cls" (dense layer, tanh and
        projection of the first token's hidden state), "last" (projection of the last token's, then softmax).
    adjust : the spec of one file, where its metadata have consequences that are not listed here.
    """

    name: str
    options: tuple[str, ...] = ()
    rope: str = "norm"
    longrope: bool = False
    local_rope: str = "same"
    local_base: float = 0.0
    rope_on_windows_only: bool = False
    no_rope_every: int = 0
    norm: str = "rms"
    norm_weight: bool = True
    norm_bias: str = "no"
    residual: str = "sequential"
    attn_norm: str = "attn_norm"
    ffn_norm: str = "ffn_norm"
    attn_post_norm: tuple[str, ...] = ()
    ffn_post_norm: tuple[str, ...] = ()
    embd_norm: bool = False
    output_norm: str = "output_norm"
    mixer: str = "attention"
    recurrent: str = ""
    feed: str = "dense"
    qk_norm: str = ""
    qk_norm_optional: bool = False
    sinks: bool = False
    alibi_bias: float = 0.0
    window: int = 0
    window_period: int = 0
    chunk: int = 0
    soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    embedding_scale: float = 1.0
    logit_scale: str = "multiplies"
    activation: str = "silu"
    gate: str = "pair"
    routing: Routing | None = None
    positions: str = "no"
    token_types: bool = False
    causal: bool = True
    output: str = "either"
    classifier: str = ""
    adjust: Callable[[Spec, Reader], Spec] | None = None

    def derive(self, name: str, **differences: object) -> Family:
        """The same, but for what is named."""
        return replace(self, name=name, **differences)  # type: ignore[arg-type]


FAMILIES: dict[str, Family] = {}

WINDOWS = ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")
"""Options of families that have windows on some layers."""


def register(family: Family) -> Family:
    """Makes an architecture loadable."""
    FAMILIES[family.name] = family
    return family
