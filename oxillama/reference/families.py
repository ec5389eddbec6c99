"""What each architecture computes, stated apart from the tables in `oxillama.models.families`."""

from __future__ import annotations

from oxillama.reference.facts import Facts

WINDOW, PATTERN, LOCAL = (
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base_swa",
)
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
    attn_post_norm="post_attention_norm",
    ffn_post_norm="post_ffw_norm",
    window=4096,
    window_period=2,
    soft_cap=50.0,
    final_soft_cap=30.0,
    layers_scaled_by_width=46,
    options=(WINDOW, PATTERN, LOCAL, "attention.scale", "attn_logit_softcapping", "final_logit_softcapping"),
)
GPT = PLAIN.but(rope="none", norm="layer", activation="gelu")
ROTATING = GPT.but(rope="neox")
GRANITE = PLAIN.but(gating="softmax", logit_divides=True, options=(*SCALES, SHARED_WIDTH))

COMMAND_R = GPT.but(
    rope="norm", activation="silu", residual="parallel", ffn_norm="", options=("logit_scale",)
)
QWEN3_NEXT = QWEN3.but(
    ffn_norm="post_attention_norm",
    recurrent="delta",
    gated_queries=True,
    gating="softmax",
    shared_gate=True,
    options=(EXPERT_WIDTH, SHARED_WIDTH),
)
MAMBA = PLAIN.but(
    rope="none",
    ffn_norm="",
    recurrent="mamba",
    attends=False,
    feed_forward=False,
    options=("ssm.dt_b_c_rms",),
)
RWKV = PLAIN.but(
    rope="none",
    norm="layer",
    embd_norm=True,
    ffn_norm="attn_norm_2",
    recurrent="rwkv6",
    attends=False,
    options=("rescale_every_n_layers",),
)
SHARED_COUNT = ("expert_shared_count", "leading_dense_block_count")
DEEPSEEK = PLAIN.but(
    gating="softmax", normalize=False, options=(EXPERT_WIDTH, "expert_weights_scale"), ignores=SHARED_COUNT
)
STATED = (EXPERT_WIDTH, "expert_weights_scale", "expert_gating_func", "expert_weights_norm")
SPARSE = QWEN3.but(gating="softmax", normalize=False, options=STATED, ignores=SHARED_COUNT)
BEHIND = {
    "attn_norm": "",
    "ffn_norm": "",
    "attn_post_norm": "post_attention_norm",
    "ffn_post_norm": "post_ffw_norm",
}
SHORT = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b")
DEEPSEEK2 = DEEPSEEK.but(
    latent=True,
    unadapted=("attn_q", *SHORT, "output"),
    gain_on_scores=True,
    options=(*STATED, LOG_MULTIPLIER, *TEMPERATURE),
)

DEEPSEEK32 = DEEPSEEK2.but(
    selector="neox",
    unadapted=(*DEEPSEEK2.unadapted, "indexer.attn_q_b", "indexer.attn_k", "indexer.proj"),
)
GEMMA3 = GEMMA2.but(
    qk_norm="head",
    window=0,
    window_period=6,
    local_base=10000.0,
    soft_cap=0.0,
    final_soft_cap=0.0,
    layers_scaled_by_width=62,
    options=(WINDOW, PATTERN, LOCAL, "attention.scale", "final_logit_softcapping"),
)
GEMMA4 = GEMMA3.but(
    plain_windows=True,
    v_is_k=True,
    v_norm=True,
    score_scale=1.0,
    final_soft_cap=30.0,
    output_scale=True,
    gating="softmax",
    dense_beside="normed",
    unscaled=("ffn_gate_inp", "ffn_down_exps"),
    layers_scaled_by_width=0,
    options=(
        WINDOW,
        PATTERN,
        LOCAL,
        LOCAL_TURNED,
        EXPERT_WIDTH,
        SHARED_KV,
        LAYER_EMBEDDINGS,
        "attention.key_length_swa",
        "attention.value_length_swa",
        "final_logit_softcapping",
    ),
)
PHI3 = NEOX.but(window_period=0, listed_windows=True, longrope=True, options=(WINDOW, PATTERN))
NEMOTRON_H = PLAIN.but(
    rope="none",
    any_eps=True,
    recurrent="mamba2",
    single_blocks=True,
    ffn_norm="",
    feed_forward=False,
    activation="relu_squared",
)
BERT = PLAIN.but(
    encoder=True,
    rope="none",
    positions=True,
    token_types=True,
    embd_norm=True,
    norm="layer",
    residual="post",
    attn_norm="",
    ffn_norm="",
    attn_post_norm="attn_output_norm",
    ffn_post_norm="layer_output_norm",
    output_norm="",
    activation="gelu",
)
JINA3 = BERT.but(rope="neox", positions=False)

