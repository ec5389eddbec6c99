"""The Gemma family: embeddings times sqrt(n_embd), gated GELU, norm weights stored with their 1, and from
version 2 on norms after the blocks, and windows on most layers."""

from __future__ import annotations

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS, AtLayers
from oxillama.models.registry import register

GEMMA = register(
    LLAMA.derive("gemma", rope="neox", routing=None, embedding_scale=0.0, activation="gelu", output="tied")
)


# The largest model of a generation has another score scale.
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
        at_layers=(AtLayers(46, score_scale="embd/heads"),),
    )
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
        at_layers=(AtLayers(62, score_scale="embd/heads"),),
    )
)

# An encoder; what follows the pooling is not there yet.
GEMMA_EMBEDDING = register(
    GEMMA3.derive(
        "gemma-embedding",
        centred_windows=True,
        causal=False,
        output="none",
        at_layers=(),
    )
)
