"""Encoders of pictures that are close to CLIP, SigLIP or Pixtral's."""

from __future__ import annotations

import numpy as np

from oxillama.apps.convert.tables import Part, table
from oxillama.apps.convert.towers import (
    EPS,
    SCALE,
    Metadata,
    Source,
    Tower,
    apart,
    axial_rotation,
    channels_first,
    derive,
    first_last,
    flat,
    inverse,
    longest_edge,
    one_of_two,
    part,
    register,
    side_of,
    usual_facts,
    vision_sizes,
)
from oxillama.errors import LoadError

CLIP_LAYER = table("""
    layer_norm1 ln1 +, layer_norm2 ln2 +
    self_attn.q_proj attn_q +, self_attn.k_proj attn_k +, self_attn.v_proj attn_v +
    self_attn.out_proj attn_out +, mlp.fc1 ffn_up +, mlp.fc2 ffn_down +
""")
VISION_TOWER = "vision_tower. multi_modal_projector."
LAYERS = "vision_tower.encoder.layers.{}."


def siglip(root: str) -> tuple[Part, ...]:
    """Tensors of SigLIP outside of its layers; all names begin with ``root``."""
    return table(f"""
        {root}.embeddings.patch_embedding v.patch_embd +, {root}.embeddings.position_embedding v.position_embd
        {root}.post_layernorm v.post_ln +
    """)


def two_matrices(source: Source, first: str, second: str, flag: str) -> tuple[Part, ...]:
    """The two matrices of a projector, with biases unless the ``flag`` of the config is false."""
    mark = "+" if source.config.flag(flag, True) else ""
    return table(f"""
        multi_modal_projector.linear_1 {first} {mark}, multi_modal_projector.linear_2 {second} {mark}
    """)


# --- SigLIP -----------------------------------------------------------------------------------------


def siglip_facts(source: Source) -> Metadata:
    source.tower.ignore("vision_use_head")  # no family reads the head
    return usual_facts(source)


