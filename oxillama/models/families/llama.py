"""The llama family and its near relatives: RMS norms, rotary grouped-query attention, gated SiLU."""

from __future__ import annotations

import math
from dataclasses import replace

from oxillama.models.family import WINDOWS, Family, Routing
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.spec import Spec, Temperature

# Llama 1 to 3, Yi, Mixtral. The first Mistral has a window, which most files do not state.
LLAMA = Family("llama", routing=Routing())
register(LLAMA.derive("llama", options=WINDOWS[:2]))


def sharpen_by_length(spec: Spec, read: Reader) -> Spec:
    """Mistral 3: queries of all layers are scaled by log(position / original context)."""
    rate = read.amount("attention.temperature_scale")
    if not rate:
        return spec
    return replace(
        spec.each_layer(scaled_queries=True), temperature=Temperature(rate, spec.ropes[0].original_context, 0)
    )


MISTRAL3 = register(
    LLAMA.derive("mistral3", options=("attention.temperature_scale", "rope.scaling.yarn_log_multiplier")),
    sharpen_by_length,
)


def llama4_exceptions(spec: Spec, read: Reader) -> Spec:
    """Exceptions as in llama.cpp: a window of 0 turns chunks off, and the model with 128 experts has no head
    norms. Layers without rotation scale queries by their position."""
    family = spec.family
    if read.size("attention.sliding_window", 1, least=0) == 0:
        family = family.derive("llama4", chunk=0)
        spec = spec.each_layer(rope=0, chunk=0)
    else:
        layers = tuple(replace(layer, scaled_queries=layer.rope is None) for layer in spec.layers)
        spec = replace(spec, layers=layers, temperature=Temperature(0.1, family.chunk, 1))
    if spec.experts is not None and spec.experts.n_experts == 128:
        family = family.derive("llama4", qk_norm="")
    return replace(spec, family=family)


# Llama 4 has experts and two kinds of attention. Three layers of four rotate, norm q and k, and attend within
# chunks of 8192 positions. The fourth does none of that.
LLAMA4 = register(
    LLAMA.derive(
        "llama4",
        options=WINDOWS,
        routing=Routing(
            options=("expert_feed_forward_length", "interleave_moe_layer_step"),
            gating="sigmoid",
            normalize=False,
            shared_width="expert",
            scales_input=True,
        ),
        no_rope_every=4,
        window_period=4,
        chunk=8192,
        qk_norm="unit",
        qk_norm_last=True,
    ),
    llama4_exceptions,
)

SMOLLM3 = register(LLAMA.derive("smollm3", no_rope_every=4))
INTERNLM2 = register(LLAMA.derive("internlm2", output="own"))
EXAONE = register(LLAMA.derive("exaone", rope="neox"))


def granite_rotation(spec: Spec, read: Reader) -> Spec:
    """Granite states in ``rope.scaling.finetuned`` whether its layers rotate."""
    return spec if read.flag("rope.scaling.finetuned", True) else spec.each_layer(rope=None)


SCALES = ("embedding_scale", "residual_scale", "logit_scale")
GRANITE_OPTIONS = (*SCALES, "attention.scale")

GRANITE_MOE = register(
    LLAMA.derive(
        "granitemoe",
        options=GRANITE_OPTIONS,
        routing=Routing(options=("expert_shared_feed_forward_length",)),
        logit_scale="divides",
    )
)
GRANITE = register(
    GRANITE_MOE.derive("granite", options=(*GRANITE_OPTIONS, "rope.scaling.finetuned")), granite_rotation
)


def minicpm_scales(spec: Spec, read: Reader) -> Spec:
    """Defaults for older files, which do not state the scales."""
    if not read.has("logit_scale"):
        spec = replace(spec, logit_scale=spec.n_embd / 256)
    return replace(
        spec,
        embedding_scale=read.factor("embedding_scale", 12.0),
        residual_scale=read.factor("residual_scale", 1.4 / math.sqrt(spec.n_layers)),
    )


MINICPM = register(LLAMA.derive("minicpm", options=SCALES, logit_scale="divides"), minicpm_scales)


DBRX = register(
    LLAMA.derive(
        "dbrx",
        options=("attention.clamp_kqv",),
        rope="neox",
        norm="layer",
        ffn_norm="attn_output_norm",
        output="own",
        requires=("expert_count",),
    )
)


def grok_scores(spec: Spec, read: Reader) -> Spec:
    """Grok's own score scale, and defaults for older files, which do not state its numbers."""
    if read.has("router_logit_softcapping"):
        read.amount("router_logit_softcapping")  # checked, but unused, as in llama.cpp
    return replace(
        spec,
        score_scale=read.amount("attention.output_scale", 0.08838834764831845),
        embedding_scale=read.factor("embedding_scale", 78.38367176906169),
        logit_scale=read.factor("logit_scale", 0.5773502691896257),
        ropes=tuple(
            replace(rope, beta_fast=read.number("rope.scaling.yarn_beta_fast", 8.0)) for rope in spec.ropes
        ),
    )


GROK = register(
    LLAMA.derive(
        "grok",
        options=(
            "attention.output_scale",
            "attn_logit_softcapping",
            "embedding_scale",
            "final_logit_softcapping",
            "logit_scale",
            "rope.scaling.yarn_attn_factor",
            "rope.scaling.yarn_ext_factor",
            "router_logit_softcapping",
        ),
        requires=("expert_count",),
        rope="neox",
        activation="gelu",
        attn_post_norm=("attn_output_norm",),
        ffn_post_norm=("layer_output_norm", "post_ffw_norm"),
        soft_cap=30.0,
        routing=Routing(options=("expert_feed_forward_length",), beside_dense="scaled"),
    ),
    grok_scores,
)
