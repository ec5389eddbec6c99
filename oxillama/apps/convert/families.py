"""The plan for the architecture of a config.json."""

from __future__ import annotations

import re
from typing import Any

from oxillama.apps.convert import dense, encoders, experts, gemmas, hybrids, latent, mamba, windowed  # noqa: F401
from oxillama.apps.convert.config import HARMLESS, Config, Plan
from oxillama.apps.convert.decoders import CLASSES, decoder_plan
from oxillama.apps.convert.parts import ALL_TOWERS, TEXT_IN_TOWERS
from oxillama.errors import LoadError

WITH_TOWERS = {
    "Gemma3ForConditionalGeneration": ("gemma3", "Gemma3ForCausalLM"),
    "Gemma3nForConditionalGeneration": ("gemma3n", "Gemma3nForCausalLM"),
    "Gemma4ForConditionalGeneration": ("gemma4", "Gemma4ForCausalLM"),
    "Gemma4UnifiedForConditionalGeneration": ("gemma4_unified", "Gemma4UnifiedForCausalLM"),
    "Glm4vForConditionalGeneration": ("glm4v", "Glm4vForConditionalGeneration"),
    "GlmOcrForConditionalGeneration": ("glm_ocr", "GlmOcrForConditionalGeneration"),
    "Idefics3ForConditionalGeneration": ("idefics3", ""),
    "InternVLForConditionalGeneration": ("internvl", ""),
    "Lfm2VlForConditionalGeneration": ("lfm2_vl", ""),
    "LightOnOcrForConditionalGeneration": ("lighton_ocr", ""),
    "KimiVLForConditionalGeneration": ("kimi_vl", ""),
    "Llama4ForConditionalGeneration": ("llama4", "Llama4ForCausalLM"),
    "LlavaForConditionalGeneration": ("llava", ""),
    "MiniCPMV": ("minicpmv", ""),
    "Mistral3ForConditionalGeneration": ("mistral3", ""),
    "PaddleOCRVLForConditionalGeneration": ("paddleocr_vl", "PaddleOCRVLForConditionalGeneration"),
    "Qwen2AudioForConditionalGeneration": ("qwen2_audio", ""),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", "Qwen3_5ForCausalLM"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe", "Qwen3_5MoeForCausalLM"),
    "SmolVLMForConditionalGeneration": ("smolvlm", ""),
    "VoxtralForConditionalGeneration": ("voxtral", ""),
}
"""Classes that also read pictures or sounds: their model_type, and the class of their text model, or "" where
the model_type of the text model tells its class (`INNER`)."""

TEXT_MODELS = {
    "mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM", "mistral4": "Mistral4ForCausalLM",
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}  # fmt: skip
INNER = {
    "kimi_vl": {"deepseek_v3": "DeepseekV3ForCausalLM"},
    "minicpmv": {
        **dict.fromkeys(("2.5", "4.0", "4"), "LlamaForCausalLM"),
        "2.6": "Qwen2ForCausalLM",
        "4.5": "Qwen3ForCausalLM",
    },
    "mistral3": {kind: name for kind, name in TEXT_MODELS.items() if "stral" in kind},
    "lfm2_vl": {"lfm2": "Lfm2ForCausalLM", "lfm2_moe": "Lfm2MoeForCausalLM"},
}
"""Text models by their model_type (of MiniCPM-V by its ``version``), by the model_type of the whole; others
have one of `TEXT_MODELS`."""

OF_TOWERS = re.compile(
    r"(vision|audio)_config|[a-z_]+_token_(id|index)|[a-z]+_soft_tokens_per_image|mm_tokens_per_image"
    r"|multimodal_projector_bias|projector_[a-z_]+|spatial_merge_size|vision_feature_(layer|select_strategy)"
    r"|image_seq_length|scale_factor|downsample_(ratio|factor)|image_grid_pinpoints|_pad_token_id"
    r"|batch_vision_input|drop_vision_last_layer|image_size|patch_size|query_num|slice_(config|mode)"
    r"|use_image_id|vision_batch_size|version|mm_use_im_start_end|ignore_index"
)
"""Keys that concern tensors that are left out."""


def plan_of(config: Config, n_tensors: int) -> Plan:
    """The plan for a config and a source of so many tensors. Raises LoadError for what is not supported."""
    names = config.get("architectures", [])
    known = [*CLASSES, *(name for name in WITH_TOWERS if name not in CLASSES)]
    wrong = not isinstance(names, list) or len(names) != 1 or names[0] not in known
    config.refuse_if(wrong, "architectures", f"one of {', '.join(known)}", names)
    name = names[0]
    has_towers = name in WITH_TOWERS
    deep: Any = None
    if has_towers:
        whole, name = WITH_TOWERS[name]
        deep = config.table("vision_config").get("deepstack_visual_indexes")
        version = config.get("version")
        take_text(config, whole)
        if not name:
            name = text_model(config, whole, version)
    kind, decoder = CLASSES[name]
    config.only("model_type", kind)
    made = decoder_plan(decoder, config, n_tensors)
    if has_towers:
        if deep and isinstance(deep, list):  # layers that also take rows of a picture's encoder
            made.metadata["n_deepstack_layers"] = len(deep)
        made.ignored, made.renamed = (*made.ignored, *ALL_TOWERS), (*made.renamed, *TEXT_IN_TOWERS)
    if "quantization_config" not in config.seen:
        config.only("quantization_config")
    return made


def text_model(config: Config, whole: str, version: Any) -> str:
    """The class of the text model. Raises LoadError for one that is not supported."""
    is_versioned = whole == "minicpmv"
    known = INNER.get(whole, TEXT_MODELS)
    found = str(version) if is_versioned else config.get("model_type")
    if found not in [*known]:
        key = "version" if is_versioned else "text_config: model_type"
        raise LoadError(f"{config.name}: {key}: expected {', '.join(known)}, got {found!r:.60}")
    return known[found]


def take_text(config: Config, kind: str) -> None:
    """Replaces the keys of a model with towers by the keys of its text model.

    Raises LoadError for a key that both have with other values.
    """
    config.only("model_type", kind)
    text = config.table("text_config").values
    outer = {
        key: value
        for key, value in config.values.items()
        if key not in ("text_config", "model_type", "architectures") and not OF_TOWERS.fullmatch(key)
    }
    for key, value in outer.items():
        if key == "tie_word_embeddings" and value is not None:
            text[key] = value  # the whole model's flag counts
        if key not in HARMLESS and value is not None and text.get(key, value) != value:
            found = f"{value!r:.60} and {text[key]!r:.60}"
            raise LoadError(f"{config.name}: {key}: expected what text_config says, too, got {found}")
    eos = text.get("eos_token_id", config.values.get("eos_token_id"))
    name = config.values.get("_name_or_path")
    config.values = {**outer, **text, "eos_token_id": eos, "_name_or_path": name}