def gemma3_facts(source: Source) -> Metadata:
    facts = siglip_facts(source)
    patches = facts["vision.image_size"] // facts["vision.patch_size"]
    side = side_of(source.config.size("mm_tokens_per_image", 256), "config.json: mm_tokens_per_image")
    if patches % side:
        raise LoadError(f"config.json: mm_tokens_per_image: {side} do not divide {patches} patches of a side")
    return {**facts, SCALE: patches // side}


def idefics3_facts(source: Source) -> Metadata:
    facts = siglip_facts(source)
    facts[SCALE] = source.config.size("scale_factor", 2)
    facts["vision.preproc_image_size"] = longest_edge(source)
    source.media.table("max_image_size").require(longest_edge=facts["vision.image_size"])
    return facts


def lfm2_facts(source: Source) -> Metadata:
    side = side_of(source.tower.size("num_patches", 256), f"{source.tower.name}: num_patches")
    source.tower.ignore("image_size", "vision_use_head")
    facts = usual_facts(source, image_size=side * source.tower.size("patch_size"))
    return {**facts, SCALE: source.config.size("downsample_factor", 2)}


def lfm2_projector(source: Source) -> tuple[Part, ...]:
    source.config.only("projector_hidden_act", "gelu")
    matrices = two_matrices(source, "mm.1", "mm.2", "projector_bias")
    if not source.config.flag("projector_use_layernorm", True):
        return matrices
    return (*matrices, *table("multi_modal_projector.layer_norm mm.input_norm +"))


def paddleocr_facts(source: Source) -> Metadata:
    facts = siglip_facts(source)
    axial_rotation(source.tower)
    source.tower.require(spatial_merge_size=2)
    source.tower.ignore("tokens_per_second")
    size = source.media.table("size")
    for limit, edge in (("min", "shortest_edge"), ("max", "longest_edge")):
        found = size.size(edge) if size.has(edge) else source.media.size(f"{limit}_pixels")
        facts[f"vision.image_{limit}_pixels"] = found
    return facts


# fmt: off
register(Tower(
    "Gemma3ForConditionalGeneration", "gemma3", VISION_TOWER, LAYERS, CLIP_LAYER,
    (
        *siglip("vision_tower"),
        *table("""
            multi_modal_projector.mm_soft_emb_norm mm.soft_emb_norm -> plus_1
            multi_modal_projector.mm_input_projection_weight mm.input_projection.weight =
        """, plus_1=lambda values, source: values + np.float32(1)),
    ),
    gemma3_facts, ignored="vision_tower.head.",
))
register(Tower(
    "Idefics3ForConditionalGeneration SmolVLMForConditionalGeneration", "idefics3",
    "vision_model. connector.", "vision_model.encoder.layers.{}.", CLIP_LAYER,
    (*siglip("vision_model"), *table("connector.modality_projection.proj mm.model.fc")), idefics3_facts,
))
PATCHES = table("""
    vision_tower.embeddings.patch_embedding.weight v.patch_embd.weight = -> channels_first
    vision_tower.embeddings.patch_embedding.bias v.patch_embd.bias =
""", channels_first=channels_first)
register(Tower(
    "Lfm2VlForConditionalGeneration", "lfm2", VISION_TOWER, LAYERS, CLIP_LAYER,
    (*PATCHES, *siglip("vision_tower")[1:]), lfm2_facts, more=lfm2_projector, ignored="vision_tower.head.",
))
register(Tower(
    "PaddleOCRVLForConditionalGeneration", "paddleocr", "visual. mlp_AR.", "visual.encoder.layers.{}.",
    CLIP_LAYER,
    (
        *siglip("visual"),
        *table("mlp_AR.pre_norm mm.input_norm +, mlp_AR.linear_1 mm.1 +, mlp_AR.linear_2 mm.2 +"),
    ),
    paddleocr_facts, ignored="visual.head. visual.embeddings.packing_position_embedding.",
))
# fmt: on

# --- LLaVA ------------------------------------------------------------------------------------------


def has_class(source: Source) -> bool:
    """Whether LLaVA's encoder is CLIP, which has a row for the class of a picture, and not SigLIP."""
    return bool(source.tower.get("model_type") == "clip_vision_model")


def llava_facts(source: Source) -> Metadata:
    """Readers of files take the rows of the last layer but one; later layers are left out."""
    clip = has_class(source)
    source.tower.ignore("vision_use_head", "initializer_factor", "projection_dim")
    source.config.only("vision_feature_select_strategy", "default" if clip else "full")
    source.config.only("projector_hidden_act", "gelu")
    eps = source.tower.number("layer_norm_eps", 1e-5 if clip else 1e-6)
    facts = usual_facts(source, "quick_gelu" if clip else "gelu_pytorch_tanh", eps=eps)
    layer, n = source.config.get("vision_feature_layer", -2), facts["vision.block_count"]
    wrong = type(layer) is not int or not -n <= layer <= -2
    source.config.refuse_if(wrong, "vision_feature_layer", f"-2 to {-n}", layer)
    facts["vision.block_count"] = n + layer + 2
    return facts | ({"vision.drops_class_row": True} if clip else {})


def llava_items(source: Source) -> tuple[Part, ...]:
    mlp = two_matrices(source, "mm.0", "mm.2", "multimodal_projector_bias")
    if not has_class(source):
        return (*siglip("vision_tower")[:2], *mlp)
    clip = table(
        """
        vision_tower.embeddings.patch_embedding v.patch_embd, vision_tower.pre_layrnorm v.pre_ln +
        vision_tower.embeddings.class_embedding v.class_embd =
        vision_tower.embeddings.position_embedding v.position_embd -> first_last
        """,
        first_last=first_last,
    )
    return (*mlp, *clip)


# fmt: off
register(Tower(
    "LlavaForConditionalGeneration", "mlp", VISION_TOWER, LAYERS, CLIP_LAYER, (), llava_facts,
    more=llava_items, ignored="vision_tower.post_layernorm. vision_tower.head.",
    kinds=("clip_vision_model", "siglip_vision_model"),
))
# fmt: on

# --- InternVL ---------------------------------------------------------------------------------------


def internvl_facts(source: Source) -> Metadata:
    tower, media = source.tower, source.media
    tower.require(use_qk_norm=False, use_absolute_position_embeddings=True, use_mask_token=False)
    tower.require(attention_bias=True, norm_type="layer_norm")
    tower.ignore("use_mean_pooling", "projection_dropout", "layer_scale_init_value")  # no effect on the rows
    source.config.require(vision_feature_layer=-1, vision_feature_select_strategy="default")
    source.config.require(projector_hidden_act="gelu")
    ratio = inverse(source.config, "downsample_ratio")
    facts = {**usual_facts(source, "gelu", one_of_two(tower, "image_size")), SCALE: ratio}
    for limit in ("min", "max"):
        if media.has(f"{limit}_patches"):
            facts[f"vision.preproc_{limit}_tiles"] = media.size(f"{limit}_patches")
    return facts


# fmt: off
register(Tower(
    "InternVLForConditionalGeneration", "internvl", VISION_TOWER, "vision_tower.encoder.layer.{}.",
    table("""
        layernorm_before ln1 +, layernorm_after ln2 +
        attention.q_proj attn_q +, attention.k_proj attn_k +, attention.v_proj attn_v +
        attention.projection_layer attn_out +, mlp.fc1 ffn_up +, mlp.fc2 ffn_down +
        lambda_1 ls1.weight =, lambda_2 ls2.weight =
    """),
    table("""
        vision_tower.embeddings.patch_embeddings.projection v.patch_embd +
        multi_modal_projector.layer_norm mm.model.mlp.0 +
        multi_modal_projector.linear_1 mm.model.mlp.1 +, multi_modal_projector.linear_2 mm.model.mlp.3 +
        vision_tower.embeddings.cls_token v.class_embd = -> flat
        vision_tower.embeddings.position_embeddings v.position_embd.weight = -> first_last
    """, flat=flat, first_last=first_last),
    internvl_facts,
))
# fmt: on

# --- Pixtral, Mistral 3, LightOnOCR -----------------------------------------------------------------


def pixtral_facts(source: Source) -> Metadata:
    """The class does not read an epsilon."""
    source.config.require(projector_hidden_act="gelu", vision_feature_layer=-1)
    source.config.only("vision_feature_select_strategy", "full", "default")
    facts = usual_facts(source, "gelu", eps=1e-5)
    axial_rotation(source.tower)
    source.tower.require(head_dim=facts["vision.embedding_length"] // facts["vision.attention.head_count"])
    return facts


def mistral3_facts(source: Source) -> Metadata:
    facts = pixtral_facts(source)
    return {**facts, "vision.spatial_merge_size": source.config.size("spatial_merge_size", 2)}


def lightonocr_facts(source: Source) -> Metadata:
    return {**mistral3_facts(source), "vision.preproc_image_size": longest_edge(source)}


def line_end(source: Source) -> tuple[Part, ...]:
    """The embedding of the token after each line of a picture, and the two matrices."""
    row = source.token("[IMG_BREAK]")

    def change(values: np.ndarray, source: Source) -> np.ndarray:
        if row >= len(values):
            raise LoadError(f"embed_tokens: expected a row for token {row}, got {len(values)} rows")
        found: np.ndarray = values[row]
        return found

    return (
        *table("embed_tokens.weight v.token_embd.img_break = -> row", row=change),
        *two_matrices(source, "mm.1", "mm.2", "multimodal_projector_bias"),
    )


# fmt: off
PIXTRAL = register(Tower(
    "LlavaForConditionalGeneration", "pixtral", f"{VISION_TOWER} embed_tokens.",
    "vision_tower.transformer.layers.{}.",
    table("""
        attention.q_proj attn_q / rotates, attention.k_proj attn_k / rotates, attention.v_proj attn_v
        attention.o_proj attn_out, attention_norm ln1, ffn_norm ln2, feed_forward.gate_proj ffn_gate
        feed_forward.up_proj ffn_up, feed_forward.down_proj ffn_down
    """),
    table("vision_tower.patch_conv v.patch_embd, vision_tower.ln_pre v.pre_ln"),
    pixtral_facts, more=line_end, kinds=("pixtral",),
))
derive(
    PIXTRAL, "Mistral3ForConditionalGeneration", facts=mistral3_facts, kinds=(),
    others=(*PIXTRAL.others, *table("""
        multi_modal_projector.norm mm.input_norm
        multi_modal_projector.patch_merger.merging_layer mm.patch_merger
    """)),
)
register(Tower(
    "LightOnOcrForConditionalGeneration", "lightonocr", "vision_encoder. vision_projection.",
    "vision_encoder.transformer.layers.{}.", PIXTRAL.layers,
    table("""
        vision_encoder.patch_conv v.patch_embd, vision_encoder.ln_pre v.pre_ln
        vision_projection.norm mm.input_norm, vision_projection.patch_merger.merging_layer mm.patch_merger
        vision_projection.linear_1 mm.1, vision_projection.linear_2 mm.2
    """),
    lightonocr_facts,
))
# fmt: on

# --- Llama 4 ----------------------------------------------------------------------------------------


def llama4_facts(source: Source) -> Metadata:
    """The epsilon of the norms is a constant of the class, which does not read norm_eps."""
    tower = source.tower
    ratio = inverse(tower, "pixel_shuffle_ratio")
    axial_rotation(tower)
    tower.require(vision_feature_select_strategy="default", multi_modal_projector_bias=False)
    tower.ignore("vision_output_dim", "projector_input_dim", "projector_output_dim", "projector_dropout")
    tower.ignore("vision_feature_layer", "norm_eps")
    return {**usual_facts(source, "gelu", eps=1e-5), SCALE: ratio, "vision.goes_by_rows": True}


# fmt: off
register(Tower(
    "Llama4ForConditionalGeneration", "llama4", "vision_model. multi_modal_projector.",
    "vision_model.model.layers.{}.",
    table("""
        input_layernorm ln1 +, post_attention_layernorm ln2 +
        self_attn.q_proj attn_q +, self_attn.k_proj attn_k +, self_attn.v_proj attn_v +
        self_attn.o_proj attn_out +, mlp.fc1 ffn_up +, mlp.fc2 ffn_down +
    """),
    table("""
        vision_model.patch_embedding.linear v.patch_embd
        vision_model.layernorm_pre v.pre_ln +, vision_model.layernorm_post v.post_ln +
        vision_model.vision_adapter.mlp.fc1 mm.model.mlp.1, vision_model.vision_adapter.mlp.fc2 mm.model.mlp.2
        multi_modal_projector.linear_1 mm.model.fc
        vision_model.class_embedding v.class_embd =
        vision_model.positional_embedding_vlm v.position_embd.weight =
    """),
    llama4_facts,
))
# fmt: on

# --- MiniCPM-V, whose class comes with the folder of a model ----------------------------------------

MINICPM_VERSIONS = {"2.5": 2, "2.6": 3, "4.0": 5, "4": 5, "4.5": 6}
"""Numbers of GGUF by the ``version`` of a config."""

MINICPM_POSITIONS = 70
"""Places along a side of the table of positions."""


def minicpm_facts(source: Source) -> Metadata:
    config, tower, media = source.config, source.tower, source.media
    version, known = str(config.get("version")), ", ".join(MINICPM_VERSIONS)
    if version not in MINICPM_VERSIONS:
        raise LoadError(f"{config.name}: version: expected one of {known}, got {version:.40}")
    config.only("drop_vision_last_layer", False)
    media.values |= {f"image_{name}": media.get(f"norm_{name}") for name in ("mean", "std")}
    side = config.size("image_size", 448)
    facts = usual_facts(source, image_size=side)
    size = MINICPM_POSITIONS * facts["vision.patch_size"]
    tower.require(hidden_act="gelu_pytorch_tanh", image_size=size)
    media.only("scale_resolution", side)
    version_number, queries = MINICPM_VERSIONS[version], config.size("query_num")
    return {**facts, "minicpmv_version": version_number, "minicpmv_query_num": queries}


# fmt: off
register(Tower(
    "MiniCPMV", "resampler", "vpm. resampler.", "vpm.encoder.layers.{}.", CLIP_LAYER,
    (*siglip("vpm"), *table("""
        resampler.kv_proj resampler.kv, resampler.attn.out_proj resampler.attn.out +
        resampler.ln_q resampler.ln_q +, resampler.ln_kv resampler.ln_kv +
        resampler.ln_post resampler.ln_post +, resampler.query resampler.query =
        resampler.query resampler.pos_embed_k = -> zeros, resampler.proj resampler.proj.weight = -> transposed
    """,
        zeros=lambda values, source: np.zeros_like(values[:1]),  # llama.cpp loads this tensor only
        transposed=lambda values, source: np.ascontiguousarray(values.T),
    ), *apart("resampler.attn.in_proj_{}", "resampler.attn.{x}.{}")),
    minicpm_facts, ignored="resampler.pos_embed",
))
# fmt: on

# --- Kimi-VL, whose class comes with the folder of a model ------------------------------------------


def kimi_facts(source: Source) -> Metadata:
    """The epsilon is PyTorch's default."""
    tower = source.tower
    tower.only("merge_kernel_size", [2, 2])
    facts = vision_sizes(source)
    sides = [tower.size(f"init_pos_emb_{name}", 64) for name in ("height", "width")]
    tower.refuse_if(sides[0] != sides[1], "init_pos_emb_width", f"{sides[0]} as the height", sides[1])
    return {
        **facts,
        "use_gelu": True,
        "vision.image_size": sides[0] * facts["vision.patch_size"],
        EPS: 1e-5,
        "vision.projection_dim": source.text.size("hidden_size"),
        SCALE: 2,
    }


def by_axes(i: int) -> Part:
    """The rows of q (0), k (1) or v (2). Pairs of neighbours of q and k are reordered.

    In the source the pairs of a head rotate by x, y, x, y, ...; in GGUF by all x and then all y.
    """

    def change(values: np.ndarray, source: Source) -> np.ndarray:
        rows, heads = part(i)(values, source), source.tower.size("num_attention_heads")
        if i == 2:
            return rows
        if len(rows) % (4 * heads):
            raise LoadError(f"wqkv: expected rows of {heads} heads of a multiple of 4, got {len(rows)}")
        pairs = rows.reshape(heads, -1, 2, 2, *rows.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)

    return Part("wqkv", f"attn_{'qkv'[i]}", bias="yes", change=change)


# fmt: off
register(Tower(
    "KimiVLForConditionalGeneration", "kimivl", VISION_TOWER, "vision_tower.encoder.blocks.{}.",
    (
        *table("norm0 ln1 +, norm1 ln2 +, wo attn_out +, mlp.fc0 ffn_up +, mlp.fc1 ffn_down +"),
        *(by_axes(i) for i in range(3)),
    ),
    table("""
        vision_tower.patch_embed.proj v.patch_embd +
        vision_tower.encoder.final_layernorm v.post_ln +
        multi_modal_projector.pre_norm mm.input_norm +
        multi_modal_projector.linear_1 mm.1 +, multi_modal_projector.linear_2 mm.2 +
        vision_tower.patch_embed.pos_emb v.position_embd -> as_rows
    """, as_rows=lambda values, source: values.reshape(-1, values.shape[-1])),
    kimi_facts,
))
