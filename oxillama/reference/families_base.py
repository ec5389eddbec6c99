"""Facts that several architectures have in common (`families.py`)."""

from __future__ import annotations

from oxillama.reference.facts import Facts

WINDOW, PATTERN, LOCAL = (
    "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa",
)  # fmt: skip
EXPERT_WIDTH, SHARED_WIDTH = "expert_feed_forward_length", "expert_shared_feed_forward_length"
SCALES = ("embedding_scale", "residual_scale", "logit_scale", "attention.scale")
FINETUNED = "rope.scaling.finetuned"
LOCAL_TURNED, CLAMPS = "rope.dimension_count_swa", ("swiglu_clamp_exp", "swiglu_clamp_shexp")
TEMPERATURE = ("attention.temperature_scale", "attention.temperature_length")
CLAMP = ("attention.clamp_kqv",)
SECTIONS = "rope.dimension_sections"
SHARED_KV, LAYER_EMBEDDINGS = "attention.shared_kv_layers", "embedding_length_per_layer_input"
INDEXER_TYPES = "attention.indexer.types"
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"

PLAIN = Facts()
LLAMA = PLAIN.but(gating="softmax", window_period=0, options=(WINDOW, PATTERN))
NEOX = PLAIN.but(rope="neox")
QWEN3 = NEOX.but(qk_norm="head")
GEMMA = NEOX.but(activation="gelu", embedding_scale=0.0)
GEMMA2 = GEMMA.but(
    attn_post_norm="post_attention_norm", ffn_post_norm="post_ffw_norm", window=4096, window_period=2,
    soft_cap=50.0, final_soft_cap=30.0, layers_scaled_by_width=46,
    options=(WINDOW, PATTERN, LOCAL, "attention.scale", "attn_logit_softcapping", "final_logit_softcapping"),
)  # fmt: skip
GPT = PLAIN.but(rope="none", norm="layer", activation="gelu")
ROTATING = GPT.but(rope="neox")
GRANITE = PLAIN.but(gating="softmax", logit_divides=True, options=(*SCALES, SHARED_WIDTH))

COMMAND_R = GPT.but(
    rope="norm", activation="silu", residual="parallel", ffn_norm="", options=("logit_scale",)
)
QWEN3_NEXT = QWEN3.but(
    ffn_norm="post_attention_norm", recurrent="delta", interval=4, gated_queries=True, gating="softmax",
    shared_gate=True, options=(EXPERT_WIDTH, SHARED_WIDTH),
)  # fmt: skip
MAMBA = PLAIN.but(
    rope="none", ffn_norm="", recurrent="mamba", attends=False, feed_forward=False,
    options=("ssm.dt_b_c_rms",),
)  # fmt: skip
RWKV = PLAIN.but(
    rope="none", norm="layer", embd_norm=True, ffn_norm="attn_norm_2", recurrent="rwkv6", attends=False,
    options=("rescale_every_n_layers",),
)  # fmt: skip
SHARED_COUNT = ("expert_shared_count", "leading_dense_block_count")
DEEPSEEK = PLAIN.but(
    gating="softmax", normalize=False, options=(EXPERT_WIDTH, "expert_weights_scale"), ignores=SHARED_COUNT
)
STATED = (EXPERT_WIDTH, "expert_weights_scale", "expert_gating_func", "expert_weights_norm")
SPARSE = QWEN3.but(gating="softmax", normalize=False, options=STATED, ignores=SHARED_COUNT)
BEHIND = {
    "attn_norm": "", "ffn_norm": "", "attn_post_norm": "post_attention_norm",
    "ffn_post_norm": "post_ffw_norm",
}  # fmt: skip
SHORT = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b")
DEEPSEEK2 = DEEPSEEK.but(
    latent=True, unadapted=("attn_q", *SHORT, "output"), gain_on_scores=True,
    options=(*STATED, LOG_MULTIPLIER, *TEMPERATURE),
)  # fmt: skip

DEEPSEEK32 = DEEPSEEK2.but(
    selector="neox",
    unadapted=(*DEEPSEEK2.unadapted, "indexer.attn_q_b", "indexer.attn_k", "indexer.proj"),
)
GEMMA3 = GEMMA2.but(
    qk_norm="head", window=0, window_period=6, local_base=10000.0, soft_cap=0.0, final_soft_cap=0.0,
    layers_scaled_by_width=62, options=(WINDOW, PATTERN, LOCAL, "attention.scale", "final_logit_softcapping"),
)  # fmt: skip
GEMMA4 = GEMMA3.but(
    plain_windows=True, v_is_k=True, v_norm=True, score_scale=1.0, final_soft_cap=30.0, output_scale=True,
    gating="softmax", dense_beside="normed", unscaled=("ffn_gate_inp", "ffn_down_exps"),
    layers_scaled_by_width=0,
    options=(
        WINDOW, PATTERN, LOCAL, LOCAL_TURNED, EXPERT_WIDTH, SHARED_KV, LAYER_EMBEDDINGS,
        "attention.key_length_swa", "attention.value_length_swa", "final_logit_softcapping",
    ),
)  # fmt: skip
PHI3 = NEOX.but(window_period=0, listed_windows=True, longrope=True, options=(WINDOW, PATTERN))
NEMOTRON_H = PLAIN.but(
    rope="none", any_eps=True, recurrent="mamba2", single_blocks=True, ffn_norm="", feed_forward=False,
    activation="relu_squared",
)  # fmt: skip
BERT = PLAIN.but(
    encoder=True, classifier="cls", rope="none", positions=True, token_types=True, embd_norm=True,
    norm="layer", residual="post", attn_norm="", ffn_norm="", attn_post_norm="attn_output_norm",
    ffn_post_norm="layer_output_norm", output_norm="", activation="gelu",
)  # fmt: skip
JINA3 = BERT.but(rope="neox", positions=False)

GROUPED = QWEN3.but(gating="softmax", options=(EXPERT_WIDTH,))
RWKV_IN_QWEN = PLAIN.but(rope="none", recurrent="rwkv6", attends=False, dense_second=True)

KIMI = PLAIN.but(
    rope="none", latent=True, recurrent="kda", gating="softmax",
    options=(EXPERT_WIDTH, "expert_weights_scale", "expert_gating_func"),
    ignores=(*SHARED_COUNT, "expert_weights_norm"),
)  # fmt: skip

GLM5_NEXT = KIMI.but(
    unit_eps=1e-6, selector="pooled", streams="connected", gating="sigmoid", normalize=False,
    limits_gates=True, copies_limits=True, options=(*STATED, *CLAMPS, INDEXER_TYPES), ignores=SHARED_COUNT,
)  # fmt: skip
