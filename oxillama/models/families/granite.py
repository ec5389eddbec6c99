"""Relatives of llama whose files state factors: Granite, MiniCPM, Grok; and DBRX."""

from __future__ import annotations

import math
from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec


def granite_rotation(spec: Spec, read: Reader) -> Spec:
    """Granite states in ``rope.scaling.finetuned`` whether its layers rotate."""
    return spec if read.flag("rope.scaling.finetuned", True) else spec.each_layer(rope=None)


SCALES = ("embedding_scale", "residual_scale", "logit_scale")
GRANITE_OPTIONS = (*SCALES, "attention.scale")

GRANITE_MOE = LLAMA.variant(
    "granitemoe", options=GRANITE_OPTIONS, routing=Routing(options=("expert_shared_feed_forward_length",)),
    logit_scale="divides",
)  # fmt: skip
GRANITE = GRANITE_MOE.variant(
    "granite", options=(*GRANITE_OPTIONS, "rope.scaling.finetuned"), adjust=granite_rotation
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


MINICPM = LLAMA.variant("minicpm", options=SCALES, logit_scale="divides", adjust=minicpm_scales)


DBRX = LLAMA.variant(
    "dbrx", options=("attention.clamp_kqv",), rope="neox", norm="layer", ffn_norm="attn_output_norm",
    output="own", requires=("expert_count",),
)  # fmt: skip


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


GROK = LLAMA.variant(
    "grok",
    options=(
        "attention.output_scale", "attn_logit_softcapping", "embedding_scale", "final_logit_softcapping",
        "logit_scale", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor",
        "router_logit_softcapping",
    ),
    requires=("expert_count",), rope="neox", activation="gelu", attn_post_norm=("attn_output_norm",),
    ffn_post_norm=("layer_output_norm", "post_ffw_norm"), soft_cap=30.0,
    routing=Routing(options=("expert_feed_forward_length",), beside_dense="scaled"), adjust=grok_scores,
)  # fmt: skip
