"""Encoders: attention both ways, norms after the additions, no output matrix, heads of rerankers."""

from __future__ import annotations

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import Routing
from oxillama.models.registry import register

BERT = register(
    LLAMA.derive(
        "bert",
        rope="none",
        positions="yes",
        token_types=True,
        embd_norm=True,
        norm="layer",
        norm_bias="yes",
        residual="post",
        attn_norm="",
        ffn_norm="",
        attn_post_norm=("attn_output_norm",),
        ffn_post_norm=("layer_output_norm",),
        output_norm="",
        gate="none",
        activation="gelu",
        routing=None,
        causal=False,
        output="none",
        classifier="cls",
    )
)

NOMIC_BERT = register(BERT.derive("nomic-bert", rope="neox", positions="no", gate="pair", activation="silu"))

NOMIC_BERT_MOE = register(
    BERT.derive(
        "nomic-bert-moe",
        rope="neox",
        positions="no",
        routing=Routing(options=("moe_every_n_layers",), normalize=False, gated=False),
    )
)

JINA_BERT_V2 = register(
    BERT.derive(
        "jina-bert-v2",
        positions="no",
        alibi_bias=8.0,
        gate="auto",
        qk_norm="row",
        qk_norm_optional=True,
    )
)
