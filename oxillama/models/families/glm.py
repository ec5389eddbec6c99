"""ChatGLM and GLM-4: partial rotation, gate and up as one matrix."""

from __future__ import annotations

from oxillama.models.families.llama import LLAMA
from oxillama.models.families.qwen import rope_sections
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

CHATGLM = LLAMA.variant("chatglm", gate="fused", routing=None)


def sections_if_two(spec: Spec, read: Reader) -> Spec:
    """Only models with image input have sections; they rotate "neox" pairs."""
    sections = read.sections("rope.dimension_sections")
    return rope_sections(spec, read) if len(sections) > 1 and all(sections[:2]) else spec


GLM4 = CHATGLM.variant(
    "glm4", options=("rope.dimension_sections",), attn_post_norm=("post_attention_norm",),
    ffn_post_norm=("post_ffw_norm",), adjust=sections_if_two,
)  # fmt: skip
