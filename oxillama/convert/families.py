"""The supported families of decoders, as data, and the plan for the architecture of a config.json.

Names and conventions of GGUF are llama.cpp's (gguf-py, as of 0.19): heads of Llama's q and k are reordered,
for its rotation turns neighbours where Hugging Face turns halves; Gemma's norms hold their 1; experts are
stacked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from oxillama.convert import options
from oxillama.convert.config import HARMLESS, Config, Plan
from oxillama.convert.convolutions import CONVOLUTION_DECODERS
from oxillama.convert.decoders import Decoder, Part, decoder_plan
from oxillama.convert.delta import DELTA_DECODERS
from oxillama.convert.encoders import ENCODERS, bert
from oxillama.convert.experts import EXPERT_DECODERS, GLM_BEFORE, HUNYUAN_NORMS, STACKED, hunyuan_rotation
from oxillama.convert.gemmas import GEMMA_DECODERS
from oxillama.convert.gpt_oss import GPT_OSS
from oxillama.convert.kimi import KIMI_LINEAR
from oxillama.convert.latent import LATENT_DECODERS
from oxillama.convert.mamba import MAMBA_DECODERS, NEMOTRON_H_MOE
from oxillama.convert.parts import (
    ALL_TOWERS,
    ATTENTION,
    BEFORE,
    BEHIND,
    BOTH_SIDES,
    EXPERTS,
    FEED,
    FUSED,
    HEAD_NORMS,
    MIXTRAL_EXPERTS,
    ROW_NORMS,
    SHARED,
    SIGHT,
    TEXT_IN_TOWERS,
    TOWERS,
    biased,
    in_halves,
)
from oxillama.convert.windowed import WINDOWED_DECODERS
from oxillama.errors import LoadError

# --- families ---------------------------------------------------------------------------------------

GELU = ("gelu", "gelu_pytorch_tanh")  # of Gemma, whose first configs meant the second by the first
LLAMA = Decoder("llama", (*ATTENTION, *BEFORE, *FEED), options.llama, reordered=True)
MISTRAL = replace(LLAMA, left_out=TOWERS, renamed=TEXT_IN_TOWERS)
MINISTRAL3 = replace(MISTRAL, architecture="mistral3", options=options.ministral3)
MIXTRAL = replace(
    LLAMA,
    parts=(*ATTENTION, *BEFORE, *MIXTRAL_EXPERTS),
    options=options.mixtral,
    defaults=(("rope_theta", 1e6),),
)
QWEN2 = Decoder("qwen2", (*biased(ATTENTION, "yes", ("attn_output",)), *BEFORE, *FEED), options.qwen2)
QWEN2_MOE = Decoder(
    "qwen2moe",
    (*biased(ATTENTION, "qkv_bias", ("attn_output",)), *BEFORE, *EXPERTS, *SHARED),
    options.qwen2_experts,
    biased=True,
    copies_tied=True,
)
QWEN3 = Decoder(
    "qwen3", (*ATTENTION, *HEAD_NORMS, *BEFORE, *FEED), options.qwen, defaults=(("head_dim", 128),)
)
QWEN3_MOE = Decoder("qwen3moe", (*ATTENTION, *HEAD_NORMS, *BEFORE, *EXPERTS), options.qwen_experts)
QWEN3_VL = replace(
    QWEN3,
    architecture="qwen3vl",
    options=partial(options.with_sections, options.qwen),
    left_out=SIGHT,
    renamed=TEXT_IN_TOWERS,
)
QWEN3_VL_MOE = Decoder(
    "qwen3vlmoe",
    (*ATTENTION, *HEAD_NORMS, *BEFORE, EXPERTS[0], *STACKED),
    options.many_experts_of_sight,
    left_out=SIGHT,
    renamed=TEXT_IN_TOWERS,
)
QWEN2_VL = replace(QWEN2, architecture="qwen2vl", options=partial(options.with_sections, options.qwen2_vl))
OLMO2 = Decoder("olmo2", (*ATTENTION, *ROW_NORMS, *BEHIND, *FEED), options.olmo2, copies_tied=True)
OLMO3 = replace(OLMO2, options=options.olmo3, defaults=(("sliding_window", 4096),))
OLMOE = Decoder("olmoe", (*ATTENTION, *ROW_NORMS, *BEFORE, *EXPERTS), options.olmoe, copies_tied=True)
GEMMA = Decoder(
    "gemma",
    (*ATTENTION, *BEFORE, *FEED),
    options.gemma,
    activations=GELU,
    norm_plus=1.0,
    tied=True,
    defaults=(("head_dim", 256), ("rms_norm_eps", 1e-6)),
)
GEMMA2 = replace(
    GEMMA,
    architecture="gemma2",
    parts=(*ATTENTION, *BOTH_SIDES, *FEED),
    options=options.gemma2,
    activations=("gelu_pytorch_tanh",),
    defaults=(
        *GEMMA.defaults,
        *(("query_pre_attn_scalar", 256), ("sliding_window", 4096)),
        *(("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)),
    ),
)
GEMMA3 = replace(
    GEMMA2,
    architecture="gemma3",
    parts=(*ATTENTION, *HEAD_NORMS, *BOTH_SIDES, *FEED),
    options=options.gemma3,
    defaults=(
        *GEMMA.defaults,
        *(("query_pre_attn_scalar", 256), ("sliding_window", 4096), ("max_position_embeddings", 131072)),
        *(("num_attention_heads", 8), ("num_key_value_heads", 4)),
    ),
    left_out=TOWERS,
    renamed=TEXT_IN_TOWERS,
)
GEMMA_EMBEDDING = replace(
    GEMMA3,
    architecture="gemma-embedding",
    options=options.gemma_embedding,
    head=None,
    inside="",
    left_out=(),
    renamed=(("model.", ""),),
)
PHI3 = Decoder("phi3", (*BEFORE, *FUSED), options.phi3)
STARCODER2 = Decoder(
    "starcoder2",
    (
        *biased(ATTENTION, "use_bias"),
        *BEFORE,
        Part("mlp.c_fc", "ffn_up", "ff d", "use_bias"),
        Part("mlp.c_proj", "ffn_down", "d ff", "use_bias"),
    ),
    options.starcoder2,
    epsilon="norm_epsilon",
    layer_norm=True,
    norm_bias=True,
    activations=("gelu_pytorch_tanh",),
    tied=True,
    biased=True,
)

SMOLLM3 = Decoder("smollm3", LLAMA.parts, options.smollm3, reordered=True, tied=True)
ARCEE = Decoder(
    "arcee", (*ATTENTION, *BEFORE, *FEED[1:]), options.llama, reordered=True, activations=("relu2",)
)
SEED_OSS = Decoder(
    "seed_oss",
    (*biased(ATTENTION, "attention_bias", ("attn_output",)), *GLM_BEFORE, *FEED),
    options.seed_oss,
    biased=True,
)
ERNIE4_5 = Decoder(  # its source rotates neighbours, too
    "ernie4_5",
    (*biased(ATTENTION, ""), *BEFORE, *biased(FEED, "")),
    options.ernie,
    tied=True,
    defaults=(("rope_theta", 500000.0), ("rms_norm_eps", 1e-5)),
)
HUNYUAN = Decoder(
    "hunyuan-dense", (*biased(ATTENTION, ""), *HUNYUAN_NORMS, *BEFORE, *biased(FEED, "")), hunyuan_rotation
)
GLM4 = Decoder(  # as ERNIE
    "glm4",
    (
        *biased(ATTENTION, "attention_bias", ("attn_output",)),
        Part("input_layernorm", "attn_norm", "d"),
        Part("post_self_attn_layernorm", "post_attention_norm", "d"),
        Part("post_attention_layernorm", "ffn_norm", "d"),
        Part("post_mlp_layernorm", "post_ffw_norm", "d"),
        Part("mlp.gate_up_proj", "ffn_up", "ff+ff d"),
        Part("mlp.down_proj", "ffn_down", "d ff"),
    ),
    options.partial_rotation,
    biased=True,
    defaults=(("partial_rotary_factor", 0.5),),
)
GLM_OCR = replace(
    GLM4,
    parts=(*in_halves(GLM4.parts[:2], biases=False), *GLM4.parts[2:]),
    options=partial(options.with_sections, options.glm_ocr),
    biased=False,
    defaults=(),
)
GLM4V = replace(
    GLM_OCR,
    parts=(*in_halves(GLM4.parts[:2], biases=True), replace(GLM4.parts[2], bias="yes"), *GLM4.parts[3:]),
    defaults=GLM4.defaults,
)
PADDLEOCR = replace(
    ERNIE4_5,
    architecture="paddleocr",
    options=partial(options.with_sections, options.ernie),
    tied=False,
)
GRANITE = Decoder("granite", LLAMA.parts, options.granite, reordered=True)

APERTUS = Decoder(
    "apertus",
    (
        *biased(ATTENTION, ""),
        *HEAD_NORMS,
        Part("attention_layernorm", "attn_norm", "d"),
        Part("feedforward_layernorm", "ffn_norm", "d"),
        *biased(FEED[1:], ""),
    ),
    options.apertus,
    activations=("xielu",),
    copies_tied=True,
    numbers=tuple((f"xielu.{name}", f"mlp.act_fn.{name}") for name in ("alpha_p", "alpha_n", "beta", "eps")),
)
JAIS2 = Decoder(
    "jais2",
    (*ATTENTION, *BEFORE, *FEED[1:]),
    options.jais2,
    epsilon="layer_norm_eps",
    layer_norm=True,
    norm_bias=True,
    activations=("relu2",),
    biased=True,
    defaults=(("layer_norm_eps", 1e-5),),
)

DECODERS: dict[str, tuple[str, Decoder]] = {
    "LlamaForCausalLM": ("llama", LLAMA),
    "MistralForCausalLM": ("mistral", MISTRAL),
    "Ministral3ForCausalLM": ("ministral3", MINISTRAL3),
    "MixtralForCausalLM": ("mixtral", MIXTRAL),
    "Qwen2ForCausalLM": ("qwen2", QWEN2),
    "Qwen2MoeForCausalLM": ("qwen2_moe", QWEN2_MOE),
    "Qwen3ForCausalLM": ("qwen3", QWEN3),
    "Qwen3MoeForCausalLM": ("qwen3_moe", QWEN3_MOE),
    "GemmaForCausalLM": ("gemma", GEMMA),
    "Gemma2ForCausalLM": ("gemma2", GEMMA2),
    "Gemma3ForCausalLM": ("gemma3_text", GEMMA3),
    "Phi3ForCausalLM": ("phi3", PHI3),
    "Olmo2ForCausalLM": ("olmo2", OLMO2),
    "Olmo3ForCausalLM": ("olmo3", OLMO3),
    "OlmoeForCausalLM": ("olmoe", OLMOE),
    "Starcoder2ForCausalLM": ("starcoder2", STARCODER2),
    "SmolLM3ForCausalLM": ("smollm3", SMOLLM3),
    "ArceeForCausalLM": ("arcee", ARCEE),
    "SeedOssForCausalLM": ("seed_oss", SEED_OSS),
    "Ernie4_5ForCausalLM": ("ernie4_5", ERNIE4_5),
    "HunYuanDenseV1ForCausalLM": ("hunyuan_v1_dense", HUNYUAN),
    "Glm4ForCausalLM": ("glm4", GLM4),
    "GraniteForCausalLM": ("granite", GRANITE),
    "GptOssForCausalLM": ("gpt_oss", GPT_OSS),
    **GEMMA_DECODERS,
    **EXPERT_DECODERS,
    **DELTA_DECODERS,
    **CONVOLUTION_DECODERS,
    **MAMBA_DECODERS,
    **LATENT_DECODERS,
    "KimiLinearForCausalLM": ("kimi_linear", KIMI_LINEAR),
    **WINDOWED_DECODERS,
    "ApertusForCausalLM": ("apertus", APERTUS),
    "Jais2ForCausalLM": ("jais2", JAIS2),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl_text", QWEN2_VL),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl_text", QWEN2_VL),
    "Glm4vForConditionalGeneration": ("glm4v_text", GLM4V),
    "GlmOcrForConditionalGeneration": ("glm_ocr_text", GLM_OCR),
    "PaddleOCRVLForConditionalGeneration": ("paddleocr_vl_text", PADDLEOCR),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl_text", QWEN3_VL),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe_text", QWEN3_VL_MOE),
    "Gemma3TextModel": ("gemma3_text", GEMMA_EMBEDDING),
    **ENCODERS,
}
ALL_DECODERS = (*(family for _, family in DECODERS.values()), NEMOTRON_H_MOE)
"""Those of which a class has several, too."""

PLANS: dict[str, tuple[str, Callable[[Config, int], Plan]]] = {
    **{name: (kind, partial(decoder_plan, family)) for name, (kind, family) in DECODERS.items()},
    "BertModel": ("bert", bert),
    "BertForMaskedLM": ("bert", bert),
}
"""The model_type of an architecture, and what makes its plan."""

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
"""Architectures that also read images or sound: their model_type, and that of their text model alone, or ""
where its model_type says it (`INNER`)."""

OF_MISTRAL = {
    "mistral": "MistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
}
INNER = {
    "kimi_vl": {"deepseek_v3": "DeepseekV3ForCausalLM"},
    "minicpmv": {
        **dict.fromkeys(("2.5", "4.0", "4"), "LlamaForCausalLM"),
        "2.6": "Qwen2ForCausalLM",
        "4.5": "Qwen3ForCausalLM",
    },
    "mistral3": OF_MISTRAL,
    "lfm2_vl": {"lfm2": "Lfm2ForCausalLM", "lfm2_moe": "Lfm2MoeForCausalLM"},
    "": {
        **OF_MISTRAL,
        "llama": "LlamaForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
    },
}
"""Text models by their model_type (of MiniCPM-V by its ``version``), for a model_type of the whole, or for
all others."""

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
    known = [*PLANS, *(name for name in WITH_TOWERS if name not in PLANS)]
    if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
        raise LoadError(f"config.json: architectures: expected one of {', '.join(known)}, got {names!r:.80}")
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
    kind, plan = PLANS[name]
    config.only("model_type", kind)
    made = plan(config, n_tensors)
    if has_towers:
        if deep and isinstance(deep, list):  # layers that also take rows of a picture's encoder
            made.metadata["n_deepstack_layers"] = len(deep)
        made.ignored, made.renamed = (*made.ignored, *ALL_TOWERS), (*made.renamed, *TEXT_IN_TOWERS)
    if "quantization_config" not in config.seen:
        config.only("quantization_config")
    return made


def text_model(config: Config, whole: str, version: Any) -> str:
    """The architecture of the text model alone. Raises LoadError for one that is not supported."""
    is_versioned = whole == "minicpmv"
    known = INNER.get(whole, INNER[""])
    found = str(version) if is_versioned else config.get("model_type")
    if found not in [*known]:
        key = "version" if is_versioned else "text_config: model_type"
        raise LoadError(f"{config.name}: {key}: expected {', '.join(known)}, got {found!r:.60}")
    return known[found]


def take_text(config: Config, kind: str) -> None:
    """Puts the keys of the text model in the place of those of a model with towers.

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
            text[key] = value  # of the whole model, which the text model is a part of
        if key not in HARMLESS and value is not None and text.get(key, value) != value:
            found = f"{value!r:.60} and {text[key]!r:.60}"
            raise LoadError(f"{config.name}: {key}: expected what text_config says, too, got {found}")
    eos = text.get("eos_token_id", config.values.get("eos_token_id"))
    config.values = {
        **outer,
        **text,
        "eos_token_id": eos,
        "_name_or_path": config.values.get("_name_or_path"),
    }
