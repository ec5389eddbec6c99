"""Encoders of pictures of Gemma 4 and Llama 4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.convert.towers import (
    EPS,
    Item,
    Metadata,
    Source,
    Tower,
    activation,
    axial_rotation,
    channels_first,
    flat,
    items,
    one_of_two,
    three,
    vision_sizes,
)
from oxillama.errors import LoadError


def from_0_to_1(source: Source) -> None:
    """Has pixels stay between 0 and 1, whatever mean and deviation the preprocessor states."""
    source.media.ignore("image_mean", "image_std")
    source.media.values |= {"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}


def gemma4_facts(source: Source) -> Metadata:
    tower = source.tower
    from_0_to_1(source)  # the class maps them to -1..1
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
        "vision.image_size": 224,  # of no consequence
        EPS: tower.number("rms_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
        "vision.projector.scale_factor": tower.size("pooling_kernel_size", 3),
    }


GEMMA4_MATRICES = items("""
    self_attn.q_proj attn_q
    self_attn.k_proj attn_k
    self_attn.v_proj attn_v
    self_attn.o_proj attn_out
    mlp.gate_proj ffn_gate
    mlp.up_proj ffn_up
    mlp.down_proj ffn_down
""")
GEMMA4_LAYER = "vision_tower.encoder.layers.{}."
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def bounds(layer: str, prefix: str, matrices: tuple[Item, ...], source: Source) -> tuple[Item, ...]:
    """What clips the input and the output of each of the ``matrices``, in all layers."""
    return tuple(
        Item(
            f"{layer.format(i)}{item.source}.{bound}", f"{prefix}.blk.{i}.{item.target}.{bound}",
            bare=True, change=flat,
        )
        for i in range(source.tower.size("num_hidden_layers"))
        for item in matrices
        for bound in BOUNDS
    )  # fmt: skip


def inner(matrices: tuple[Item, ...]) -> tuple[Item, ...]:
    """Matrices that stand beside their bounds."""
    return tuple(replace(item, source=f"{item.source}.linear") for item in matrices)


def gemma4_items(source: Source) -> tuple[Item, ...]:
    """Bounds of the matrices, and what standardizes the rows, if the config says so."""
    found: list[Item] = []
    if source.tower.flag("standardize"):
        found += [Item(f"vision_tower.{name}", f"v.{name}", bare=True) for name in ("std_bias", "std_scale")]
    if source.tower.flag("use_clipped_linears"):
        found += bounds(GEMMA4_LAYER, "v", GEMMA4_MATRICES, source)
    return tuple(found)


GEMMA4 = Tower(
    "gemma4v",
    ("vision_tower.", "embed_vision."),
    GEMMA4_LAYER,
    (
        *inner(GEMMA4_MATRICES),
        *items("""
            self_attn.q_norm attn_q_norm
            self_attn.k_norm attn_k_norm
            input_layernorm ln1
            post_attention_layernorm attn_post_norm
            pre_feedforward_layernorm ln2
            post_feedforward_layernorm ffn_post_norm
        """),
    ),
    (
        Item("vision_tower.patch_embedder.input_proj", "v.patch_embd", change=channels_first),
        Item(
            "vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight", bare=True
        ),
        Item("embed_vision.embedding_projection", "mm.input_projection"),
    ),
    gemma4_facts,
    more=gemma4_items,
)  # fmt: skip


def unified_facts(source: Source) -> Metadata:
    """Sizes of an embedding of merged patches, behind which no blocks stand."""
    tower = source.tower
    from_0_to_1(source)
    width = tower.size("mm_embed_dim", 3840)
    tower.only("output_proj_dims", width)  # what the projection reads
    side = one_of_two(tower, "patch_size", 16) * tower.size("pooling_kernel_size", 3)
    tower.only("model_patch_size", side)
    tower.ignore("mm_posemb_size")  # which the table shows
    return {
        "vision.embedding_length": width,
        "vision.block_count": 0,
        "vision.attention.head_count": 0,
        "vision.feed_forward_length": 0,
        "vision.patch_size": one_of_two(tower, "patch_size", 16),
        "vision.image_mean": three(source.media, "image_mean"),
        "vision.image_std": three(source.media, "image_std"),
        "vision.image_size": 224,  # of no consequence
        EPS: tower.number("rms_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
        "vision.projector.scale_factor": tower.size("pooling_kernel_size", 3),
    }


def by_channel(values: np.ndarray, source: Source) -> np.ndarray:
    """Numbers for the pixels of a merged patch (..., 3 * side * side), with the channel first."""
    tower = source.tower
    side = one_of_two(tower, "patch_size", 16) * tower.size("pooling_kernel_size", 3)
    if values.shape[-1] != 3 * side * side:
        raise LoadError(f"patches: expected rows of {3 * side * side} numbers, got {values.shape[-1]}")
    pixels = np.moveaxis(values.reshape(*values.shape[:-1], side, side, 3), -1, -3)
    return np.ascontiguousarray(pixels).reshape(values.shape)


def by_axis(values: np.ndarray, source: Source) -> np.ndarray:
    """A table (places, 2, width) as one for each axis."""
    return np.ascontiguousarray(values.swapaxes(0, 1))


GEMMA4_UNIFIED = Tower(
    "gemma4uv",
    ("vision_embedder.", "embed_vision."),
    "vision_embedder.layers.{}.",
    (),
    (
        Item("vision_embedder.patch_ln1", "v.patch_norm.1", True, change=by_channel),
        Item("vision_embedder.patch_dense.weight", "v.patch_embd.weight", bare=True, change=by_channel),
        Item("vision_embedder.patch_dense.bias", "v.patch_embd.bias", bare=True),
        Item("vision_embedder.patch_ln2", "v.patch_norm.2", True),
        Item("vision_embedder.pos_embedding", "v.position_embd.weight", bare=True, change=by_axis),
        Item("vision_embedder.pos_norm", "v.patch_norm.3", True),
        Item("embed_vision.embedding_projection", "mm.input_projection"),
    ),
    unified_facts,
)


def llama4_facts(source: Source) -> Metadata:
    tower = source.tower
    ratio = tower.number("pixel_shuffle_ratio", 0.5)
    if round(1 / ratio) * ratio != 1:
        raise LoadError(f"{tower.name}: pixel_shuffle_ratio: expected 1 / n, got {ratio}")
    axial_rotation(tower)
    tower.only("vision_feature_select_strategy", "default")
    tower.only("multi_modal_projector_bias", False)
    tower.ignore("vision_output_dim", "projector_input_dim", "projector_output_dim", "projector_dropout")
    tower.ignore("vision_feature_layer", "norm_eps")  # which the class does not read
    return {
        **vision_sizes(source),
        **activation(tower, "hidden_act", "gelu"),
        "vision.image_size": tower.size("image_size"),
        EPS: 1e-5,  # the norms' own, whatever norm_eps says
        "vision.projection_dim": source.text.size("hidden_size"),
        "vision.projector.scale_factor": round(1 / ratio),
        "vision.goes_by_rows": True,
    }


LLAMA4 = Tower(
    "llama4",
    ("vision_model.", "multi_modal_projector."),
    "vision_model.model.layers.{}.",
    items("""
        input_layernorm ln1 +
        post_attention_layernorm ln2 +
        self_attn.q_proj attn_q +
        self_attn.k_proj attn_k +
        self_attn.v_proj attn_v +
        self_attn.o_proj attn_out +
        mlp.fc1 ffn_up +
        mlp.fc2 ffn_down +
    """),
    (
        *items("""
            vision_model.patch_embedding.linear v.patch_embd
            vision_model.layernorm_pre v.pre_ln +
            vision_model.layernorm_post v.post_ln +
            vision_model.vision_adapter.mlp.fc1 mm.model.mlp.1
            vision_model.vision_adapter.mlp.fc2 mm.model.mlp.2
            multi_modal_projector.linear_1 mm.model.fc
        """),
        Item("vision_model.class_embedding", "v.class_embd", bare=True),
        Item("vision_model.positional_embedding_vlm", "v.position_embd.weight", bare=True),
    ),
    llama4_facts,
)
