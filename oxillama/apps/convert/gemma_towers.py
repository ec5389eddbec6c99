"""Gemma 4's encoders of pictures and of sounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.apps.convert.tables import Part, table
from oxillama.apps.convert.towers import (
    EPS,
    SCALE,
    Metadata,
    Source,
    Tower,
    activation,
    audio_facts,
    axial_rotation,
    channels_first,
    flat,
    one_of_two,
    register,
    three,
    vision_sizes,
)
from oxillama.errors import LoadError

# --- pictures ---------------------------------------------------------------------------------------


def from_0_to_1(source: Source) -> None:
    """Sets a mean of 0 and a deviation of 1, as the class does, whatever the preprocessor states."""
    source.media.ignore("image_mean", "image_std")
    source.media.values |= {"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}


def gemma4_facts(source: Source) -> Metadata:
    tower = source.tower
    from_0_to_1(source)
    tower.only("attention_bias", False)
    axial_rotation(tower, 100.0)
    facts = vision_sizes(source)
    heads = facts["vision.attention.head_count"]
    tower.require(num_key_value_heads=heads)
    dim = tower.size("head_dim", facts["vision.embedding_length"] // heads)
    tower.only("global_head_dim", dim)
    tower.ignore("max_position_embeddings", "image_size", "position_embedding_size")
    return {
        **facts,
        **activation(tower, "hidden_activation", "gelu_pytorch_tanh"),
        "vision.attention.head_dim": dim,
        "vision.image_size": 224,  # any number does
        EPS: tower.number("rms_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
        SCALE: tower.size("pooling_kernel_size", 3),
    }


GEMMA4_MATRICES = table("""
    self_attn.q_proj attn_q, self_attn.k_proj attn_k, self_attn.v_proj attn_v, self_attn.o_proj attn_out
    mlp.gate_proj ffn_gate, mlp.up_proj ffn_up, mlp.down_proj ffn_down
""")
GEMMA4_LAYER = "vision_tower.encoder.layers.{}."


def bounds(layer: str, prefix: str, matrices: tuple[Part, ...], source: Source) -> tuple[Part, ...]:
    """The numbers that clip the input and the output of each of the ``matrices``, in all layers."""
    lines = "\n".join(
        f"{layer.format(i)}{item.source}.{bound} {prefix}.blk.{i}.{item.target}.{bound} = -> flat"
        for i in range(source.tower.size("num_hidden_layers"))
        for item in matrices
        for bound in ("input_min", "input_max", "output_min", "output_max")
    )
    return table(lines, flat=flat)


def inner(matrices: tuple[Part, ...]) -> tuple[Part, ...]:
    """Matrices whose names in the source have one more part, because modules hold them and their bounds."""
    return tuple(replace(item, source=f"{item.source}.linear") for item in matrices)


def gemma4_items(source: Source) -> tuple[Part, ...]:
    """The bounds of the matrices, and the numbers that standardize the rows, if the config asks for them."""
    found: list[Part] = []
    if source.tower.flag("standardize"):
        found += table("vision_tower.std_bias v.std_bias =, vision_tower.std_scale v.std_scale =")
    if source.tower.flag("use_clipped_linears"):
        found += bounds(GEMMA4_LAYER, "v", GEMMA4_MATRICES, source)
    return tuple(found)


# fmt: off
register(Tower(
    "Gemma4ForConditionalGeneration", "gemma4v", "vision_tower. embed_vision.", GEMMA4_LAYER,
    (*inner(GEMMA4_MATRICES), *table("""
        self_attn.q_norm attn_q_norm, self_attn.k_norm attn_k_norm
        input_layernorm ln1, post_attention_layernorm attn_post_norm
        pre_feedforward_layernorm ln2, post_feedforward_layernorm ffn_post_norm
    """)),
    table("""
        vision_tower.patch_embedder.input_proj v.patch_embd -> channels_first
        vision_tower.patch_embedder.position_embedding_table v.position_embd.weight =
        embed_vision.embedding_projection mm.input_projection
    """, channels_first=channels_first),
    gemma4_facts, more=gemma4_items,
))
# fmt: on


def unified_facts(source: Source) -> Metadata:
    """Sizes of an embedding of merged patches, without blocks."""
    tower = source.tower
    from_0_to_1(source)
    width = tower.size("mm_embed_dim", 3840)
    tower.only("output_proj_dims", width)
    side = one_of_two(tower, "patch_size", 16) * tower.size("pooling_kernel_size", 3)
    tower.only("model_patch_size", side)
    tower.ignore("mm_posemb_size")  # the shape of the table of positions
    return {
        "vision.embedding_length": width,
        "vision.block_count": 0,
        "vision.attention.head_count": 0,
        "vision.feed_forward_length": 0,
        "vision.patch_size": one_of_two(tower, "patch_size", 16),
        "vision.image_mean": three(source.media, "image_mean"),
        "vision.image_std": three(source.media, "image_std"),
        "vision.image_size": 224,  # any number does
        EPS: tower.number("rms_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
        SCALE: tower.size("pooling_kernel_size", 3),
    }


def by_channel(values: np.ndarray, source: Source) -> np.ndarray:
    """(..., 3 * side * side): the numbers for the pixels of a merged patch, reordered to channels first."""
    tower = source.tower
    side = one_of_two(tower, "patch_size", 16) * tower.size("pooling_kernel_size", 3)
    if values.shape[-1] != 3 * side * side:
        raise LoadError(f"patches: expected rows of {3 * side * side} numbers, got {values.shape[-1]}")
    pixels = np.moveaxis(values.reshape(*values.shape[:-1], side, side, 3), -1, -3)
    return np.ascontiguousarray(pixels).reshape(values.shape)


# fmt: off
register(Tower(
    "Gemma4UnifiedForConditionalGeneration", "gemma4uv", "vision_embedder. embed_vision.",
    "vision_embedder.layers.{}.", (),
    table("""
        vision_embedder.patch_ln1 v.patch_norm.1 + -> by_channel
        vision_embedder.patch_dense.weight v.patch_embd.weight = -> by_channel
        vision_embedder.patch_dense.bias v.patch_embd.bias =, vision_embedder.patch_ln2 v.patch_norm.2 +
        vision_embedder.pos_embedding v.position_embd.weight = -> by_axis
        vision_embedder.pos_norm v.patch_norm.3 +, embed_vision.embedding_projection mm.input_projection
    """,
        by_channel=by_channel,
        by_axis=lambda values, source: np.ascontiguousarray(values.swapaxes(0, 1)),  # a table for each axis
    ),
    unified_facts,
))
# fmt: on


# --- sounds -----------------------------------------------------------------------------------------


def conformer_facts(source: Source) -> Metadata:
    """The sizes of Gemma 4's encoder of sounds; its other numbers must be the published models' numbers."""
    tower = source.tower
    tower.require(
        hidden_act="silu", conv_kernel_size=5, residual_weight=0.5, attention_context_left=13,
        attention_context_right=0, attention_logit_cap=50.0, rms_norm_eps=1e-6, gradient_clipping=1e10,
    )  # fmt: skip
    tower.ignore("attention_chunk_size", "attention_invalid_logits_value", "output_proj_dims")
    channels = tower.get("subsampling_conv_channels", [128, 32])
    wrong = not isinstance(channels, list) or len(channels) != 2 or type(channels[0]) is not int
    tower.refuse_if(wrong, "subsampling_conv_channels", "two numbers", channels)
    width = tower.size("hidden_size")
    layers, heads = tower.size("num_hidden_layers"), tower.size("num_attention_heads")
    out = source.text.size("hidden_size")
    return audio_facts(channels[0], width, 4 * width, layers, heads, 1e-6, out)  # mels: as many as channels


def softplus(values: np.ndarray, source: Source) -> np.ndarray:
    """log(1 + exp(x)), which the class computes at each use of its scales."""
    return np.asarray(np.logaddexp(values.dtype.type(0), values))


def without_channel(values: np.ndarray, source: Source) -> np.ndarray:
    """The kernel (width, taps) of a convolution of each channel alone."""
    if values.ndim != 3 or values.shape[1] != 1:
        raise LoadError(
            f"depthwise_conv1d: expected a kernel (width, 1, taps), got shape {list(values.shape)}"
        )
    return values[:, 0]


CONFORMER_LAYER = "audio_tower.layers.{}."
CONFORMER_MATRICES = table("""
    feed_forward1.ffw_layer_1 ffn_up, feed_forward1.ffw_layer_2 ffn_down
    feed_forward2.ffw_layer_1 ffn_up_1, feed_forward2.ffw_layer_2 ffn_down_1
    self_attn.q_proj attn_q, self_attn.k_proj attn_k, self_attn.v_proj attn_v, self_attn.post attn_out
    lconv1d.linear_start conv_pw1, lconv1d.linear_end conv_pw2
