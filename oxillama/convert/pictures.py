"""The encoders of pictures by the architecture of a config.json."""

from __future__ import annotations

from collections.abc import Callable

from oxillama.convert.clip_towers import GEMMA3, IDEFICS3, INTERNVL, LFM2, LLAVA, PADDLEOCR
from oxillama.convert.config import Config
from oxillama.convert.gemma_towers import GEMMA4, GEMMA4_UNIFIED, LLAMA4
from oxillama.convert.pixtral_towers import LIGHTONOCR, MISTRAL3, PIXTRAL
from oxillama.convert.qwen_towers import GLM4V, GLM_OCR, QWEN2VL, QWEN3VL, QWEN25VL
from oxillama.convert.remote_towers import KIMI, MINICPM
from oxillama.convert.sounds import GEMMA4_SOUND, GEMMA4_UNIFIED_SOUND
from oxillama.convert.towers import Tower
from oxillama.errors import LoadError


def llava(source: Config) -> list[Tower]:
    """LLaVA's class reads Pixtral's encoder, too."""
    kind = source.table("vision_config").get("model_type")
    towers = {"clip_vision_model": LLAVA, "siglip_vision_model": LLAVA, "pixtral": PIXTRAL}
    if kind not in [*towers]:
        raise LoadError(f"vision_config: model_type: expected one of {', '.join(towers)}, got {kind!r:.60}")
    return [towers[kind]]


def gemma4(source: Config, *known: Tower) -> list[Tower]:
    """The encoders that a model of Gemma 4 has, of those of its kind."""
    towers = [tower for tower in known if source.has(tower.config)]
    if not towers:
        raise LoadError("config.json: expected a vision_config or an audio_config, got none")
    return towers


PICTURES: dict[str, Tower | Callable[[Config], list[Tower]]] = {
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Gemma4ForConditionalGeneration": lambda source: gemma4(source, GEMMA4, GEMMA4_SOUND),
    "Gemma4UnifiedForConditionalGeneration": lambda source: gemma4(
        source, GEMMA4_UNIFIED, GEMMA4_UNIFIED_SOUND
    ),
    "Qwen2VLForConditionalGeneration": QWEN2VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN25VL,
    "Qwen3VLForConditionalGeneration": QWEN3VL,
    "Qwen3VLMoeForConditionalGeneration": QWEN3VL,
    "Qwen3_5ForConditionalGeneration": QWEN3VL,
    "Qwen3_5MoeForConditionalGeneration": QWEN3VL,
    "Idefics3ForConditionalGeneration": IDEFICS3,
    "SmolVLMForConditionalGeneration": IDEFICS3,
    "LlavaForConditionalGeneration": llava,
    "Mistral3ForConditionalGeneration": MISTRAL3,
    "LightOnOcrForConditionalGeneration": LIGHTONOCR,
    "InternVLForConditionalGeneration": INTERNVL,
    "Lfm2VlForConditionalGeneration": LFM2,
    "Llama4ForConditionalGeneration": LLAMA4,
    "Glm4vForConditionalGeneration": GLM4V,
    "GlmOcrForConditionalGeneration": GLM_OCR,
    "PaddleOCRVLForConditionalGeneration": PADDLEOCR,
    "MiniCPMV": MINICPM,
    "KimiVLForConditionalGeneration": KIMI,
}
"""By the architecture of a config.json."""
