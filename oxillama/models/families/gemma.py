"""The Gemma family: embeddings times sqrt(n_embd), gated GELU, norm weights stored with their 1, and from
version 2 on norms after the blocks, and windows on most layers."""

from __future__ import annotations

import math
from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.spec import Spec

GEMMA = register(
    LLAMA.derive("gemma", rope="neox", routing=None, embedding_scale=0.0, activation="gelu", output="tied")
)


def largest_model(n_layers: int, spec: Spec, read: Reader) -> Spec:
    """The largest model of a generation scales scores by (n_embd / heads)^-0.5, not by key_dim^-0.5."""
    if spec.n_layers != n_layers or read.amount("attention.scale"):
        return spec
    return replace(spec, score_scale=1 / math.sqrt(spec.n_embd // spec.layers[0].n_heads))


def gemma2_scale(spec: Spec, read: Reader) -> Spec:
    return largest_model(46, spec, read)


def gemma3_scale(spec: Spec, read: Reader) -> Spec:
    return largest_model(62, spec, read)


GEMMA2 = register(
    GEMMA.derive(
        "gemma2",
        options=(*WINDOWS, "attention.scale", "attn_logit_softcapping", "final_logit_softcapping"),
        attn_post_norm=("post_attention_norm",),
        ffn_post_norm=("post_ffw_norm",),
        window=4096,
        window_period=2,
        soft_cap=50.0,
        final_soft_cap=30.0,
    ),
    gemma2_scale,
)

GEMMA3 = register(
    GEMMA2.derive(
        "gemma3",
        options=(*WINDOWS, "attention.scale", "final_logit_softcapping"),
        qk_norm="head",
        window=0,
        window_period=6,
        local_rope="unscaled",
        local_base=10000.0,
        soft_cap=0.0,
        final_soft_cap=0.0,
        output="auto",
    ),
    gemma3_scale,
)
