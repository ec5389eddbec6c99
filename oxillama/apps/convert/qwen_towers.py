"""Encoders of pictures of Qwen2-VL to Qwen3-VL, and of GLM, with kernels of two frames."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.apps.convert.tables import Change, Part, table
from oxillama.apps.convert.towers import (
    EPS,
    SCALE,
    Metadata,
    Source,
    Tower,
    activation,
    apart,
    axial_rotation,
    derive,
    register,
    side_of,
    vision_sizes,
)
from oxillama.errors import LoadError


def frame(i: int) -> Change:
    """The kernel of one frame of the two of a video."""

    def change(values: np.ndarray, source: Source) -> np.ndarray:
        if values.ndim != 5 or values.shape[2] != 2:
            raise LoadError(f"patch_embed: expected kernels of 2 frames, got shape {list(values.shape)}")
        return np.ascontiguousarray(values[:, :, i])

    return change


FRAMES = table(
    """
    visual.patch_embed.proj.weight v.patch_embd.weight = -> first
    visual.patch_embed.proj.weight v.patch_embd.weight.1 = -> second
    """,
    first=frame(0),
    second=frame(1),
)
FRAMES_BIAS = table("visual.patch_embed.proj.bias v.patch_embd.bias =")
APART = apart("attn.qkv.{}", "attn_{x}.{}")
QWEN_NAMES = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}
QWEN_MERGER = table("visual.merger.mlp.0 mm.0 +, visual.merger.mlp.2 mm.2 +")
QWEN_FEED = table("mlp.gate_proj ffn_gate +, mlp.up_proj ffn_up +, mlp.down_proj ffn_down +")


def qwen_facts(source: Source, usual: str, names: dict[str, str] | None = None) -> Metadata:
    """The sizes of encoders for two frames and blocks of 2 x 2 patches."""
    source.tower.require(temporal_patch_size=2, spatial_merge_size=2)
    source.tower.ignore("tokens_per_second")  # a fact of videos
    axial_rotation(source.tower)
    return {
        **vision_sizes(source, {**QWEN_NAMES, **(names or {})}),
        **activation(source.tower, "hidden_act", usual),
        EPS: 1e-6,  # a constant of the classes
        "vision.image_size": 560,  # any number does
    }


def qwen2_facts(source: Source) -> Metadata:
    width, ratio = source.tower.size("embed_dim"), source.tower.number("mlp_ratio", 4.0)
    source.tower.values["intermediate_size"] = int(width * ratio)
    facts = qwen_facts(source, "quick_gelu", {"hidden_size": "embed_dim"})
    return {**facts, "vision.projection_dim": source.tower.size("hidden_size")}


def qwen25_facts(source: Source) -> Metadata:
    """Attention has windows, but in every n-th layer."""
    source.tower.require(window_size=112)
    facts = qwen_facts(source, "silu")
    full, n = source.tower.get("fullatt_block_indexes", [7, 15, 23, 31]), facts["vision.block_count"]
    period = full[0] + 1 if isinstance(full, list) and full and type(full[0]) is int else 0
    wrong = period < 1 or full != [*range(period - 1, n, period)]
    source.tower.refuse_if(wrong, "fullatt_block_indexes", "every n-th layer", full)
    facts["vision.n_wa_pattern"] = period
    return {**facts, "vision.projection_dim": source.tower.size("out_hidden_size")}


def deep_layers(source: Source) -> list[int]:
    """Numbers of the layers whose rows layers of the text model also read."""
    found = source.tower.get("deepstack_visual_indexes", [])
    sound = isinstance(found, list) and all(type(i) is int and i >= 0 for i in found)
    wrong = not sound or found != sorted(set(found))
    source.tower.refuse_if(wrong, "deepstack_visual_indexes", "layers in order", found)
    return list(found)


def qwen3_facts(source: Source) -> Metadata:
    facts = qwen_facts(source, "gelu_pytorch_tanh")
    side = side_of(source.tower.size("num_position_embeddings", 2304), f"{source.tower.name}: positions")
    deep = deep_layers(source)
    return {
        **facts,
        "vision.image_size": side * facts["vision.patch_size"],
        "vision.spatial_merge_size": 2,
        "vision.projection_dim": source.tower.size("out_hidden_size"),
        "vision.is_deepstack_layers": [i in deep for i in range(facts["vision.block_count"])],
    }


def deep_items(source: Source) -> tuple[Part, ...]:
    parts = (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2"))
    return tuple(
        Part(f"visual.deepstack_merger_list.{k}.{there}", f"v.deepstack.{layer}.{here}", bias="yes")
        for k, layer in enumerate(deep_layers(source))
        for there, here in parts
    )


def glm_facts(feed: Callable[[Source], int], positions: bool) -> Callable[[Source], Metadata]:
    """The facts of GLM's encoders; ``feed`` is the width of their feed-forward blocks."""

    def facts(source: Source) -> Metadata:
        width = source.tower.get("intermediate_size")
        source.tower.values["intermediate_size"] = feed(source)
        found = qwen_facts(source, "silu")
        source.tower.values["intermediate_size"] = width
        source.tower.require(attention_bias=not positions)
        found[EPS] = source.tower.number("rms_norm_eps", 1e-5)
        found["vision.image_size"] = source.tower.size("image_size", 336)
        found["vision.projection_dim"] = source.tower.size("out_hidden_size")
        found[SCALE] = 2
        return found

    return facts


