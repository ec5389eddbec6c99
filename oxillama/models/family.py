"""The facts that all models of an architecture have in common, as data.

A family states how it differs from another: ``QWEN2 = LLAMA.variant("qwen2", rope="neox")``. The
code that builds a model tests these facts, never names. Sizes and numbers come from a model's file
(`read_spec.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from oxillama.models.metadata import EXPERT_OPTIONS, OPTIONS, Reader

Adjust = Callable[[Any, Reader], Any]
"""Changes the `Spec` of one file where its metadata have consequences that `Family` cannot state."""

RecurrentMixer = Literal[
    "mamba", "mamba2", "plamo2", "shortconv",
    "rwkv6", "rwkv6qwen2", "rwkv7",
    "delta", "kda", "lightning", "attention+mamba2",
    "pooled", "blocked", "compressed",
]  # fmt: skip
Mixer = Literal["attention", "mla", RecurrentMixer, "linear", "block", "sparse"]
FeedForwardKind = Literal["dense", "rwkv6", "rwkv7"]
Activation = Literal[
    "silu", "gelu", "gelu_erf", "gelu_quick", "relu", "relu_squared", "sigmoid", "tanh", "softplus", "exp",
    "erfc", "silu_clamped", "xielu", "situ",
]  # fmt: skip
"""Names of the kernels' activations, and of those in `layers/feed_forward.py`."""