FAMILIES: dict[str, Facts] = {
    "bert": BERT,
    "jina-bert-v2": BERT.but(positions=False, alibi=8.0, qk_norm="row", optional=("qk_norm",)),
    "jina-bert-v3": JINA3,
    "nomic-bert": JINA3.but(activation="silu"),
    "nomic-bert-moe": JINA3.but(gating="softmax", normalize=False, ignores=("moe_every_n_layers",)),
    "phi3": PHI3,
    "phimoe": PHI3.but(gating="softmax", window_period=None, options=()),
    "smallthinker": NEOX.but(
        gating="softmax",
        reads_layer=True,
        activation="relu",
        window=4096,
        window_period=4,
        full_first=True,
        fixed_window=True,
        options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH, "expert_gating_func"),
    ),
    "granite_swa": GRANITE.but(
        sinks=True,
        window_period=0,
        options=(*SCALES, SHARED_WIDTH, WINDOW, PATTERN, "attention.rope_pattern"),
        ignores=(LOCAL,),
    ),
    "falcon-h1": NEOX.but(recurrent="mamba2", beside=True, unbiased=("attn_output",)),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H.but(
        gating="sigmoid",
        normalize=False,
        options=(EXPERT_WIDTH, SHARED_WIDTH, "expert_weights_norm", "expert_weights_scale"),
        ignores=("expert_gating_func", "expert_shared_count"),
    ),
    "llama4": PLAIN.but(
        gating="sigmoid",
        normalize=False,
        scales_input=True,
        no_rope_every=4,
        window_period=4,
        chunk=8192,
        still_grow=0.1,
        qk_norm="unit",
        qk_norm_last=True,
        options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH),
        ignores=("interleave_moe_layer_step", "expert_shared_count"),
    ),
    "step35": QWEN3.but(
        gating="sigmoid",
        normalize=False,
        optional=("qk_norm", "attn_gate"),
        attn_gate=True,
        half_turned=True,
        window_period=0,
        plain_windows=True,
        local_base=10000.0,
        options=(*STATED, SHARED_WIDTH, WINDOW, PATTERN, LOCAL, *CLAMPS, LOCAL_TURNED),
        ignores=SHARED_COUNT,
    ),
    "kimi-linear": PLAIN.but(
        rope="none",
        latent=True,
        recurrent="kda",
        gating="softmax",
        options=(EXPERT_WIDTH, "expert_weights_scale", "expert_gating_func"),
        ignores=(*SHARED_COUNT, "expert_weights_norm"),
    ),
    "plamo2": NEOX.but(
        recurrent="plamo2",
        qk_norm="heads",
        attn_post_norm="post_attention_norm",
        ffn_post_norm="post_ffw_norm",
    ),
    "grok": NEOX.but(
        gating="softmax",
        activation="gelu",
        attn_post_norm="attn_output_norm",
        ffn_post_norm="post_ffw_norm",
        ffn_post_norm_optional="layer_output_norm",
        soft_cap=30.0,
        dense_beside="scaled",
        embedding_scale=78.38367176906169,
        score_scale=0.08838834764831845,
        logit_scale=0.5773502691896257,
        beta_fast=8.0,
        options=(
            "attention.output_scale",
            "attn_logit_softcapping",
            "embedding_scale",
            "final_logit_softcapping",
            "logit_scale",
            EXPERT_WIDTH,
        ),
        ignores=("router_logit_softcapping",),
    ),
    "t5encoder": PLAIN.but(
        encoder=True,
        rope="none",
        distance_biases=True,
        activation="gelu",
        output_norm="enc.output_norm",
        block_prefix="enc.",
        renamed=(("attn_output", "attn_o"),),
    ),
    "apertus": QWEN3.but(longrope=True, activation="xielu", unbiased=("attn_q_norm", "attn_k_norm")),
    "mimo2": NEOX.but(
        gating="sigmoid",
        sinks=True,
        optional=("sinks",),
        window_period=0,
        plain_windows=True,
        local_base=10000.0,
        unbiased=("attn_q", "attn_k", "attn_v", "attn_qkv"),
        options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH, "attention.value_scale"),
    ),
    "neo-bert": PLAIN.but(encoder=True, output_norm="enc.output_norm"),
    "eurobert": NEOX.but(encoder=True),
    "modern-bert": NEOX.but(
        encoder=True,
        norm="layer",
        optional=("attn_norm",),
        embd_norm=True,
        activation="gelu",
        window_period=3,
        full_first=True,
        centred_windows=True,
        plain_windows=True,
        local_base=10000.0,
        options=(WINDOW, PATTERN, LOCAL),
    ),
    "gemma-embedding": GEMMA3.but(encoder=True, centred_windows=True, layers_scaled_by_width=0),
    "plamo3": QWEN3.but(
        attn_post_norm="post_attention_norm",
        ffn_post_norm="post_ffw_norm",
        window_period=8,
        plain_windows=True,
        local_base=10000.0,
        options=(WINDOW, PATTERN, LOCAL),
    ),
    "afmoe": SPARSE.but(
        gating="sigmoid",
        embedding_scale=0.0,
        attn_post_norm="post_attention_norm",
        ffn_post_norm="post_ffw_norm",
        window_period=4,
        no_rope_every=4,
        attn_gate=True,
        options=(*STATED, WINDOW, PATTERN, LOCAL),
    ),
    "llama": LLAMA,
    "internlm2": PLAIN,
    "smollm3": PLAIN.but(no_rope_every=4),
    "exaone": NEOX,
    "qwen": NEOX,
    "qwen2vl": NEOX.but(sections="always", eps=1e-30, options=(SECTIONS,)),
    "qwen3vl": QWEN3.but(interleaved=True, options=(SECTIONS,)),
    "qwen3vlmoe": QWEN3.but(interleaved=True, gating="softmax", options=(EXPERT_WIDTH, SECTIONS)),
    "openelm": QWEN3,
    "ernie4_5": PLAIN.but(unbiased=("attn_output",)),
    "paddleocr": PLAIN.but(unbiased=("attn_output",), sections="always", options=(SECTIONS,)),
    "ernie4_5-moe": PLAIN.but(
        gating="softmax",
        unbiased=("attn_output",),
        options=(EXPERT_WIDTH, SHARED_WIDTH),
        ignores=(*SHARED_COUNT, "interleave_moe_layer_step"),
    ),
    "mistral3": PLAIN.but(gating="softmax", options=(TEMPERATURE[0], LOG_MULTIPLIER)),
    "minicpm": PLAIN.but(
        longrope=True,
        gating="softmax",
        embedding_scale=12.0,
        residual_depth=1.4,
        logit_width=256,
        logit_divides=True,
        options=SCALES[:3],
    ),
    "baichuan": PLAIN.but(rope="none", at_layers=((32, {"rope": "norm"}), (40, {"alibi": 8.0}))),
    "codeshell": ROTATING,
    "jais2": ROTATING.but(activation="relu_squared"),
    "gptneox": ROTATING.but(residual="stated"),
    "olmo2": NEOX.but(
        qk_norm="row",
        window_period=4,
        plain_windows=True,
        options=(WINDOW, PATTERN),
        ignores=(LOCAL,),
        **BEHIND,
    ),
    "exaone4": QWEN3.but(
        ignores=(WINDOW, PATTERN, LOCAL),
        at_layers=(
            (
                64,
                {
                    "window": 4096,
                    "window_period": 4,
                    "rope_on_windows_only": True,
                    "options": (WINDOW, PATTERN),
                    "ignores": (LOCAL,),
                },
            ),
        ),
        **BEHIND,
    ),
    "dots1": SPARSE,
    "glm4moe": SPARSE.but(
        ffn_norm="post_attention_norm",
        optional=("qk_norm",),
        gating="sigmoid",
        sections="two",
        options=(*STATED, SECTIONS),
    ),
    "bailingmoe2": SPARSE.but(options=(*STATED, SHARED_WIDTH)),
    "exaone-moe": SPARSE.but(
        window_period=4,
        rope_on_windows_only=True,
        options=(*STATED, SHARED_WIDTH, WINDOW, PATTERN),
        ignores=(*SHARED_COUNT, LOCAL),
    ),
    "hunyuan-moe": QWEN3.but(
        qk_norm_last=True,
        gating="softmax",
        options=(SHARED_WIDTH,),
        ignores=(EXPERT_WIDTH, "expert_shared_count"),
    ),
    "minimax-m2": NEOX.but(
        qk_norm="row", gating="softmax", options=("expert_gating_func",), ignores=(EXPERT_WIDTH,)
    ),
    "arcee": PLAIN.but(activation="relu_squared"),
    "xverse": PLAIN,
    "granite": GRANITE.but(options=(*GRANITE.options, FINETUNED)),
    "granitemoe": GRANITE.but(ignores=(FINETUNED,)),
    "qwen2": NEOX,
    "qwen2moe": NEOX.but(
        gating="softmax",
        normalize=False,
        shared_gate=True,
        options=(EXPERT_WIDTH, SHARED_WIDTH, "expert_weights_norm"),
    ),
    "qwen3": QWEN3,
    "qwen3moe": QWEN3.but(gating="softmax", options=(EXPERT_WIDTH,)),
    "qwen3next": QWEN3_NEXT,
    "qwen35": QWEN3_NEXT.but(interleaved=True, gating=None, options=(SECTIONS,)),
    "qwen35moe": QWEN3_NEXT.but(interleaved=True, options=(*QWEN3_NEXT.options, SECTIONS)),
    "hunyuan-dense": QWEN3.but(qk_norm_last=True),
    "seed_oss": NEOX.but(ffn_norm="post_attention_norm"),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3n": GEMMA4.but(
        window_period=5,
        v_is_k=False,
        output_scale=False,
        streams=True,
        gating=None,
        dense_beside="",
        own_kv=20,
        cut_gates=(10, 1.6448533535003662),
        options=(
            WINDOW,
            PATTERN,
            LOCAL,
            SHARED_KV,
            LAYER_EMBEDDINGS,
            "activation_sparsity_scale",
            "final_logit_softcapping",
        ),
    ),
    "gemma4": GEMMA4,
    "phi2": ROTATING.but(residual="parallel", ffn_norm=""),
    "command-r": COMMAND_R,
    "cohere2": COMMAND_R.but(
        window_period=4, rope_on_windows_only=True, options=("logit_scale", WINDOW, PATTERN)
    ),
    "gpt2": GPT.but(positions=True),
    "starcoder": GPT.but(positions=True),
    "starcoder2": ROTATING.but(window_period=0, options=(WINDOW,)),
    "falcon": ROTATING.but(residual="parallel", ffn_norm=""),
    "bloom": GPT.but(embd_norm=True, alibi=8.0),
    "mpt": GPT.but(qk_norm="row", optional=("qk_norm",), options=(*CLAMP, "attention.max_alibi_bias")),
    "nemotron": ROTATING.but(activation="relu_squared"),
    "orion": ROTATING.but(activation="silu"),
    "stablelm": ROTATING.but(activation="silu", residual="auto", qk_norm="heads", optional=("qk_norm",)),
    "gpt-oss": NEOX.but(
        ffn_norm="post_attention_norm",
        sinks=True,
        window_period=2,
        activation="silu_clamped",
        gating="chosen",
        normalize=False,
        options=(WINDOW, PATTERN, LOCAL, EXPERT_WIDTH),
    ),
    "olmo": PLAIN.but(norm="layer", norm_weight=False, options=CLAMP),
    "olmoe": NEOX.but(
        qk_norm="row", gating="softmax", normalize=False, options=(*CLAMP, "expert_weights_norm")
    ),
    "chatglm": PLAIN,
    "glm4": PLAIN.but(
        sections="two",
        options=(SECTIONS,),
        attn_post_norm="post_attention_norm",
        ffn_post_norm="post_ffw_norm",
    ),
    "rwkv6": RWKV,
    "rwkv7": RWKV.but(recurrent="rwkv7", options=()),
    "mamba": MAMBA,
    "mamba2": MAMBA.but(recurrent="mamba2", options=()),
    "jamba": PLAIN.but(rope="none", recurrent="mamba", gating="softmax", normalize=False),
    "granitehybrid": GRANITE.but(recurrent="mamba2", options=(*GRANITE.options, FINETUNED)),
    "lfm2": QWEN3.but(
        recurrent="shortconv", output_norm="token_embd_norm", window_period=0, options=(WINDOW,)
    ),
    "deepseek": DEEPSEEK,
    "deepseek2": DEEPSEEK2,
    "mistral4": DEEPSEEK2,
    "deepseek32": DEEPSEEK32,
    "glm-dsa": DEEPSEEK32.but(
        selector="norm", gating="sigmoid", options=(*DEEPSEEK32.options, INDEXER_TYPES)
    ),
    "minicpm3": NEOX.but(
        latent=True,
        longrope=True,
        embedding_scale=12.0,
        residual_depth=1.4,
        logit_width=256,
        unadapted=SHORT,
    ),
    "lfm2moe": QWEN3.but(
        recurrent="shortconv",
        output_norm="token_embd_norm",
        gating="softmax",
        options=(EXPERT_WIDTH, "expert_gating_func"),
        ignores=("leading_dense_block_count",),
    ),
    "dbrx": NEOX.but(norm="layer", ffn_norm="attn_output_norm", gating="softmax", options=CLAMP),
}
"""Facts by ``general.architecture``."""
