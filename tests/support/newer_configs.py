"""Configs as published, for models of a few numbers that `transformers` can make."""

from __future__ import annotations

from typing import Any

from tests.support import huggingface as hf

MAMBA_2 = "linear_attention"
LOCAL, GLOBAL = "sliding_attention", "full_attention"
SIZES: dict[str, Any] = {
    **hf.SIZES, "num_hidden_layers": 4, "head_dim": 8, "vocab_size": hf.N_VOCAB, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}  # fmt: skip
DEEPSEEK = {
    "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}
QWEN = {
    "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}  # fmt: skip
LINEAR = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6, "linear_conv_kernel_dim": 3, **PARTIAL,
    "rms_norm_eps": 1e-6,  # equal to the constant in the norm of q and k, for which GGUF has no key
}  # fmt: skip
LFM2 = {
    "layer_types": ["conv", "full_attention", "conv", "full_attention"], "conv_L_cache": 3, "norm_eps": 1e-3,
    "rms_norm_eps": None,
}  # fmt: skip
GRANITE = {
    "attention_multiplier": 0.3, "embedding_multiplier": 2.0, "residual_multiplier": 0.7,
    "logits_scaling": 3.0,
}  # fmt: skip
MAMBA = {
    "layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_expand": 2, "mamba_d_conv": 4,
    "shared_intermediate_size": 20,
}  # fmt: skip

NARROW: dict[str, Any] = {
    "q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10,
    "head_dim": 4, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,  # as the norms of compressed vectors have, whatever the config says
}  # fmt: skip
LATENT = {**NARROW, **DEEPSEEK}
SELECTOR = {"index_topk": 9, "index_n_heads": 8, "index_head_dim": 64}
YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip

GEMMA: dict[str, Any] = {
    "num_hidden_layers": 8, "hidden_act": "gelu_pytorch_tanh", "sliding_window": 6, "rope_theta": None,
    "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": hf.N_VOCAB, "rope_parameters": None,
    "layer_types": [LOCAL, LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL, LOCAL, GLOBAL],
    "num_kv_shared_layers": 3, "final_logit_softcapping": 3.0,
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    **GEMMA, "global_head_dim": 16,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 50.0},
    },
}  # fmt: skip
GEMMA4_EXPERTS: dict[str, Any] = {
    **GEMMA4, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True,
    "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 3,
    "moe_intermediate_size": 24,
}  # fmt: skip
GEMMA3N: dict[str, Any] = {
    **GEMMA, "num_hidden_layers": 6, "laurel_rank": 8, "num_kv_shared_layers": 2,
    "layer_types": 2 * [LOCAL, LOCAL, GLOBAL],
    "activation_sparsity_pattern": [0.95, 0.9, 0.0, 0.0, 0.0, 0.0],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
}  # fmt: skip

FALCON: dict[str, Any] = {
    "mamba_d_ssm": 48, "mamba_n_heads": 4, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 8,
    "rope_theta": None, "embedding_multiplier": 2.0, "lm_head_multiplier": 0.3, "key_multiplier": 0.7,
    "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6, "mlp_multipliers": [1.4, 0.5], "ssm_multipliers": [0.9, 0.8, 1.1, 1.2, 0.7],
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    "ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "num_hidden_layers": None,
    "rope_theta": None, "rope_parameters": None, "rms_norm_eps": None, "hidden_act": None,
    "layer_norm_epsilon": 1e-3,
}  # fmt: skip
NEMOTRON_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 20, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5,
}  # fmt: skip

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip

