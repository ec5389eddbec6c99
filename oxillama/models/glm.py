"""ChatGLM and GLM-4: partial rotation, gate and up as one matrix."""

from __future__ import annotations

from oxillama.models.family import register
from oxillama.models.llama import LLAMA
from oxillama.models.qwen import rope_sections

CHATGLM = register(LLAMA.derive("chatglm", gate="fused", routing=None))

GLM4 = register(
    CHATGLM.derive(
        "glm4",
        attn_post_norm=("post_attention_norm",),
        ffn_post_norm=("post_ffw_norm",),
        adjust=rope_sections,
    )
)
