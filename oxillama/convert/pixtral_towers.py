"""Encoders of pictures that are Pixtral's: Pixtral, Mistral 3, LightOnOCR."""

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
    items,
    longest_edge,
    vision_sizes,
)
from oxillama.errors import LoadError

PIXTRAL_LAYER = (
    Item("attention.q_proj", "attn_q", rotates=True),
    Item("attention.k_proj", "attn_k", rotates=True),
    *items("""
        attention.v_proj attn_v
        attention.o_proj attn_out
        attention_norm ln1
        ffn_norm ln2
        feed_forward.gate_proj ffn_gate
        feed_forward.up_proj ffn_up
        feed_forward.down_proj ffn_down
    """),
)


def pixtral_facts(source: Source) -> Metadata:
    config, tower = source.config, source.tower
    config.only("projector_hidden_act", "gelu")
    config.only("vision_feature_layer", -1)
    config.only("vision_feature_select_strategy", "full", "default")
    facts: Metadata = {
        **vision_sizes(source),
        **activation(tower, "hidden_act", "gelu"),
        "vision.image_size": tower.size("image_size"),
        EPS: 1e-5,  # which the class does not read from a config
        "vision.projection_dim": source.text.size("hidden_size"),
    }
    axial_rotation(tower)
    tower.require(head_dim=facts["vision.embedding_length"] // facts["vision.attention.head_count"])
    return facts


def merging_facts(source: Source) -> Metadata:
    facts = pixtral_facts(source)
    facts["vision.spatial_merge_size"] = source.config.size("spatial_merge_size", 2)
    return facts


def line_end(source: Source) -> tuple[Item, ...]:
    """The embedding of the token behind each line of a picture, and the two matrices."""
    row = source.token("[IMG_BREAK]")
    has_bias = source.config.flag("multimodal_projector_bias", True)

    def change(values: np.ndarray, source: Source) -> np.ndarray:
        if row >= len(values):
            raise LoadError(f"embed_tokens: expected a row for token {row}, got {len(values)} rows")
        found: np.ndarray = values[row]
        return found

    return (
        Item("embed_tokens.weight", "v.token_embd.img_break", bare=True, change=change),
        Item("multi_modal_projector.linear_1", "mm.1", has_bias),
        Item("multi_modal_projector.linear_2", "mm.2", has_bias),
    )


PIXTRAL = Tower(
    "pixtral",
    ("vision_tower.", "multi_modal_projector.", "embed_tokens."),
    "vision_tower.transformer.layers.{}.",
    PIXTRAL_LAYER,
    items("vision_tower.patch_conv v.patch_embd\n vision_tower.ln_pre v.pre_ln"),
    pixtral_facts,
    more=line_end,
)
MISTRAL3 = replace(
    PIXTRAL,
    others=(
        *PIXTRAL.others,
        *items("""
            multi_modal_projector.norm mm.input_norm
            multi_modal_projector.patch_merger.merging_layer mm.patch_merger
        """),
    ),
    facts=merging_facts,
)


def lightonocr_facts(source: Source) -> Metadata:
    return {**merging_facts(source), "vision.preproc_image_size": longest_edge(source)}


LIGHTONOCR = Tower(
    "lightonocr",
    ("vision_encoder.", "vision_projection."),
    "vision_encoder.transformer.layers.{}.",
    PIXTRAL_LAYER,
    items("""
        vision_encoder.patch_conv v.patch_embd
        vision_encoder.ln_pre v.pre_ln
        vision_projection.norm mm.input_norm
        vision_projection.patch_merger.merging_layer mm.patch_merger
        vision_projection.linear_1 mm.1
        vision_projection.linear_2 mm.2
    """),
    lightonocr_facts,
)
