"""Recurrent models, and hybrids with attention (`families.py`)."""

from __future__ import annotations

from oxillama.reference.facts import Facts
from oxillama.reference.families_base import (
    CLAMPS,
    EXPERT_WIDTH,
    FINETUNED,
    GLM5_NEXT,
    GRANITE,
    KIMI,
    LAYER_EMBEDDINGS,
    MAMBA,
    NEMOTRON_H,
    NEOX,
    PATTERN,
    PLAIN,
    QWEN3,
    QWEN3_NEXT,
    RWKV,
    RWKV_IN_QWEN,
    SECTIONS,
    SHARED_COUNT,
    SHARED_WIDTH,
    STATED,
    WINDOW,
)

RECURRENT: dict[str, Facts] = {
    "glm5-next": GLM5_NEXT,
    "glm5next": GLM5_NEXT,
    "qwen4exp": QWEN3_NEXT.but(
        interleaved=True, attn_norm="", ffn_norm="", output_norm="", delta_gate="sigmoid", blocked=True,
        streams="gated", options=(*QWEN3_NEXT.options, SECTIONS, LAYER_EMBEDDINGS),
    ),
    "kimi-k3": KIMI.but(
        activation="situ", attn_gate=True, streams="banked",
        renamed=(("ffn_latent_down", "ffn_routed_down"), ("ffn_latent_up", "ffn_routed_up")), normalize=False,
        options=(*STATED, "expert_latent_length"), ignores=SHARED_COUNT,
    ),
    "bailingmoe3": KIMI.but(
        rope="norm", sections="two", attn_gate=True, normalize=False,
        options=(*STATED, SHARED_WIDTH, SECTIONS, *CLAMPS), ignores=SHARED_COUNT,
    ),
    "minimax-01": NEOX.but(
        residual="normed", recurrent="lightning", interval=8, gating="softmax", options=("residual_scale",),
    ),
    "rwkv6qwen2": RWKV_IN_QWEN,
    "arwkv7": RWKV_IN_QWEN.but(recurrent="rwkv7"),
    "falcon-h1": NEOX.but(recurrent="mamba2", beside=True, unbiased=("attn_output",)),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H.but(
        gating="sigmoid", normalize=False,
        options=(EXPERT_WIDTH, SHARED_WIDTH, "expert_weights_norm", "expert_weights_scale"),
        ignores=("expert_gating_func", "expert_shared_count"),
    ),
    "kimi-linear": KIMI,
    "plamo2": NEOX.but(
        recurrent="plamo2", qk_norm="heads", attn_post_norm="post_attention_norm",
        ffn_post_norm="post_ffw_norm",
    ),
    "qwen3next": QWEN3_NEXT,
    "qwen35": QWEN3_NEXT.but(interleaved=True, gating=None, options=(SECTIONS,)),
    "clef": QWEN3_NEXT.but(interleaved=True, gating=None, options=(SECTIONS,)),
    "qwen35moe": QWEN3_NEXT.but(interleaved=True, options=(*QWEN3_NEXT.options, SECTIONS)),
    "rwkv6": RWKV,
    "rwkv7": RWKV.but(recurrent="rwkv7", options=()),
    "mamba": MAMBA,
    "mamba2": MAMBA.but(recurrent="mamba2", options=()),
    "jamba": PLAIN.but(
        rope="none", recurrent="mamba", gating="softmax", normalize=False, ignores=("ssm.dt_b_c_rms",),
    ),
    "granitehybrid": GRANITE.but(recurrent="mamba2", options=(*GRANITE.options, FINETUNED)),
    "lfm2": QWEN3.but(
        recurrent="shortconv", output_norm="token_embd_norm", window_period=0, options=(WINDOW,),
        ignores=(PATTERN,),
    ),
    "lfm2moe": QWEN3.but(
        recurrent="shortconv", output_norm="token_embd_norm", gating="softmax",
        options=(EXPERT_WIDTH, "expert_gating_func"), ignores=("leading_dense_block_count",),
    ),
}  # fmt: skip
