"""Configs of models that read pictures or sounds, for tiny ones that `transformers` can make."""

from __future__ import annotations

from typing import Any

from tests.support import newer_configs

PICTURE = 380
"""The token that stands for a row of a picture, and those that begin and end one."""
BEGIN, END = 381, 382

TEXT: dict[str, Any] = {**newer_configs.SIZES, "num_hidden_layers": 2, "tie_word_embeddings": False}
PLAIN_EPS = {"rms_norm_eps": 1e-5}
"""That of the encoder, which GGUF has for both."""

FINE = {"rms_norm_eps": 1e-6}
LLAMA = {**TEXT, "model_type": "llama"}
MISTRAL = {**TEXT, **PLAIN_EPS, "model_type": "mistral", "sliding_window": None}
QWEN2 = {**TEXT, "model_type": "qwen2"}
QWEN3 = {**TEXT, **PLAIN_EPS, "model_type": "qwen3"}
TOWER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8, "num_channels": 3,
}  # fmt: skip
SIGLIP = {**TOWER, "model_type": "siglip_vision_model", "layer_norm_eps": 1e-5}
CLIP = {**TOWER, "model_type": "clip_vision_model", "projection_dim": 16, "layer_norm_eps": 1e-4}
MROPE = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 1]}
SIZED: dict[str, Any] = {
    "depth": 3, "num_heads": 2, "in_channels": 3, "patch_size": 8, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
TOKENS: dict[str, Any] = {
    "image_token_id": PICTURE, "image_token_index": PICTURE, "video_token_id": 383,
    "vision_start_token_id": BEGIN, "vision_end_token_id": END, "tie_word_embeddings": False,
}  # fmt: skip

GEMMA4_TEXT: dict[str, Any] = {
    **TEXT, "hidden_act": None, "model_type": "gemma4_text", "sliding_window": 6, "rope_parameters": None,
    "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 16,
    "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_bidirectional_attention": "vision",
}  # fmt: skip
GEMMA4_VISION: dict[str, Any] = {
    **TOWER, "model_type": "gemma4_vision", "head_dim": 16, "num_key_value_heads": 2, "global_head_dim": 16,
    "pooling_kernel_size": 2, "position_embedding_size": 64,
}  # fmt: skip
GEMMA4_TOKENS = {**TOKENS, "tie_word_embeddings": True, "boi_token_id": BEGIN, "eoi_token_id": END}

SIZES: dict[str, tuple[int, int]] = {
    "qwen2_vl": (112, 56), "qwen2_5_vl": (140, 140), "qwen3_vl": (64, 48), "glm4v": (64, 48),
    "glm_ocr": (64, 48), "pixtral": (40, 24), "mistral3": (64, 48), "paddleocr_vl": (32, 32),
    "lfm2_vl": (128, 144), "gemma4": (128, 160), "gemma4_unified": (64, 80), "lighton_ocr": (32, 16),
}  # fmt: skip
"""Width and height of pictures that the rules of these models do not resize; 32 x 32 of others."""

CLASSES: dict[str, str] = {
    "gemma3": "Gemma3", "qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL",
    "idefics3": "Idefics3", "smolvlm": "SmolVLM", "llava": "Llava", "llava-siglip": "Llava",
    "pixtral": "Llava", "mistral3": "Mistral3", "lighton_ocr": "LightOnOcr", "internvl": "InternVL",
    "lfm2_vl": "Lfm2Vl", "glm4v": "Glm4v", "glm_ocr": "GlmOcr", "paddleocr_vl": "PaddleOCRVL",
    "gemma4": "Gemma4", "gemma4_sound": "Gemma4", "gemma4_unified": "Gemma4Unified", "llama4": "Llama4",
    "qwen2_audio": "Qwen2Audio", "voxtral": "Voxtral",
}  # fmt: skip
"""Names of their classes, without "ForConditionalGeneration"."""

MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {
            **TEXT, "hidden_act": None, "model_type": "gemma3_text", "sliding_window": 6,
            "query_pre_attn_scalar": 8,
            "hidden_activation": "gelu_pytorch_tanh", "rope_parameters": None, "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "vision_config": SIGLIP, "mm_tokens_per_image": 4, **TOKENS, "tie_word_embeddings": True,
        "boi_token_index": BEGIN, "eoi_token_index": END,
    },
    "qwen2_vl": {
        "text_config": {**TEXT, **FINE, "model_type": "qwen2_vl_text", "rope_parameters": MROPE},
        "vision_config": {**SIZED, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "patch_size": 14},
        **TOKENS,
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, **FINE, "model_type": "qwen2_5_vl_text", "rope_parameters": MROPE},
        "vision_config": {
            **SIZED, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32, "patch_size": 14,
            "window_size": 112, "fullatt_block_indexes": [1],
        },
        **TOKENS,
    },
    "qwen3_vl": {
        "text_config": {
            **TEXT, "model_type": "qwen3_vl_text", "num_hidden_layers": 3,
            "rope_parameters": {**MROPE, "mrope_interleaved": True},
        },
        "vision_config": {
            **SIZED, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32,
            "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1],
        },
        **TOKENS,
    },
    "idefics3": {
        "text_config": LLAMA, "vision_config": {**SIGLIP, "model_type": "idefics3_vision"},
        "scale_factor": 2, **TOKENS,
    },
    "smolvlm": {
        "text_config": LLAMA, "vision_config": {**SIGLIP, "model_type": "smolvlm_vision"},
        "scale_factor": 2, **TOKENS,
    },
    "llava": {
        "text_config": LLAMA, "vision_config": {**CLIP, "num_hidden_layers": 3}, **TOKENS,
    },
    "llava-siglip": {
        "text_config": QWEN2,
        "vision_config": {**SIGLIP, "num_hidden_layers": 3, "vision_use_head": False},
        "vision_feature_select_strategy": "full", "projector_hidden_act": "gelu", **TOKENS,
    },
    "pixtral": {
        "text_config": MISTRAL,
        "vision_config": {**TOWER, "model_type": "pixtral", "hidden_act": "silu", "head_dim": 16},
        "vision_feature_layer": -1, "vision_feature_select_strategy": "full", **TOKENS,
    },
    "mistral3": {
        "text_config": MISTRAL,
        "vision_config": {**TOWER, "model_type": "pixtral", "hidden_act": "silu", "head_dim": 16},
        "spatial_merge_size": 2, "vision_feature_layer": -1, "multimodal_projector_bias": False, **TOKENS,
    },
    "lighton_ocr": {
        "text_config": QWEN3,
        "vision_config": {**TOWER, "model_type": "pixtral", "hidden_act": "silu", "head_dim": 16},
        "spatial_merge_size": 2, **TOKENS,
    },
    "internvl": {
        "text_config": QWEN2,
        "vision_config": {
            **TOWER, "model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [8, 8],
            "use_qk_norm": False, "use_absolute_position_embeddings": True, "attention_bias": True,
            "norm_type": "layer_norm", "layer_norm_eps": 1e-5,
        },
        "downsample_ratio": 0.5, **TOKENS,
    },
    "lfm2_vl": {
        "text_config": {
            **TEXT, "rms_norm_eps": None, "model_type": "lfm2",
            "layer_types": ["conv", "full_attention"], "conv_L_cache": 3,
            "norm_eps": 1e-3, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True,
        },
        "vision_config": {
            **SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 16, "vision_use_head": False,
        },
        "projector_hidden_size": 40, "downsample_factor": 2, **TOKENS, "tie_word_embeddings": True,
    },
    "glm4v": {
        "text_config": {
            **TEXT, "model_type": "glm4v_text",
            "rope_parameters": {**MROPE, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5},
        },
        "vision_config": {
            **SIZED, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32, "image_size": 32,
        },
        **TOKENS, "image_start_token_id": BEGIN, "image_end_token_id": END,
    },
    "glm_ocr": {
        "text_config": {
            **TEXT, "model_type": "glm_ocr_text",
            "rope_parameters": {**MROPE, "mrope_section": [2, 1, 1]},
        },
        "vision_config": {**SIZED, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32},
        **TOKENS, "image_start_token_id": BEGIN, "image_end_token_id": END,
    },
    "paddleocr_vl": {
        "text_config": {
            **TEXT, "model_type": "paddleocr_vl_text", "rope_parameters": MROPE, "hidden_size": 32,
        },
        "vision_config": {**SIGLIP, "model_type": "paddleocr_vl_vision", "spatial_merge_size": 2},
        **TOKENS,
    },
    "gemma4": {
        "text_config": GEMMA4_TEXT, "vision_config": GEMMA4_VISION, "audio_config": None, **GEMMA4_TOKENS,
    },
    "gemma4_sound": {
        "text_config": GEMMA4_TEXT, "vision_config": GEMMA4_VISION,
        "audio_config": {
            "model_type": "gemma4_audio", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "subsampling_conv_channels": [16, 8], "output_proj_dims": 24,
        },
        **GEMMA4_TOKENS, "image_token_id": 384, "audio_token_id": PICTURE,
    },
    "gemma4_unified": {
        "text_config": {
            **{key: value for key, value in GEMMA4_TEXT.items() if key != "hidden_size_per_layer_input"},
            "model_type": "gemma4_unified_text",
        },
        "vision_config": {
            "model_type": "gemma4_unified_vision", "patch_size": 4, "pooling_kernel_size": 2,
            "mm_embed_dim": 24, "mm_posemb_size": 40, "output_proj_dims": 24,
        },
        "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 48},
        **GEMMA4_TOKENS, "audio_token_id": 384,
    },
    "llama4": {
        "text_config": {
            **TEXT, "model_type": "llama4_text", "num_hidden_layers": 4, "intermediate_size_mlp": 48,
            "num_local_experts": 3, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
        },
        "vision_config": {
            **TOWER, "model_type": "llama4_vision_model", "intermediate_size": 128, "vision_output_dim": 40,
            "projector_input_dim": 40, "projector_output_dim": 40, "pixel_shuffle_ratio": 0.5,
        },
        **TOKENS,
    },
    "qwen2_audio": {
        "text_config": QWEN2,
        "audio_config": {
            "model_type": "qwen2_audio_encoder", "num_mel_bins": 16, "encoder_layers": 2, "d_model": 32,
            "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "max_source_positions": 1500,
        },
        "audio_token_index": PICTURE, "audio_token_id": PICTURE,
    },
    "voxtral": {
        "text_config": LLAMA,
        "audio_config": {
            "model_type": "voxtral_encoder", "num_mel_bins": 16, "num_hidden_layers": 2, "hidden_size": 16,
            "num_attention_heads": 2, "intermediate_size": 64, "max_source_positions": 1500,
        },
        "audio_token_id": PICTURE,
    },
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    name: {"architectures": [f"{CLASSES[name]}ForConditionalGeneration"], **config}
    for name, config in MODELS.items()
}
