"""Decoders with experts, in some files at least (`families.py`)."""

from __future__ import annotations

from oxillama.reference.facts import Facts
from oxillama.reference.families_base import (
    CLAMP,
    CLAMPS,
    COMMAND_R,
    DEEPSEEK,
    DEEPSEEK2,
    DEEPSEEK32,
    EXPERT_WIDTH,
    FINETUNED,
    GEMMA4,
    GRANITE,
    GROUPED,
    INDEXER_TYPES,
    LLAMA,
    LOCAL,
    LOCAL_TURNED,
    LOG_MULTIPLIER,
    NEOX,
    PATTERN,
    PHI3,
    PLAIN,
    QWEN3,
    SCALES,
    SECTIONS,
    SHARED_COUNT,
    SHARED_WIDTH,
    SPARSE,
    STATED,
    TEMPERATURE,
    WINDOW,
)

WITH_EXPERTS: dict[str, Facts] = {
    "mellum": GROUPED.but(
        window_period=4, plain_windows=True, options=(EXPERT_WIDTH, WINDOW, PATTERN), ignores=(LOCAL,),
    ),
    "deepseek4": PLAIN.but(
        compressed=True, streams="connected", gating="sqrt_softplus", normalize=False, limits_gates=True,
        copies_limits=True, skips=("exp_probs_b_vl.bias",), options=(*STATED, WINDOW, *CLAMPS),
        ignores=("hash_layer_count", *SHARED_COUNT),
    ),
    "minimax-m3": QWEN3.but(
        activation="silu_clamped", sparse=True, gating="softmax", normalize=False, options=STATED,
        ignores=SHARED_COUNT,
    ),
    "k2-horizon": NEOX.but(
        grouped_norms=True, qk_norm="heads", attn_gate=True, gate_activation="softplus2",
        optional=("qk_norm", "attn_gate"), gating="sigmoid", normalize=False, options=(*STATED, SHARED_WIDTH),
        ignores=(*SHARED_COUNT, "moe_every_n_layers"),
    ),
    "hy_v3": QWEN3.but(
        gating="sigmoid", normalize=False, options=(*STATED, SHARED_WIDTH), ignores=SHARED_COUNT,
    ),
    "cohere2moe": COMMAND_R.but(
        norm="stated", window_period=4, full_first=True, rope_on_windows_only=True, dense_turn=True,
        gating="sigmoid", normalize=False, mean_with_shared=True,
        options=("logit_scale", WINDOW, PATTERN, *STATED), ignores=(*SHARED_COUNT, LOCAL),
    ),
    "dots3note": PLAIN.but(
        latent=True, local_latent=True, selector="neox", qk_norm="head", attn_gate=True, window_period=0,
        gating="softmax", normalize=False,
        options=(*STATED, WINDOW, PATTERN, LOCAL, "attention.key_length_swa", "attention.value_length_swa"),
        ignores=(*SHARED_COUNT, INDEXER_TYPES),
    ),
    "hy_v4": PLAIN.but(
        latent=True, selector="last", attn_gate=True, sinks=True, streams="connected", gating="softmax",
        normalize=False, limits_gates=True, options=(*STATED, CLAMPS[0], INDEXER_TYPES), ignores=SHARED_COUNT,
    ),
    "laguna": SPARSE.but(
        gating="sigmoid", attn_gate=True, gate_activation="softplus", window_period=4, full_first=True,
        plain_windows=True, options=(*STATED, SHARED_WIDTH, WINDOW, PATTERN, LOCAL, LOCAL_TURNED),
    ),
    "maple": GROUPED.but(
        window_period=0, rope_on_windows_only=True, limits_gates=True,
        options=(EXPERT_WIDTH, WINDOW, PATTERN, LOCAL, CLAMPS[0]),
    ),
    "bailingmoe": PLAIN.but(
        gating="softmax", normalize=False,
        options=(EXPERT_WIDTH, "expert_weights_norm", "expert_weights_scale"), ignores=SHARED_COUNT,
    ),
    "grovemoe": GROUPED.but(chunks=True, options=(EXPERT_WIDTH, "expert_group_scale")),
    "arctic": PLAIN.but(gating="softmax", dense_beside="input"),
    "deepseek2-ocr": DEEPSEEK.but(rope="neox", fixed_base=10000.0, gain_on_scores=True, options=STATED),
    "phimoe": PHI3.but(gating="softmax", window_period=None, options=()),
    "smallthinker": NEOX.but(
        gating="softmax", reads_layer=True, activation="relu", window=4096, window_period=4, full_first=True,
        fixed_window=True, options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH, "expert_gating_func"),
    ),
    "granite_swa": GRANITE.but(
        sinks=True, window_period=0,
        options=(*SCALES, SHARED_WIDTH, WINDOW, PATTERN, "attention.rope_pattern"), ignores=(LOCAL,),
    ),
    "llama4": PLAIN.but(
        gating="sigmoid", normalize=False, scales_input=True, no_rope_every=4, window_period=4, chunk=8192,
        still_grow=0.1, qk_norm="unit", qk_norm_last=True, options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH),
        ignores=("interleave_moe_layer_step", "expert_shared_count"),
    ),
    "step35": QWEN3.but(
        gating="sigmoid", normalize=False, optional=("qk_norm", "attn_gate"), attn_gate=True,
        half_turned=True, window_period=0, plain_windows=True, local_base=10000.0,
        options=(*STATED, SHARED_WIDTH, WINDOW, PATTERN, LOCAL, *CLAMPS, LOCAL_TURNED), ignores=SHARED_COUNT,
    ),
    "grok": NEOX.but(
        gating="softmax", activation="gelu", attn_post_norm="attn_output_norm", ffn_post_norm="post_ffw_norm",
        ffn_post_norm_optional="layer_output_norm", soft_cap=30.0, dense_beside="scaled",
        embedding_scale=78.38367176906169, score_scale=0.08838834764831845, logit_scale=0.5773502691896257,
        beta_fast=8.0,
        options=(
            "attention.output_scale", "attn_logit_softcapping", "embedding_scale", "final_logit_softcapping",
            "logit_scale", EXPERT_WIDTH,
        ),
        ignores=("router_logit_softcapping",),
    ),
    "mimo2": NEOX.but(
        gating="sigmoid", sinks=True, optional=("sinks",), window_period=0, plain_windows=True,
        local_base=10000.0, unbiased=("attn_q", "attn_k", "attn_v", "attn_qkv"),
        options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH, "attention.value_scale"),
    ),
    "afmoe": SPARSE.but(
        gating="sigmoid", embedding_scale=0.0, attn_post_norm="post_attention_norm",
        ffn_post_norm="post_ffw_norm", window_period=4, no_rope_every=4, attn_gate=True,
        options=(*STATED, WINDOW, PATTERN, LOCAL),
    ),
    "llama": LLAMA,
    "qwen3vlmoe": QWEN3.but(interleaved=True, gating="softmax", options=(EXPERT_WIDTH, SECTIONS)),
    "ernie4_5-moe": PLAIN.but(
        gating="softmax", unbiased=("attn_output",), options=(EXPERT_WIDTH, SHARED_WIDTH),
        ignores=(*SHARED_COUNT, "interleave_moe_layer_step"),
    ),
    "mistral3": PLAIN.but(gating="softmax", options=(TEMPERATURE[0], LOG_MULTIPLIER)),
    "minicpm": PLAIN.but(
        longrope=True, gating="softmax", embedding_scale=12.0, residual_depth=1.4, logit_width=256,
        logit_divides=True, options=SCALES[:3],
    ),
    "dots1": SPARSE,
    "glm4moe": SPARSE.but(
        ffn_norm="post_attention_norm", optional=("qk_norm",), gating="sigmoid", sections="two",
        options=(*STATED, SECTIONS),
    ),
    "bailingmoe2": SPARSE.but(options=(*STATED, SHARED_WIDTH)),
    "exaone-moe": SPARSE.but(
        window_period=4, rope_on_windows_only=True, options=(*STATED, SHARED_WIDTH, WINDOW, PATTERN),
        ignores=(*SHARED_COUNT, LOCAL),
    ),
    "hunyuan-moe": QWEN3.but(
        qk_norm_last=True, gating="softmax", options=(SHARED_WIDTH,),
        ignores=(EXPERT_WIDTH, "expert_shared_count"),
    ),
    "minimax-m2": NEOX.but(
        qk_norm="row", gating="softmax", options=("expert_gating_func",), ignores=(EXPERT_WIDTH,),
    ),
    "granite": GRANITE.but(options=(*GRANITE.options, FINETUNED)),
    "granitemoe": GRANITE.but(ignores=(FINETUNED,)),
    "qwen2moe": NEOX.but(
        gating="softmax", normalize=False, shared_gate=True,
        options=(EXPERT_WIDTH, SHARED_WIDTH, "expert_weights_norm"),
    ),
    "qwen3moe": QWEN3.but(gating="softmax", options=(EXPERT_WIDTH,)),
    "gemma4": GEMMA4,
    "gpt-oss": NEOX.but(
        ffn_norm="post_attention_norm", sinks=True, window_period=2, activation="silu_clamped",
        gating="chosen", normalize=False, options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH),
    ),
    "olmoe": NEOX.but(
        qk_norm="row", gating="softmax", normalize=False, options=(*CLAMP, "expert_weights_norm"),
    ),
    "deepseek": DEEPSEEK,
    "deepseek2": DEEPSEEK2,
    "mistral4": DEEPSEEK2,
    "deepseek32": DEEPSEEK32,
    "glm-dsa": DEEPSEEK32.but(
        selector="norm", gating="sigmoid", options=(*DEEPSEEK32.options, INDEXER_TYPES),
    ),
    "dbrx": NEOX.but(norm="layer", ffn_norm="attn_output_norm", gating="softmax", options=CLAMP),
}  # fmt: skip
