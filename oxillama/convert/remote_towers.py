"""Encoders whose classes come with the folders of their models: MiniCPM-V's and Kimi-VL's."""

from __future__ import annotations

import numpy as np

from oxillama.convert.clip_towers import CLIP_LAYER, siglip
from oxillama.convert.towers import EPS, Item, Metadata, Source, Tower, items, part, vision_sizes
from oxillama.errors import LoadError

# --- MiniCPM-V --------------------------------------------------------------------------------------

MINICPM_VERSIONS = {"2.5": 2, "2.6": 3, "4.0": 5, "4": 5, "4.5": 6}
"""Numbers of GGUF by the ``version`` of a config."""

MINICPM_POSITIONS = 70
"""Places along a side of the table of positions."""


def minicpm_facts(source: Source) -> Metadata:
    config, tower, media = source.config, source.tower, source.media
    version = str(config.get("version"))
    if version not in MINICPM_VERSIONS:
        raise LoadError(
            f"{config.name}: version: expected one of {', '.join(MINICPM_VERSIONS)}, got {version:.40}"
        )
    config.only("drop_vision_last_layer", False)
    media.values |= {f"image_{name}": media.get(f"norm_{name}") for name in ("mean", "std")}
    facts = vision_sizes(source)
    tower.require(hidden_act="gelu_pytorch_tanh", image_size=MINICPM_POSITIONS * facts["vision.patch_size"])
    side = config.size("image_size", 448)
    media.only("scale_resolution", side)
    return {
        **facts,
        "use_gelu": True,
        "vision.image_size": side,
        EPS: tower.number("layer_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
        "minicpmv_version": MINICPM_VERSIONS[version],
        "minicpmv_query_num": config.size("query_num"),
    }


def transposed(values: np.ndarray, source: Source) -> np.ndarray:
    return np.ascontiguousarray(values.T)


def unread(values: np.ndarray, source: Source) -> np.ndarray:
    """One row of zeros: llama.cpp loads a table of positions, and reads nothing of it."""
    return np.zeros_like(values[:1])


RESAMPLER = (
    *items("""
        resampler.kv_proj resampler.kv
        resampler.attn.out_proj resampler.attn.out +
        resampler.ln_q resampler.ln_q +
        resampler.ln_kv resampler.ln_kv +
        resampler.ln_post resampler.ln_post +
    """),
    Item("resampler.query", "resampler.query", bare=True),
    Item("resampler.query", "resampler.pos_embed_k", bare=True, change=unread),
    Item("resampler.proj", "resampler.proj.weight", bare=True, change=transposed),
    *(
        Item(f"resampler.attn.in_proj_{kind}", f"resampler.attn.{name}.{kind}", bare=True, change=part(i))
        for i, name in enumerate("qkv")
        for kind in ("weight", "bias")
    ),
)

MINICPM = Tower(
    "resampler",
    ("vpm.", "resampler."),
    "vpm.encoder.layers.{}.",
    CLIP_LAYER,
    (*siglip("vpm"), *RESAMPLER),
    minicpm_facts,
    ignored=("resampler.pos_embed",),
)

# --- Kimi-VL ----------------------------------------------------------------------------------------


def kimi_facts(source: Source) -> Metadata:
    tower = source.tower
    tower.only("merge_kernel_size", [2, 2])
    facts = vision_sizes(source)
    sides = [tower.size(f"init_pos_emb_{name}", 64) for name in ("height", "width")]
    if sides[0] != sides[1]:
        raise LoadError(
            f"{tower.name}: init_pos_emb_width: expected {sides[0]} as the height, got {sides[1]}"
        )
    return {
        **facts,
        "use_gelu": True,
        "vision.image_size": sides[0] * facts["vision.patch_size"],
        EPS: 1e-5,  # torch's own, which the class leaves
        "vision.projection_dim": source.text.size("hidden_size"),
        "vision.projector.scale_factor": 2,
    }


def kimi_part(i: int) -> Item:
    """The rows of the queries, the keys or the values, with those of a head in the order of `by_axes`."""

    def change(values: np.ndarray, source: Source) -> np.ndarray:
        rows = part(i)(values, source)
        return rows if i == 2 else by_axes(rows, source.tower.size("num_attention_heads"))

    return Item("wqkv", f"attn_{'qkv'[i]}", bias=True, change=change)


def by_axes(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows whose pairs of neighbours rotate by x, y, x, y, ...; then all of x before all of y.

    The second order is GGUF's.
    """
    if len(rows) % (4 * heads):
        raise LoadError(f"wqkv: expected rows of {heads} heads of a multiple of 4, got {len(rows)}")
    pairs = rows.reshape(heads, -1, 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


KIMI_LAYER = (
    *items("""
        norm0 ln1 +
        norm1 ln2 +
        wo attn_out +
        mlp.fc0 ffn_up +
        mlp.fc1 ffn_down +
    """),
    *(kimi_part(i) for i in range(3)),
)


def as_rows(values: np.ndarray, source: Source) -> np.ndarray:
    """A table (side, side, width) with its places in one row after the other."""
    return values.reshape(-1, values.shape[-1])


KIMI = Tower(
    "kimivl",
    ("vision_tower.", "multi_modal_projector."),
    "vision_tower.encoder.blocks.{}.",
    KIMI_LAYER,
    (
        *items("""
            vision_tower.patch_embed.proj v.patch_embd +
            vision_tower.encoder.final_layernorm v.post_ln +
            multi_modal_projector.pre_norm mm.input_norm +
            multi_modal_projector.linear_1 mm.1 +
            multi_modal_projector.linear_2 mm.2 +
        """),
        Item("vision_tower.patch_embed.pos_emb", "v.position_embd", change=as_rows),
    ),
    kimi_facts,
)