# fmt: off
QWEN2VL = register(Tower(
    "Qwen2VLForConditionalGeneration", "qwen2vl_merger", "visual.", "visual.blocks.{}.",
    (*APART, *table("norm1 ln1 +, norm2 ln2 +, attn.proj attn_out +, mlp.fc1 ffn_up +, mlp.fc2 ffn_down +")),
    (*FRAMES, *table("visual.merger.ln_q v.post_ln +"), *QWEN_MERGER), qwen2_facts,
))
derive(
    QWEN2VL, "Qwen2_5_VLForConditionalGeneration", projector="qwen2.5vl_merger", facts=qwen25_facts,
    layers=(*APART, *table("norm1 ln1, norm2 ln2, attn.proj attn_out +"), *QWEN_FEED),
    others=(*FRAMES, *table("visual.merger.ln_q v.post_ln"), *QWEN_MERGER),
)
derive(
    QWEN2VL,
    "Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration Qwen3_5ForConditionalGeneration "
        "Qwen3_5MoeForConditionalGeneration",
    projector="qwen3vl_merger", facts=qwen3_facts, more=deep_items,
    layers=table("""
        norm1 ln1 +, norm2 ln2 +, attn.qkv attn_qkv +, attn.proj attn_out +
        mlp.linear_fc1 ffn_up +, mlp.linear_fc2 ffn_down +
    """),
    others=(*FRAMES, *FRAMES_BIAS, *table("""
        visual.pos_embed v.position_embd, visual.merger.norm v.post_ln +
        visual.merger.linear_fc1 mm.0 +, visual.merger.linear_fc2 mm.2 +
    """)),
)
GLM_MERGER = (*FRAMES, *FRAMES_BIAS, *table("""
    visual.post_layernorm v.post_ln, visual.downsample mm.patch_merger +, visual.merger.proj mm.model.fc
    visual.merger.post_projection_norm mm.post_norm +, visual.merger.gate_proj mm.gate
    visual.merger.up_proj mm.up, visual.merger.down_proj mm.down
"""))
GLM4V = derive(
    QWEN2VL, "Glm4vForConditionalGeneration", projector="glm4v",
    layers=table("""
        norm1 ln1, norm2 ln2, attn.qkv attn_qkv, attn.proj attn_out
        mlp.gate_proj ffn_gate, mlp.up_proj ffn_up, mlp.down_proj ffn_down
    """),
    others=(*GLM_MERGER, *table("""
        visual.embeddings.position_embedding v.position_embd, visual.post_conv_layernorm v.norm_embd
    """)),
    facts=glm_facts(lambda source: source.tower.size("out_hidden_size"), True),
)
derive(
    GLM4V, "GlmOcrForConditionalGeneration",
    layers=(*table("""
        norm1 ln1, norm2 ln2, attn.qkv attn_qkv +, attn.proj attn_out +
        attn.q_norm attn_q_norm, attn.k_norm attn_k_norm
    """), *QWEN_FEED),
    others=GLM_MERGER, facts=glm_facts(lambda source: source.tower.size("intermediate_size"), False),
)