@cache
def field_types(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    return get_type_hints(kind)


def check_fields(owner: str, facts: object) -> None:
    """Raises ValueError where a field of a dataclass holds a value of another type, or an unknown word."""
    for name, kind in field_types(type(facts)).items():  # type: ignore[arg-type]  # a class is hashable
        value, words = getattr(facts, name), get_args(kind)
        if get_origin(kind) is Literal:
            if value not in words:
                expected = ", ".join(map(repr, words))
                raise ValueError(f"{owner}.{name}: expected one of {expected}, got {value!r}")
        elif get_origin(kind) is tuple:
            part = get_origin(words[0]) or words[0]
            if not isinstance(value, tuple) or not all(isinstance(each, part) for each in value):
                expected = {str: "strings", tuple: "pairs of strings"}.get(part, part.__name__)
                raise ValueError(f"{owner}.{name}: expected a tuple of {expected}, got {value!r}")
        elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            expected = getattr(kind, "__name__", str(kind))
            raise ValueError(f"{owner}.{name}: expected {expected}, got {value!r}")


def check_options(owner: str, options: tuple[str, ...], known: frozenset[str], where: str) -> None:
    """Raises ValueError for options that are not among the ``known`` keys; ``where`` names these keys."""
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(f"{owner}.options: expected keys of {where}, got {unknown}")


@dataclass(frozen=True, repr=False)
class Routing:
    """How the experts of a family are chosen and fed; metadata may override these facts.

    Attributes:
        options: the keys of `EXPERT_OPTIONS` (`metadata.py`) that files of the family state.
        gating: an expert's weight: "softmax" of the logits of all experts, "sigmoid" or "sqrt_softplus" of
            each logit, or "softmax_after_topk", over the logits of the chosen experts only.
        normalize: the chosen experts' weights are divided by their sum.
        width: of an expert where the file does not state one: "ff" (the feed-forward width), or "ff/used"
            (the feed-forward width divided by the experts that a token uses).
        shared_width: width of the shared expert, which every token uses, where the file does not state one:
            "" for no such expert, "ff", "expert" (an expert's width, times the count of shared experts, or
            1), or "counted" (the same, and no such expert without a count).
        mean_with_shared: the sum of routed and shared experts is halved.
        shared_gate: the output of the shared expert is multiplied by a learned sigmoid.
        scales_input: an expert's weight multiplies its input, not its output.
        gated: experts have a gate matrix.
        beside_dense: a dense block in layers with experts: none, "" ; "scaled": if the file has one, the sum
            of both outputs is multiplied by sqrt(1/2); "normed": both norm their inputs and their outputs;
            "input": the experts read the layer's input, after the norm ``ffn_norm_exps``.
        bias: a number for each expert, ``exp_probs_b.bias``, is added to its weight for the choice alone:
            "no", "yes", or "auto" (if the file has it, with or without the ending ".bias").
        layers: with experts: as the file has "stated", or the layers with a "router" tensor.
        reads: input of the router: the block's, "normed"; the hidden state before the "layer"; or the state
            before the "block", normed without weights and multiplied by ``ffn_gate_inp.scale`` /
            sqrt(n_embd).
        scaled_outputs: each expert's output has a factor, ``ffn_down_exps.scale``.
        chunks: smaller experts, one for each group of experts, follow (`layers/chunk_experts.py`).
        shared_gate_up: gate and up matrices of the shared expert are one tensor.

    Raises:
        ValueError: a field holds an unknown word, or a value of another type.
    """

    options: tuple[str, ...] = ()
    gating: Literal["softmax", "sigmoid", "softmax_after_topk", "sqrt_softplus"] = "softmax"
    normalize: bool = True
    width: Literal["ff", "ff/used"] = "ff"
    shared_width: Literal["", "ff", "expert", "counted"] = ""
    mean_with_shared: bool = False
    shared_gate: bool = False
    scales_input: bool = False
    gated: bool = True
    beside_dense: Literal["", "scaled", "normed", "input"] = ""
    bias: Literal["no", "yes", "auto"] = "auto"
    layers: Literal["stated", "router"] = "stated"
    reads: Literal["normed", "layer", "block"] = "normed"
    scaled_outputs: bool = False
    chunks: bool = False
    shared_gate_up: bool = False

    def __post_init__(self) -> None:
        check_fields("Routing", self)
        check_options("Routing", self.options, EXPERT_OPTIONS, "metadata.EXPERT_OPTIONS")


@dataclass(frozen=True, repr=False)
class Only:
    """A metadata key that files of a family may leave out, or state with one of these values."""

    key: str
    values: tuple[object, ...]


class AtLayers:
    """Facts of the models of a family that have from ``least`` to ``most`` layers.

    >>> AtLayers(64, qk_norm="heads")  # only with 64 layers
    >>> AtLayers(64, None, qk_norm="heads")  # with 64 layers or more

    Files do not state such facts; the original code tells its models apart by their number of layers.
    """

    def __init__(self, least: int, most: int | None = -1, **differences: Any) -> None:
        self.least = least
        self.most: int | None = least if most == -1 else most
        self.differences = differences

    def __contains__(self, n_layers: int) -> bool:
        return n_layers >= self.least and (self.most is None or n_layers <= self.most)

    def __repr__(self) -> str:
        return f"AtLayers({self.least}, {self.most}, {self.differences})"


@dataclass(frozen=True, repr=False)
class Family:
    """Facts of an architecture. Names of tensors are given without "blk.<i>." and ".weight".

    "auto" means that it depends on the tensors of the file.

    Attributes:
        name: ``general.architecture``, the prefix of its metadata keys.
        options: those keys of `OPTIONS` (`metadata.py`) that files of the family state; options of experts
            are listed in its `Routing`.
        requires: keys that every file must state, and with another value than 0.
        states: keys that every file must state, whatever their values.
        only: keys that files may state with some values only.
        ignored_keys: keys of other families' options that files state, and that have no effect in the family.
        ignores: tensors that files may have and the model does not use, as patterns of `fnmatch`:
            "attn_output.bias", "nextn.*". Other unused tensors cause a warning.
        needs: tensors that every layer must have.
        refuses: tensors that files must not have, as patterns.
        next_token: what a block that drafts reads (`models/next_token.py`): the last "states" or "streams".
        at_layers: facts of the models with so many layers.
        rope: pairs that rotate: "norm" (2i, 2i + 1), "neox" (i, i + n_rot / 2), or "none".
        whole_rotation: files that rotate a part of a head are refused.
        longrope: ``rope_factors_long`` and ``_short`` are used whatever the file calls its scaling.
        local_rope: windowed layers rotate like the others ("same"), without any scaling ("plain"), or with
            the scaling of magnitudes only ("unscaled").
        local_base: rotary base of windowed layers if the file does not state one; 0 for the other layers'
            base.
        rope_on_windows_only: layers without a window do not rotate.
        no_rope_every: every n-th layer does not rotate; 0 for none.
        norm: "rms", "layer", or "stated": "rms" in files with an epsilon of such norms.
        any_epsilon: files may state the epsilon of RMS norms under the key of layer norms.
        norm_weight: norms have weights.
        norm_bias: norms have biases: "no", "yes" or "auto".
        residual: "sequential"; "parallel" (attention and the feed-forward block have the same input); "post"
            (a norm follows each addition, as in the first transformers); "auto" ("sequential" with an
            ``ffn_norm``, "parallel" without); "chained" (the feed-forward block reads the normed output of
            attention alone); "normed" (a block's normed input, times the residual scale, is added to its
            output alone).
        attn_norm, ffn_norm: norms before the blocks, "" for none. Without an ``ffn_norm``, a parallel
            feed-forward block has the input of attention.
        optional_norms: norms that the first layer may lack; its block then has the hidden state as its input.
        attn_post_norm, ffn_post_norm: norms after the blocks, before (or, "post", after) the addition: the
            first of the names that the file has; () for none.
        post_norm_eps: epsilon of the norms after the blocks, 0 for the file's.
        sub_norms: the inputs of ``attn_output`` and ``ffn_down`` are normed by ``attn_sub_norm``,
            ``ffn_sub_norm``.
        embd_norm: a norm of the embeddings.
        plain_embd_norm: it has no weights.
        output_norm: name of the last norm, "" for none.
        mixer: token mixer of a layer: "attention", "mla" (multi-head latent attention), "attention+mamba2"
            (the sum of both for the same input), or a recurrent one.
        joined_input: the input of attention has another row of the same width beside it (EAGLE-3).
        idle_layers: layers may have no query heads, and then no token mixer; a layer without a feed-forward
            width changes nothing.
        recurrent_mixer: token mixer of layers without key heads; "" where every layer has key heads. Equal to
            ``mixer`` where no layer attends; the file need not state heads then.
        feed_forward: "dense" (or experts), "" for no such block, or the block of an RWKV version.
        qk_norm: norms of q and k: "" none, "head" (one weight for all heads), "heads" (a weight for each),
            "row" (over all heads at once), "unit" (of each head, without weights), "gain" (the same, and each
            head of q has a factor), or "layer" ("heads" as layer norms with their own epsilon, and with
            biases if the file has them).
        qk_norm_last: those norms come after the rotation; layers that do not rotate have none then.
        qk_norm_optional: those norms are used if the file has them.
        sinks: each head has one more logit in its softmax, without a value: "no", "yes", or "auto" (where the
            file has them).
        v_is_k: in layers without a matrix of v, v is k before its norm and its rotation.
        v_norm: each head of v is normed, without weights.
        attn_gate: each attended value is multiplied by the ``gate_activation`` of a gate that reads the
            block's input: one gate for each "head", or for each of its "elements", in ``attn_gate``, or, as
            the tensor has it, one of both, "auto"; or "query", for each element, where ``attn_q`` has the
            rows of a head's query and then the rows of its gate (Qiu et al., "Gated Attention", 2025); "" for
            none.
        attn_gate_optional: those gates are used if the file has them.
        gate_activation: of those gates; "softplus2" is log2(1 + 2^g).
        relative_bias: scores have a learned bias by the distance of the positions, as in T5.
        alibi_bias: largest slope exponent of attention with linear biases, 0 without.
        window, window_period: default window, and n where one layer of n has none (0: all layers have it).
        full_layer: which layer of n that is, the "last" or the "first".
        score_scale: of attention: key_dim^-0.5, "embd/heads": (n_embd / heads)^-0.5, "1/key_dim", or "one";
            the file may state it.
        centred_windows: a position attends to those at most half a window before or after it.
        chunk: replaces the window: a position attends to none before the last multiple of this. 0 for none.
        soft_cap, final_soft_cap: of attention scores and of logits, unless the file states one; 0 for none.
        embedding_scale: factor of embeddings, 0 for sqrt(n_embd).
        adds_embedding: after each layer its factor ``layer_output_scale`` times the first layer's input is
            added.
        text_only: the model does not take pictures and sounds here.
        hidden_tokens: the first of the tokens that are never predicted, and the one behind the last; () for
            none.
        logit_scale: the file's number "multiplies" or "divides" logits.
        activation: one of the kernels' activations.
        limits: gates that the file limits are limited "after" or "before" their activation.
        gate: the feed-forward block has a gate and an up matrix ("pair"), both in one tensor ("fused"), no
            gate ("none"), or any of these ("auto").
        routing: of experts, None where the family has none.
        positions: learned position embeddings: "no", "yes" or "auto".
        per_layer_table: that embedding is the sum of a table's row and a projection, not the projection
            alone.
        per_layer_input: each layer adds a gated projection of an embedding of its own (Gemma 3n).
        streams: of hidden states: "" for one; "altup", four, of which a layer runs one, and predicts and
            corrects all (Gemma 3n); "connected" (`layers/hyper_connections.py`); "gated"
            (`layers/gated_streams.py`); or "banked" (`layers/residual_attention.py`).
        output_scale: the hidden state after a layer has a factor, ``layer_output_scale``, if the file has it.
        token_types: the first row of a table of token types is added to embeddings.
        causal: a position attends to no later one.
        output: output matrix: its "own", its own that may be the table of embeddings, too ("both"), the
            embedding table ("tied"), either ("auto"), or "none" (an encoder).
        token_projection: an encoder's last hidden states are multiplied by ``output``.
        classifier: head of rerankers, where the file has one: "" none, "cls" (dense layer, tanh and
            projection of the first token's hidden state), "last" (projection of the last token's, then
            softmax).
        projections: matrices that files may have for pooled hidden states, one after the other.
        block_prefix: before the names of a layer's tensors: "enc." for "enc.blk.0.attn_q.weight".
        renamed: pairs of a tensor's usual name and its name in the family's files.
        unadapted: matrices that LoRA adapters do not change, because llama.cpp multiplies them without
            adapters.

    Raises:
        ValueError: a field holds an unknown word, or a value of another type.
    """

    name: str
    options: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    only: tuple[Only, ...] = ()
    ignored_keys: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    next_token: str = ""
    at_layers: tuple[AtLayers, ...] = ()
    rope: Literal["norm", "neox", "none"] = "norm"
    whole_rotation: bool = False
    longrope: bool = False
    local_rope: Literal["same", "plain", "unscaled"] = "same"
    local_base: float = 0.0
    rope_on_windows_only: bool = False
    no_rope_every: int = 0
    norm: Literal["rms", "layer", "stated"] = "rms"
    any_epsilon: bool = False
    norm_weight: bool = True
    norm_bias: Literal["no", "yes", "auto"] = "no"
    residual: Literal["sequential", "parallel", "post", "auto", "chained", "normed"] = "sequential"
    attn_norm: str = "attn_norm"
    ffn_norm: str = "ffn_norm"
    optional_norms: tuple[str, ...] = ()
    attn_post_norm: tuple[str, ...] = ()
    ffn_post_norm: tuple[str, ...] = ()
    post_norm_eps: float = 0.0
    sub_norms: bool = False
    embd_norm: bool = False
    plain_embd_norm: bool = False
    output_norm: str = "output_norm"
    mixer: Mixer = "attention"
    joined_input: bool = False
    idle_layers: bool = False
    recurrent_mixer: Literal["", RecurrentMixer] = ""
    feed_forward: Literal["", FeedForwardKind] = "dense"
    qk_norm: Literal["", "head", "heads", "row", "unit", "gain", "layer"] = ""
    qk_norm_last: bool = False
    qk_norm_optional: bool = False
    sinks: Literal["no", "yes", "auto"] = "no"
    v_is_k: bool = False
    v_norm: bool = False
    attn_gate: Literal["", "head", "elements", "query", "auto"] = ""
    attn_gate_optional: bool = False
    gate_activation: Literal["sigmoid", "softplus", "softplus2"] = "sigmoid"
    relative_bias: bool = False
    alibi_bias: float = 0.0
    window: int = 0
    window_period: int = 0
    full_layer: Literal["last", "first"] = "last"
    score_scale: Literal["key_dim", "embd/heads", "1/key_dim", "one"] = "key_dim"
    centred_windows: bool = False
    chunk: int = 0
    soft_cap: float = 0.0
    final_soft_cap: float = 0.0
    embedding_scale: float = 1.0
    adds_embedding: bool = False
    text_only: bool = False
    hidden_tokens: tuple[int, ...] = ()
    logit_scale: Literal["multiplies", "divides"] = "multiplies"
    activation: Activation = "silu"
    limits: Literal["after", "before"] = "after"
    gate: Literal["pair", "fused", "none", "auto"] = "pair"
    routing: Routing | None = None
    positions: Literal["no", "yes", "auto"] = "no"
    per_layer_input: bool = False
    per_layer_table: bool = True
    streams: Literal["", "altup", "connected", "gated", "banked"] = ""
    output_scale: bool = False
    token_types: bool = False
    causal: bool = True
    output: Literal["auto", "own", "both", "tied", "none"] = "auto"
    token_projection: bool = False
    classifier: Literal["", "cls", "last"] = ""
    projections: tuple[str, ...] = ()
    block_prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    unadapted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        owner = self.name or "Family"
        check_fields(owner, self)
        known = OPTIONS - EXPERT_OPTIONS
        check_options(owner, self.options, known, "metadata.OPTIONS that are no EXPERT_OPTIONS")
        both = sorted({*self.all_options} & {*self.ignored_keys})
        if both:
            raise ValueError(f"{owner}.ignored_keys: expected keys that are no options of it, got {both}")
        check_options(f"{owner}.ignored_keys", self.ignored_keys, OPTIONS, "metadata.OPTIONS")
        unread = sorted(
            (OPTIONS & {*self.requires, *self.states, *(each.key for each in self.only)})
            - set(self.all_options)
        )
        if unread:
            raise ValueError(
                f"{owner}.requires, only: expected keys that are among its options, got {unread}"
            )
        for case in self.at_layers:
            self.derive(f"{owner}.at_layers", at_layers=(), **case.differences)

    @property
    def all_options(self) -> tuple[str, ...]:
        """The options of the family and of its experts."""
        return self.options + (self.routing.options if self.routing else ())

    def with_layers(self, n_layers: int) -> Family:
        """The facts of its models with so many layers."""
        found = self
        for case in self.at_layers:
            if n_layers in case:
                found = replace(found, **case.differences)
        return found

    def derive(self, name: str, **differences: Any) -> Family:
        """A family with another name and these differences. Raises ValueError as `Family` does."""
        known = {field.name for field in fields(self)}
        unknown = sorted(differences.keys() - known)
        if unknown:
            raise ValueError(f"{name}: expected fields of Family ({', '.join(sorted(known))}), got {unknown}")
        return replace(self, name=name, **differences)

    def variant(self, name: str, *, adjust: Adjust | None = None, **differences: Any) -> Family:
        """Derives a family and registers it. Raises ValueError as `Family` and `register` do."""
        return register(self.derive(name, **differences), adjust)


REGISTERED: dict[str, Family] = {}
ADJUSTMENTS: dict[str, Adjust] = {}


def register(family: Family, adjust: Adjust | None = None) -> Family:
    """Makes an architecture loadable; ``adjust`` runs on the spec of each of its files.

    Raises:
        ValueError: the architecture is registered already.
    """
    if family.name in REGISTERED:
        raise ValueError(f"{family.name}: registered twice")
    REGISTERED[family.name] = family
    if adjust is not None:
        ADJUSTMENTS[family.name] = adjust
    return family


WINDOWS = ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")
"""Options of families that have windows on some layers."""
