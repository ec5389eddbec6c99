"""DeepSeek: many small experts with shared ones, and from version 2 on latent attention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from oxillama.models.families.llama import FACTORS, LLAMA
from oxillama.models.family import Family, Routing
from oxillama.models.metadata import Reader
from oxillama.models.rope import Rope, log_of, read_rope
from oxillama.models.sizes import Latent, Selector, Temperature
from oxillama.models.spec import Spec

MANY_EXPERTS = (
    "expert_feed_forward_length", "expert_shared_count", "expert_weights_scale", "leading_dense_block_count",
)  # fmt: skip
STATED = (*MANY_EXPERTS, "expert_gating_func", "expert_weights_norm")


def expert_limits(spec: Spec, read: Reader, shared: str = "none") -> Spec:
    """Limits of the gates of routed experts, and of shared experts and dense blocks: "none", the
    "stated" ones, or, without these, a "copy"."""
    n, key = spec.n_layers, "swiglu_clamp_shexp"
    routed = read.amounts("swiglu_clamp_exp", n)
    others = [0.0] * n if shared == "none" else read.amounts(key, n)
    if shared == "copy" and not read.has(key):
        others = routed
    return spec.with_layers(expert_limit=routed, limit=others)


DEEPSEEK = LLAMA.variant(
    "deepseek",
    requires=("expert_count",),
    routing=Routing(options=MANY_EXPERTS, normalize=False, shared_width="expert"),
)


def whole_turns(spec: Spec, read: Reader) -> Spec:
    """The text model of DeepSeek-OCR rotates whole heads from a fixed base, whatever its scaling. As in
    llama.cpp, a scaling changes the scores, as it does in DeepSeek 2."""
    is_usual = read.number("rope.freq_base", 10000.0) == 10000.0
    read.expect(is_usual, "rope.freq_base", "10000 or no such key", "another number")
    read.expect(spec.key_dim % 2 == 0, "attention.key_length", "an even number", spec.key_dim)
    stated = read_rope(read, True, spec.key_dim, spec.context_length)
    gain = read.number("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * log_of(stated.factor))
    spec = with_gain(spec, read, gain, stated.factor)
    return replace(spec.each_layer(rope=0), ropes=(Rope(spec.key_dim, True, 10000.0),))


def with_gain(spec: Spec, read: Reader, gain: float, factor: float) -> Spec:
    """Scores times gain^2, which follows from the ``factor`` of a rotation."""
    read.expect(gain > 0, "rope.scaling.factor", "a factor with a score scale above 0", factor)
    return replace(spec, score_scale=spec.score_scale * gain * gain)


DEEPSEEK_OCR = DEEPSEEK.variant(
    "deepseek2-ocr",
    requires=("expert_count", "expert_shared_count"),
    rope="none",  # the one of `whole_turns`
    refuses=FACTORS,
    routing=Routing(options=STATED, normalize=False, shared_width="expert"),
    adjust=whole_turns,
)

LATENT_MATRICES = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b")


def latent_sizes(spec: Spec, read: Reader) -> Spec:
    """Newer files state the sizes of a head in keys of their own, older files in the keys of attention."""
    latent = Latent(
        q_rank=read.size("attention.q_lora_rank", 0, least=0),
        kv_rank=read.size("attention.kv_lora_rank"),
        key_dim=read.size("attention.key_length_mla", 0, least=0) or spec.key_dim,
        value_dim=read.size("attention.value_length_mla", 0, least=0) or spec.value_dim,
        rotated=spec.ropes[0].n_rot if spec.ropes else read.size("rope.dimension_count", least=0),
    )
    first = min(spec.attending, default=0)
    if latent.q_rank and f"blk.{first}.attn_q.weight" in read.file.tensors:
        latent = replace(latent, q_rank=0)  # some small models state an unused rank
    most = f"an even number below {latent.key_dim}"
    read.expect(latent.rotated < latent.key_dim, "rope.dimension_count", most, latent.rotated)
    spec = spec.with_layers(n_kv_heads=[min(layer.n_kv_heads, 1) for layer in spec.layers])
    scale = read.amount("attention.scale") or 1 / math.sqrt(latent.key_dim)
    return replace(spec, latent=latent, score_scale=scale)


def deepseek2_numbers(spec: Spec, read: Reader) -> Spec:
    """DeepSeek applies YaRN's magnitude to the scores instead of the rotation.

    Its ``yarn_log_multiplier`` is a tenth of other families', as in llama.cpp.
    """
    spec = latent_sizes(spec, read)
    rope = spec.ropes[0]
    stretch = log_of(rope.factor)
    plain = read.number("rope.scaling.attn_factor", 1.0)
    k = read.factor("rope.scaling.yarn_log_multiplier", 0.0)
    magnitude = plain if rope.mix and k else rope.magnitude
    gain = plain * (1 + k * stretch) * (1.0 if rope.mix and k else 1 + 0.1 * stretch)
    spec = with_gain(spec, read, gain, rope.factor)
    rate = read.amount("attention.temperature_scale")
    if rate:
        length = read.size("attention.temperature_length")
        spec = replace(spec.each_layer(scaled_queries=True), temperature=Temperature(rate, length, 0))
    experts = spec.experts
    if (
        experts
        and spec.n_layers in (47, 48)
        and spec.n_vocab == 154880
        and not read.has("expert_gating_func")
    ):
        experts = replace(experts, gating="sigmoid")  # files of GLM 4.7 Flash do not state it
    ropes = tuple(replace(rope, magnitude=magnitude) for rope in spec.ropes)
    return replace(spec, ropes=ropes, experts=experts)


DEEPSEEK2 = DEEPSEEK.variant(
    "deepseek2",
    options=(
        "attention.temperature_length", "attention.temperature_scale", "rope.scaling.yarn_log_multiplier",
    ),
    requires=(), routing=Routing(options=STATED, normalize=False, shared_width="expert"), mixer="mla",
    unadapted=("attn_q", *LATENT_MATRICES, "output"), adjust=deepseek2_numbers,
)  # fmt: skip


# Mistral's large model is DeepSeek 2 in every respect.
MISTRAL4 = DEEPSEEK2.variant("mistral4", adjust=deepseek2_numbers)


SELECTOR_MATRICES = ("indexer.attn_q_b", "indexer.attn_k", "indexer.proj")


def read_selector(
    spec: Spec, read: Reader, rotated: int, n_chosen: int | None = None, **more: Any
) -> Selector:
    """The sizes of selectors.

    Args:
        rotated: dimensions of their keys that rotate.
        n_chosen: None for the file's number.
        more: other fields of `Selector`.
    """
    found = Selector(
        n_heads=read.size("attention.indexer.head_count"),
        width=read.size("attention.indexer.key_length"),
        n_chosen=n_chosen or read.size("attention.indexer.top_k"),
        **more,
    )
    least = f"at least the {rotated} dimensions that rotate"
    read.expect(found.width >= rotated, "attention.indexer.key_length", least, found.width)
    read.expect(spec.causal, "attention.causal", "true beside selectors", "false")
    return found


def with_selectors(spec: Spec, read: Reader, neox: bool, has_own: list[bool], **more: Any) -> Spec:
    """Selectors of positions, which the layers without their own share with the last one before them.

    Args:
        neox, more: how their queries and keys rotate, and what else `read_selector` takes.
        has_own: of each layer; only layers that attend to all positions have or share one.
    """
    assert spec.latent is not None
    selector = read_selector(spec, read, spec.latent.rotated if spec.ropes else 0, neox=neox, **more)
    has_rank, key = spec.latent.q_rank, "attention.q_lora_rank"
    read.expect(has_rank, key, "compressed queries beside a selector", "none")
    selecting = [layer.n_kv_heads > 0 and layer.latent is None for layer in spec.layers]
    if not any(selecting):
        return spec
    has_first, key = has_own[selecting.index(True)], "attention.indexer.types"
    read.expect(has_first, key, "a selector (true) in the first layer", "false")
    has_own = [own and selects for own, selects in zip(has_own, selecting)]
    layers, last = [], 0
    for i, layer in enumerate(spec.layers):
        last = i if has_own[i] else last
        layers.append(replace(layer, selected_by=last) if selecting[i] else layer)
    shared = {f"blk.{i}.indexer" for i, own in enumerate(has_own) if not own}
    unused = (name for name in read.file.tensors if name.rpartition(".indexer.")[0] + ".indexer" in shared)
    return replace(spec, layers=tuple(layers), selector=selector, ignored=(*spec.ignored, *unused))


def deepseek32_numbers(spec: Spec, read: Reader) -> Spec:
    """Every layer has a selector."""
    return with_selectors(deepseek2_numbers(spec, read), read, True, [True] * spec.n_layers)


LONG_GLM = 1 << 20
"""The training context of GLM-5.2, whose files do not state which layers have selectors."""


def glm_dsa_numbers(spec: Spec, read: Reader) -> Spec:
    """Files may state which layers have selectors; without that all have one, but in GLM-5.2."""
    n, key = spec.n_layers, "attention.indexer.types"
    if read.has(key):
        has_own = [bool(kind) for kind in read.per_layer(key, n, least=0)]
    else:
        has_own = [spec.context_length < LONG_GLM or i < 2 or i % 4 == 2 for i in range(n)]
    return with_selectors(deepseek2_numbers(spec, read), read, False, has_own)


SELECTOR_KEYS = tuple(f"attention.indexer.{key}" for key in ("head_count", "key_length", "top_k"))
# From version 3.2 on attention has a selector of positions, with keys of its own.
DEEPSEEK32 = DEEPSEEK2.variant(
    "deepseek32", options=(*DEEPSEEK2.options, *SELECTOR_KEYS), requires=("attention.q_lora_rank",),
    unadapted=(*DEEPSEEK2.unadapted, *SELECTOR_MATRICES), adjust=deepseek32_numbers,
)  # fmt: skip
GLM_DSA = DEEPSEEK32.variant(
    "glm-dsa",
    options=(*DEEPSEEK32.options, "attention.indexer.types"),
    routing=Routing(options=STATED, gating="sigmoid", normalize=False, shared_width="expert"),
    adjust=glm_dsa_numbers,
)


def minicpm3_scales(spec: Spec, read: Reader) -> Spec:
    """Constants of the model's code, which files do not state."""
    return replace(
        latent_sizes(spec, read),
        embedding_scale=12.0,
        residual_scale=1.4 / math.sqrt(spec.n_layers),
        logit_scale=256 / spec.n_embd,
    )


# PLM: keys and values of all heads come from a latent vector, the feed-forward block squares its activations.
PLM = LLAMA.variant(
    "plm", mixer="mla", gate="none", activation="relu_squared", routing=None, output="tied",
    refuses=(*FACTORS, "output.weight"), unadapted=("attn_q", *LATENT_MATRICES), adjust=latent_sizes,
)  # fmt: skip

MINICPM3: Family = LLAMA.variant(
    "minicpm3", rope="neox", longrope=True, mixer="mla", routing=None, unadapted=LATENT_MATRICES,
    adjust=minicpm3_scales,
)  # fmt: skip