SPECIFIC: dict[str, tuple[str, str, dict[str, Any]]] = {
    "smollm3": ("SmolLM3", "smollm3", {}),
    "arcee": ("Arcee", "arcee", {"hidden_act": "relu2"}),
    "seed_oss": ("SeedOss", "seed_oss", {}),
    "ernie4_5": ("Ernie4_5", "ernie4_5", {}),
    "hunyuan": ("HunYuanDenseV1", "hunyuan_v1_dense", {}),
    "hunyuan-alpha": (
        "HunYuanDenseV1", "hunyuan_v1_dense",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0}},
    ),
    "glm4": ("Glm4", "glm4", {**PARTIAL, "attention_bias": True}),
    "granite": ("Granite", "granite", {**GRANITE, "attention_bias": False}),
    "glm4_moe": ("Glm4Moe", "glm4_moe", {**DEEPSEEK, **PARTIAL, "attention_bias": True, "use_qk_norm": True}),
    "glm4_moe-groups": ("Glm4Moe", "glm4_moe", {**DEEPSEEK, **PARTIAL, "n_group": 3, "topk_group": 2}),
    "dots1": ("Dots1", "dots1", DEEPSEEK),
    "ernie4_5_moe": (
        "Ernie4_5_Moe", "ernie4_5_moe",
        {
            "moe_num_experts": 5, "moe_k": 3, "moe_intermediate_size": 24, "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1, "use_bias": False,
        },
    ),
    "hunyuan_moe": (
        "HunYuanMoEV1", "hunyuan_v1_moe", {"num_experts": 5, "moe_topk": 3, "num_shared_expert": 1},
    ),
    "minimax_m2": ("MiniMaxM2", "minimax_m2", {"num_local_experts": 5, "num_experts_per_tok": 3, **PARTIAL}),
    "granitemoe": ("GraniteMoe", "granitemoe", {**GRANITE, "num_local_experts": 5, "num_experts_per_tok": 3}),
    "qwen3_next": ("Qwen3Next", "qwen3_next", {**LINEAR, **QWEN, "norm_topk_prob": True}),
    "qwen3_5": ("Qwen3_5", "qwen3_5_text", LINEAR),
    "qwen3_5_moe": ("Qwen3_5Moe", "qwen3_5_moe_text", {**LINEAR, **QWEN}),
    "lfm2": ("Lfm2", "lfm2", {**LFM2, "block_auto_adjust_ff_dim": False}),
    "lfm2-adjusted": (
        "Lfm2", "lfm2",
        {**LFM2, "block_auto_adjust_ff_dim": True, "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.0},
    ),
    "lfm2_moe": (
        "Lfm2Moe", "lfm2_moe",
        {
            **LFM2, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            "num_dense_layers": 1, "norm_topk_prob": True, "use_expert_bias": True,
            "routed_scaling_factor": 1.0,
        },
    ),
    "granitemoehybrid": (
        "GraniteMoeHybrid", "granitemoehybrid",
        {
            **GRANITE, **MAMBA, "num_local_experts": 5, "num_experts_per_tok": 3,
            "position_embedding_type": "rope",
        },
    ),
    "granitemoehybrid-dense": (
        "GraniteMoeHybrid", "granitemoehybrid",
        {**GRANITE, **MAMBA, "num_local_experts": 0, "position_embedding_type": "nope"},
    ),
    "deepseek_v2": (
        "DeepseekV2", "deepseek_v2", {**LATENT, "norm_topk_prob": False, "topk_method": "greedy"},
    ),
    "deepseek_v2-lite": (
        "DeepseekV2", "deepseek_v2",
        {**LATENT, "norm_topk_prob": False, "topk_method": "greedy", "q_lora_rank": None},
    ),
    "deepseek_v3": ("DeepseekV3", "deepseek_v3", {**LATENT, "n_group": 3, "topk_group": 2}),
    "deepseek_v3-yarn": ("DeepseekV3", "deepseek_v3", {**LATENT, "rope_parameters": YARN}),
    "deepseek_v32": ("DeepseekV32", "deepseek_v32", {**LATENT, **SELECTOR}),
    "glm_moe_dsa": (
        "GlmMoeDsa", "glm_moe_dsa",
        {**LATENT, **SELECTOR, "indexer_types": ["full", "full", "shared", "full"]},
    ),
    "gpt_oss": (
        "GptOss", "gpt_oss",
        {
            "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 6, "rope_theta": None,
            "intermediate_size": 64, "swiglu_limit": 7.0,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 64, "truncate": False,
            },
        },
    ),
    "falcon_h1": ("FalconH1", "falcon_h1", FALCON),
    "falcon_h1-normed": (
        "FalconH1", "falcon_h1",
        {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
    ),
    "nemotron_h": (
        "NemotronH", "nemotron_h",
        {**NEMOTRON, "layers_block_type": [MAMBA_2, "mlp", GLOBAL, "mlp", MAMBA_2]},
    ),
    "nemotron_h-moe": (
        "NemotronH", "nemotron_h",
        {**NEMOTRON, **NEMOTRON_EXPERTS, "layers_block_type": [MAMBA_2, "moe", GLOBAL, "moe"]},
    ),
    "nemotron_h-latent": (
        "NemotronH", "nemotron_h",
        {
            **NEMOTRON, **NEMOTRON_EXPERTS, "moe_latent_size": 12,
            "layers_block_type": [MAMBA_2, "moe", GLOBAL, "moe"],
        },
    ),
    "ministral3": (
        "Ministral3", "ministral3",
        {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}},
    ),
    "mistral4": (
        "Mistral4", "mistral4",
        {
            **LATENT, "first_k_dense_replace": 0, "head_dim": 10, "n_group": 3, "topk_group": 2,
            "rope_parameters": {
                **YARN, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16,
                "partial_rotary_factor": 0.4,
            },
        },
    ),
    "kimi_linear": (
        "KimiLinear", "kimi_linear",
        {
            **NARROW, "q_lora_rank": None, "num_experts": 6, "linear_head_dim": 8, "linear_num_heads": 4,
            "num_experts_per_tok": 3, "moe_intermediate_size": 24, "routed_scaling_factor": 1.5,
            "linear_conv_kernel_dim": 3, "layer_types": [MAMBA_2, MAMBA_2, GLOBAL, MAMBA_2],
            "rope_parameters": None, "rope_theta": None, "num_shared_experts": 2,
        },
    ),
    "exaone4": ("Exaone4", "exaone4", {"sliding_window": None, "layer_types": 4 * [GLOBAL]}),
    "exaone4-windows": (
        "Exaone4", "exaone4",
        {"sliding_window": 6, "num_hidden_layers": 64, "layer_types": 16 * [LOCAL, LOCAL, LOCAL, GLOBAL]},
    ),
    "exaone_moe": (
        "ExaoneMoe", "exaone_moe",
        {
            "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_shared_experts": 2,
            "sliding_window": 6, "n_group": 3, "topk_group": 2,
        },
    ),
    "apertus": ("Apertus", "apertus", {"hidden_act": "xielu", "rope_parameters": LLAMA3}),
    "jais2": ("Jais2", "jais2", {"hidden_act": "relu2", "layer_norm_eps": 1e-3, "rms_norm_eps": None}),
    "afmoe": (
        "Afmoe", "afmoe",
        {
            "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_shared_experts": 2,
            "sliding_window": 6, "mup_enabled": True, "route_scale": 1.5,
        },
    ),
    "granite_swa": (
        "GraniteSWA", "granite_swa",
        {**GRANITE, "sliding_window": 6, "layer_rope_theta": [100.0, 0.0, 100.0, 0.0]},
    ),
    "granitemoe_swa": (
        "GraniteMoeSWA", "granitemoe_swa",
        {
            **GRANITE, "sliding_window": 6, "num_local_experts": 5, "num_experts_per_tok": 3,
            "shared_intermediate_size": 20,
        },
    ),
    "mimo_v2_flash": (
        "MiMoV2Flash", "mimo_v2_flash",
        {
            "sliding_window": 6, "n_routed_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            "v_head_dim": 6, "num_key_value_heads": 1, "layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL],
            "rope_theta": None,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.5}
                for kind, base in ((GLOBAL, 100.0), (LOCAL, 50.0))
            },
        },
    ),
    "gemma4": ("Gemma4", "gemma4_text", {**GEMMA4, "use_double_wide_mlp": True}),
    "gemma4-moe": ("Gemma4", "gemma4_text", GEMMA4_EXPERTS),
    "gemma3n": ("Gemma3n", "gemma3n_text", GEMMA3N),
}  # fmt: skip
SIGHT: dict[str, Any] = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32,
    "deepstack_visual_indexes": [0], "num_position_embeddings": 16, "patch_size": 4,
}  # fmt: skip
SECTIONS: dict[str, Any] = {
    "rope_theta": None,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
    },
}  # fmt: skip
TOWERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma4-towers": (
        "Gemma4ForConditionalGeneration", "gemma4",
        {
            "text_config": {**SIZES, **GEMMA4},
            "vision_config": {
                "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 64, "patch_size": 4,
            },
        },
    ),
    "mistral3-towers": (
        "Mistral3ForConditionalGeneration", "mistral3",
        {
            "text_config": {**SIZES, "model_type": "mistral", "sliding_window": None},
            "vision_config": {
                "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                "image_size": 16, "patch_size": 4, "head_dim": 8,
            },
            "spatial_merge_size": 2, "tie_word_embeddings": False,
        },
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration", "qwen3_vl",
        {"text_config": {**SIZES, **SECTIONS}, "vision_config": SIGHT, "tie_word_embeddings": False},
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe",
        {
            "text_config": {
                **SIZES, **SECTIONS, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            },
            "vision_config": SIGHT, "tie_word_embeddings": False,
        },
    ),
    "qwen3_5-towers": (
        "Qwen3_5ForConditionalGeneration", "qwen3_5",
        {"text_config": {**SIZES, **LINEAR}, "vision_config": SIGHT, "tie_word_embeddings": False},
    ),
    "gemma3-towers": (
        "Gemma3ForConditionalGeneration", "gemma3",
        {
            "text_config": {
                **SIZES, "sliding_window": 6, "query_pre_attn_scalar": 12, "hidden_act": "gelu_pytorch_tanh",
                "layer_types": 2 * [LOCAL, GLOBAL], "rope_theta": None,
                "rope_parameters": GEMMA3N["rope_parameters"],
            },
            "vision_config": {
                "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                "image_size": 16, "patch_size": 4, "vocab_size": 8,
            },
            "mm_tokens_per_image": 4,
        },
    ),
}  # fmt: skip
"""Models that also see, of which only the text model is converted."""