""")


def conformer_bounds(source: Source) -> tuple[Part, ...]:
    if not source.tower.flag("use_clipped_linears", True):
        return ()
    return bounds(CONFORMER_LAYER, "a", CONFORMER_MATRICES, source)


def frame_facts(source: Source) -> Metadata:
    """Samples of a frame, which the projection reads as they are."""
    tower = source.tower
    width = tower.size("audio_embed_dim", 640)
    tower.require(rms_norm_eps=1e-6)
    for name in ("hidden_size", "output_proj_dims", "audio_samples_per_token"):  # names of the same number
        tower.only(name, width)
    return audio_facts(width, width, 0, 0, 0, 1e-6, source.text.size("hidden_size"))


# fmt: off
register(Tower(
    "Gemma4ForConditionalGeneration", "gemma4a", "audio_tower. embed_audio.", CONFORMER_LAYER,
    (*inner(CONFORMER_MATRICES), *table("""
        feed_forward1.pre_layer_norm ffn_norm, feed_forward1.post_layer_norm ffn_post_norm
        feed_forward2.pre_layer_norm ffn_norm_1, feed_forward2.post_layer_norm ffn_post_norm_1
        norm_pre_attn attn_pre_norm, norm_post_attn attn_post_norm, self_attn.relative_k_proj attn_k_rel
        lconv1d.pre_layer_norm conv_norm, lconv1d.conv_norm norm_conv, norm_out ln2
        lconv1d.depthwise_conv1d conv_dw -> without_channel
        self_attn.per_dim_scale per_dim_scale.weight = -> softplus
    """, without_channel=without_channel, softplus=softplus)),
    table("""
        audio_tower.subsample_conv_projection.layer0.conv a.conv1d.0
        audio_tower.subsample_conv_projection.layer0.norm a.conv1d.0.norm
        audio_tower.subsample_conv_projection.layer1.conv a.conv1d.1
        audio_tower.subsample_conv_projection.layer1.norm a.conv1d.1.norm
        audio_tower.subsample_conv_projection.input_proj_linear a.input_projection
        audio_tower.output_proj a.pre_encode.out +, embed_audio.embedding_projection mm.a.input_projection
    """),
    conformer_facts, modality="audio", more=conformer_bounds,
))
register(Tower(
    "Gemma4UnifiedForConditionalGeneration", "gemma4ua", "embed_audio.", "embed_audio.layers.{}.", (),
    table("embed_audio.embedding_projection mm.a.input_projection"), frame_facts, modality="audio",
))
