"""Encoders of pictures that are SigLIP's, CLIP's or InternVL's: Gemma 3, SmolVLM, LFM2, PaddleOCR, LLaVA."""

from __future__ import annotations

from oxillama.convert.towers import (
    EPS,
    Item,
    Metadata,
    Source,
    Tower,
    activation,
    axial_rotation,
    channels_first,
    first_last,
    flat,
    items,
    longest_edge,
    one_of_two,
    side_of,
    vision_sizes,
)
from oxillama.errors import LoadError

# --- SigLIP and CLIP --------------------------------------------------------------------------------

CLIP_LAYER = items("""
    layer_norm1 ln1 +
    layer_norm2 ln2 +
    self_attn.q_proj attn_q +
    self_attn.k_proj attn_k +
    self_attn.v_proj attn_v +
    self_attn.out_proj attn_out +
    mlp.fc1 ffn_up +
    mlp.fc2 ffn_down +
""")


def siglip(root: str) -> tuple[Item, ...]:
    """What SigLIP has outside of its layers."""
    return items(f"""
        {root}.embeddings.patch_embedding v.patch_embd +
        {root}.embeddings.position_embedding v.position_embd
        {root}.post_layernorm v.post_ln +
    """)


def siglip_facts(source: Source) -> Metadata:
    source.tower.ignore("vision_use_head")  # which no family reads
    return {
        **vision_sizes(source),
        **activation(source.tower, "hidden_act", "gelu_pytorch_tanh"),
        "vision.image_size": source.tower.size("image_size"),
        EPS: source.tower.number("layer_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
    }


def gemma3_facts(source: Source) -> Metadata:
    facts = siglip_facts(source)
    patches = facts["vision.image_size"] // facts["vision.patch_size"]
    side = side_of(source.config.size("mm_tokens_per_image", 256), "config.json: mm_tokens_per_image")
    if patches % side:
        raise LoadError(f"config.json: mm_tokens_per_image: {side} do not divide {patches} patches of a side")
    return {**facts, "vision.projector.scale_factor": patches // side}


GEMMA3 = Tower(
    "gemma3",
    ("vision_tower.", "multi_modal_projector."),
    "vision_tower.encoder.layers.{}.",
    CLIP_LAYER,
    (
        *siglip("vision_tower"),
        Item("multi_modal_projector.mm_soft_emb_norm", "mm.soft_emb_norm", plus=1.0),
        Item(
            "multi_modal_projector.mm_input_projection_weight", "mm.input_projection.weight", bare=True
        ),
    ),
    gemma3_facts,
    ignored=("vision_tower.head.",),
)  # fmt: skip


def idefics3_facts(source: Source) -> Metadata:
    facts = siglip_facts(source)
    facts["vision.projector.scale_factor"] = source.config.size("scale_factor", 2)
    facts["vision.preproc_image_size"] = longest_edge(source)
    tile = source.media.table("max_image_size")
    tile.require(longest_edge=facts["vision.image_size"])
    return facts


IDEFICS3 = Tower(
    "idefics3",
    ("vision_model.", "connector."),
    "vision_model.encoder.layers.{}.",
    CLIP_LAYER,
    (*siglip("vision_model"), Item("connector.modality_projection.proj", "mm.model.fc")),
    idefics3_facts,
)


def lfm2_facts(source: Source) -> Metadata:
    side = side_of(source.tower.size("num_patches", 256), f"{source.tower.name}: num_patches")
    source.tower.ignore("image_size", "vision_use_head")
    return {
        **vision_sizes(source),
        **activation(source.tower, "hidden_act", "gelu_pytorch_tanh"),
        "vision.image_size": side * source.tower.size("patch_size"),
        EPS: source.tower.number("layer_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
        "vision.projector.scale_factor": source.config.size("downsample_factor", 2),
    }


def lfm2_projector(source: Source) -> tuple[Item, ...]:
    has_bias = source.config.flag("projector_bias", True)
    found = [
        Item("multi_modal_projector.linear_1", "mm.1", has_bias),
        Item("multi_modal_projector.linear_2", "mm.2", has_bias),
    ]
    if source.config.flag("projector_use_layernorm", True):
        found.append(Item("multi_modal_projector.layer_norm", "mm.input_norm", True))
    source.config.only("projector_hidden_act", "gelu")
    return tuple(found)


LFM2 = Tower(
    "lfm2",
    ("vision_tower.", "multi_modal_projector."),
    "vision_tower.encoder.layers.{}.",
    CLIP_LAYER,
    (
        Item(
            "vision_tower.embeddings.patch_embedding.weight", "v.patch_embd.weight", bare=True,
            change=channels_first,
        ),
        Item("vision_tower.embeddings.patch_embedding.bias", "v.patch_embd.bias", bare=True),
        *siglip("vision_tower")[1:],
    ),
    lfm2_facts,
    more=lfm2_projector,
    ignored=("vision_tower.head.",),
)  # fmt: skip


def paddleocr_facts(source: Source) -> Metadata:
    facts = siglip_facts(source)
    axial_rotation(source.tower)
    source.tower.require(spatial_merge_size=2, tokens_per_second=source.tower.get("tokens_per_second"))
    size = source.media.table("size")
    for ours, theirs, inner in (
        ("min", "min_pixels", "shortest_edge"),
        ("max", "max_pixels", "longest_edge"),
    ):
        facts[f"vision.image_{ours}_pixels"] = (size if size.has(inner) else source.media).size(
            inner if size.has(inner) else theirs
        )
    return facts


PADDLEOCR = Tower(
    "paddleocr",
    ("visual.", "mlp_AR."),
    "visual.encoder.layers.{}.",
    CLIP_LAYER,
    (
        *siglip("visual"),
        *items("""
            mlp_AR.pre_norm mm.input_norm +
            mlp_AR.linear_1 mm.1 +
            mlp_AR.linear_2 mm.2 +
        """),
    ),
    paddleocr_facts,
    ignored=("visual.head.", "visual.embeddings.packing_position_embedding."),
)

# --- LLaVA ------------------------------------------------------------------------------------------


def llava_facts(source: Source) -> Metadata:
    """The layer whose rows are taken is the last but one that a file has."""
    has_class = source.tower.get("model_type") == "clip_vision_model"
    source.tower.ignore("vision_use_head", "initializer_factor", "projection_dim")
    source.config.only("vision_feature_select_strategy", "default" if has_class else "full")
    source.config.only("projector_hidden_act", "gelu")
    usual = "quick_gelu" if has_class else "gelu_pytorch_tanh"
    facts: Metadata = {
        **vision_sizes(source),
        **activation(source.tower, "hidden_act", usual),
        "vision.image_size": source.tower.size("image_size"),
        EPS: source.tower.number("layer_norm_eps", 1e-5 if has_class else 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
    }
    layer, n = source.config.get("vision_feature_layer", -2), facts["vision.block_count"]
    if type(layer) is not int or not -n <= layer <= -2:
        raise LoadError(f"config.json: vision_feature_layer: expected -2 to {-n}, got {layer!r:.60}")
    facts["vision.block_count"] = n + layer + 2
    return facts | ({"vision.drops_class_row": True} if has_class else {})


def llava_items(source: Source) -> tuple[Item, ...]:
    has_bias = source.config.flag("multimodal_projector_bias", True)
    mlp = (
        Item("multi_modal_projector.linear_1", "mm.0", has_bias),
        Item("multi_modal_projector.linear_2", "mm.2", has_bias),
    )
    if source.tower.get("model_type") != "clip_vision_model":
        return (*siglip("vision_tower")[:2], *mlp)
    return (
        *mlp,
        *items("""
            vision_tower.embeddings.patch_embedding v.patch_embd
            vision_tower.pre_layrnorm v.pre_ln +
        """),
        Item("vision_tower.embeddings.class_embedding", "v.class_embd", bare=True),
        Item("vision_tower.embeddings.position_embedding", "v.position_embd", change=first_last),
    )


LLAVA = Tower(
    "mlp",
    ("vision_tower.", "multi_modal_projector."),
    "vision_tower.encoder.layers.{}.",
    CLIP_LAYER,
    (),
    llava_facts,
    more=llava_items,
    ignored=("vision_tower.post_layernorm.", "vision_tower.head."),
)

# --- InternVL ---------------------------------------------------------------------------------------


def internvl_facts(source: Source) -> Metadata:
    tower, media = source.tower, source.media
    tower.require(use_qk_norm=False, use_absolute_position_embeddings=True, use_mask_token=False)
    tower.require(attention_bias=True, norm_type="layer_norm")
    tower.ignore("use_mean_pooling", "projection_dropout", "layer_scale_init_value")  # of training, of heads
    source.config.require(vision_feature_layer=-1, vision_feature_select_strategy="default")
    source.config.only("projector_hidden_act", "gelu")
    ratio = source.config.number("downsample_ratio", 0.5)
    if round(1 / ratio) * ratio != 1:
        raise LoadError(f"config.json: downsample_ratio: expected 1 / n, got {ratio}")
    facts: Metadata = {
        **vision_sizes(source),
        **activation(tower, "hidden_act", "gelu"),
        "vision.image_size": one_of_two(tower, "image_size"),
        EPS: tower.number("layer_norm_eps", 1e-6),
        "vision.projection_dim": source.text.size("hidden_size"),
        "vision.projector.scale_factor": round(1 / ratio),
    }
    for ours, theirs in (("min", "min_patches"), ("max", "max_patches")):
        if media.has(theirs):
            facts[f"vision.preproc_{ours}_tiles"] = media.size(theirs)
    return facts


INTERNVL = Tower(
    "internvl",
    ("vision_tower.", "multi_modal_projector."),
    "vision_tower.encoder.layer.{}.",
    (
        *items("""
            layernorm_before ln1 +
            layernorm_after ln2 +
            attention.q_proj attn_q +
            attention.k_proj attn_k +
            attention.v_proj attn_v +
            attention.projection_layer attn_out +
            mlp.fc1 ffn_up +
            mlp.fc2 ffn_down +
        """),
        Item("lambda_1", "ls1.weight", bare=True),
        Item("lambda_2", "ls2.weight", bare=True),
    ),
    (
        *items("""
            vision_tower.embeddings.patch_embeddings.projection v.patch_embd +
            multi_modal_projector.layer_norm mm.model.mlp.0 +
            multi_modal_projector.linear_1 mm.model.mlp.1 +
            multi_modal_projector.linear_2 mm.model.mlp.3 +
        """),
        Item("vision_tower.embeddings.cls_token", "v.class_embd", bare=True, change=flat),
        Item(
            "vision_tower.embeddings.position_embeddings", "v.position_embd.weight", bare=True,
            change=first_last,
        ),
    ),
    internvl_facts,
)  # fmt: skip