BOTH = GEMMA3N["rope_parameters"]
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "modernbert": (
        "ModernBertModel", "modernbert",
        {
            **SIZES, "local_attention": 12, "norm_eps": 1e-3, "rms_norm_eps": None, "rope_theta": None,
            "rope_parameters": BOTH, "hidden_act": None, "num_key_value_heads": 4,
            "layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL], "cls_token_id": 1, "sep_token_id": 2,
        },
    ),
    "eurobert": ("EuroBertModel", "eurobert", {**SIZES, "mask_token_id": 3}),
    "gemma_embedding": (
        "Gemma3TextModel", "gemma3_text",
        {
            **SIZES, "sliding_window": 12, "query_pre_attn_scalar": 8, "hidden_act": "gelu_pytorch_tanh",
            "layer_types": 2 * [LOCAL, GLOBAL], "rope_theta": None, "use_bidirectional_attention": True,
            "rope_parameters": BOTH,
        },
    ),
}  # fmt: skip
"""Encoders, of which hidden states are compared."""

CONFIGS: dict[str, dict[str, Any]] = {
    **{
        name: {"architectures": [f"{kind}ForCausalLM"], "model_type": model_type, **SIZES, **specific}
        for name, (kind, model_type, specific) in SPECIFIC.items()
    },
    **{
        name: {"architectures": [kind], "model_type": model_type, **specific}
        for name, (kind, model_type, specific) in (TOWERS | ENCODERS).items()
    },
}
