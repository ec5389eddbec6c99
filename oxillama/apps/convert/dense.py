"""Decoders without experts, and Mixtral, OLMoE, Qwen's and Granite's decoders with experts.

Names and conventions of GGUF are llama.cpp's (gguf-py 0.19). Heads of Llama's q and k are reordered, because
llama.cpp rotates neighbours where Hugging Face rotates halves. Experts are stacked.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.apps.convert import options, parts
from oxillama.apps.convert.config import Config
from oxillama.apps.convert.decoders import Decoder, Sizes, derive, register
from oxillama.apps.convert.rotation import Metadata, Tensors, rotation
from oxillama.apps.convert.tables import table

# --- keys of configs --------------------------------------------------------------------------------


def still_layers(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Every fourth layer of SmolLM 3 does not rotate, which GGUF cannot express."""
    turning = [int(has) for has in options.every(4, sizes)]
    config.require(no_rope_layers=turning, no_rope_layer_interval=4)


def clamped(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The bound of the queries, keys and values of OLMoE."""
    if config.has("clip_qkv"):
        metadata["attention.clamp_kqv"] = config.number("clip_qkv")


def olmo3(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Layers with windows rotate without scaling."""
    options.windows(config, metadata, options.every(4, sizes), stated=True)
    return options.two_rotations(config, metadata, sizes["dim"], 500000.0, None)


def phi3(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """A window as long as the context, which many configs state, is left out."""
    if config.has("sliding_window") and config.size("sliding_window") < metadata["context_length"]:
        options.windows(config, metadata, [True] * sizes["layers"], stated=True)
    if config.has("original_max_position_embeddings"):
        original = config.size("original_max_position_embeddings")
        metadata["rope.scaling.original_context_length"] = original


def apertus(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The class has a rotation of its own where a config states none: Llama 3's with a factor of 8."""
    if not config.has("rope_parameters") and not config.has("rope_scaling"):
        config.values["rope_parameters"] = {
            **{"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "low_freq_factor": 1.0},
            **{"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        }


def hunyuan_rotation(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Hunyuan's "dynamic" scaling multiplies the base by alpha^(d / (d - 2)) for texts of any length."""
    for key in ("rope_scaling", "rope_parameters"):
        found = config.get(key)
        if not isinstance(found, dict) or not found.get("alpha"):
            continue
        rope, dim = config.table(key), sizes["dim"]
        rope.require(type="dynamic", rope_type="dynamic")
        base = rope.number("rope_theta", config.number("rope_theta", 10000.0))
        metadata["rope.freq_base"] = base * rope.number("alpha") ** (dim / (dim - 2))
        metadata["rope.dimension_count"] = dim
        return {}
    return rotation(config, metadata, sizes["dim"])


def picture_experts(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Experts of Qwen 3 VL, whose number has two keys."""
    key = "num_local_experts" if config.has("num_local_experts") else "num_experts"
    config.ignore("num_experts")
    options.counts(key)(config, metadata, sizes)


# fmt: off
# --- Llama, Mistral, Granite ------------------------------------------------------------------------

LLAMA = register(Decoder(
    "LlamaForCausalLM llama", "llama", parts.layer("llama"), (options.one_window,), reordered=True
))
MISTRAL = derive(LLAMA, "MistralForCausalLM mistral", left_out=parts.TOWERS, renamed=parts.TEXT_IN_TOWERS)
derive(
    MISTRAL, "Ministral3ForCausalLM ministral3", "mistral3",
    steps=(options.growing_queries,), base=1e6, fixed={"sliding_window": None},
)
MIXTRAL_EXPERTS = (
    *table("block_sparse_moe.gate ffn_gate_inp experts d"),
    *parts.gated("block_sparse_moe.experts.{{e}}.{}", "_exps", names="w1 w3 w2"),
)
derive(
    LLAMA, "MixtralForCausalLM mixtral", parts=parts.layer("llama", feed=MIXTRAL_EXPERTS),
    steps=(options.counts("num_local_experts", width=""), options.one_window), defaults={"rope_theta": 1e6},
)
derive(LLAMA, "ArceeForCausalLM arcee", "arcee", parts=parts.layer("arcee"))
derive(
    LLAMA, "SmolLM3ForCausalLM smollm3", "smollm3",
    steps=(options.no_windows, still_layers), base=2e6, tied=True,
)
GRANITE = derive(LLAMA, "GraniteForCausalLM granite", "granite", steps=(options.granite_scales,))
GRANITE_EXPERTS = table("""
    block_sparse_moe.router.layer  ffn_gate_inp   experts d
    block_sparse_moe.input_linear  ffn_gate_exps  experts ff+ff d -> experts ff d gates / each
    block_sparse_moe.input_linear  ffn_up_exps    experts ff+ff d -> experts ff d ups / each
    block_sparse_moe.output_linear ffn_down_exps  experts d ff
""", gates=parts.half(0, 1), ups=parts.half(1, 1))
derive(
    GRANITE, "GraniteMoeForCausalLM granitemoe", "granitemoe",
    parts=parts.layer("granitemoe", feed=GRANITE_EXPERTS),
    steps=(options.granite_scales, options.counts("num_local_experts", width="")),
)

# --- Qwen -------------------------------------------------------------------------------------------

QWEN2 = register(Decoder(
    "Qwen2ForCausalLM qwen2", "qwen2",
    parts.layer("qwen2", parts.qkv_biased("yes")),
    (options.no_windows,), unread="attention_bias",  # q, k and v always have biases
))
derive(
    QWEN2, "Qwen2MoeForCausalLM qwen2_moe", "qwen2moe",
    parts=parts.layer("qwen2moe", parts.qkv_biased("qkv_bias"), (*parts.EXPERTS, *parts.GATED_SHARED)),
    steps=(options.shared_expert, options.counts(), options.normed_weights, options.no_windows),
    fixed=options.IN_EVERY_LAYER, biased=True,
)
QWEN2_VL = derive(
    QWEN2, "Qwen2VLForConditionalGeneration qwen2_vl_text", "qwen2vl",
    rotates=options.with_sections(), fixed={"rms_norm_eps": 1e-6},  # llama.cpp has this number for all files
)
derive(QWEN2_VL, "Qwen2_5_VLForConditionalGeneration qwen2_5_vl_text")
QWEN3 = register(Decoder(
    "Qwen3ForCausalLM qwen3", "qwen3", parts.layer("qwen3"), (options.no_windows,), defaults={"head_dim": 128}
))
QWEN3_MOE = derive(
    QWEN3, "Qwen3MoeForCausalLM qwen3_moe", "qwen3moe", parts=parts.layer("qwen3moe", feed=parts.EXPERTS),
    steps=(options.counts(), options.normed_weights, options.no_windows), fixed=options.IN_EVERY_LAYER,
    defaults={},
)
SEEING: dict[str, object] = {
    "rotates": options.with_sections(), "left_out": parts.SIGHT, "renamed": parts.TEXT_IN_TOWERS,
}
derive(QWEN3, "Qwen3VLForConditionalGeneration qwen3_vl_text", "qwen3vl", **SEEING)
derive(
    QWEN3_MOE, "Qwen3VLMoeForConditionalGeneration qwen3_vl_moe_text", "qwen3vlmoe",
    parts=parts.layer("qwen3vlmoe", feed=(parts.EXPERTS[0], *parts.STACKED)),
    steps=(picture_experts, options.no_windows),
    fixed={**options.IN_EVERY_LAYER, "norm_topk_prob": True}, **SEEING,
)

# --- OLMo -------------------------------------------------------------------------------------------

OLMO2 = register(Decoder("Olmo2ForCausalLM olmo2", "olmo2", parts.layer("olmo2"), (options.full_attention,)))
derive(OLMO2, "Olmo3ForCausalLM olmo3", steps=(), rotates=olmo3, defaults={"sliding_window": 4096})
derive(
    OLMO2, "OlmoeForCausalLM olmoe", "olmoe", parts=parts.layer("olmoe", feed=parts.EXPERTS),
    steps=(options.counts(width="intermediate_size"), options.normed_weights, clamped),
    fixed=options.IN_EVERY_LAYER,
)

# --- others -----------------------------------------------------------------------------------------

register(Decoder(
    "Phi3ForCausalLM phi3", "phi3",
    (*parts.norms("phi3"), *table("""
        self_attn.qkv_proj attn_qkv q+k+v d
        self_attn.o_proj attn_output d q
        mlp.gate_up_proj ffn_up ff+ff d
        mlp.down_proj ffn_down d ff
    """)),
    (phi3,), partial=True,
))
register(Decoder(
    "Starcoder2ForCausalLM starcoder2", "starcoder2",
    parts.layer("starcoder2", parts.biased(parts.ATTENTION, "use_bias"), (parts.FEED[0], *table("""
        mlp.c_fc ffn_up ff d / bias=use_bias
        mlp.c_proj ffn_down d ff / bias=use_bias
    """))),
    (options.one_window,), fixed={"mlp_type": "default", "norm_type": "layer_norm"},
    epsilon="norm_epsilon", tied=True, biased=True,
))
register(Decoder(
    "SeedOssForCausalLM seed_oss", "seed_oss",
    parts.layer("seed_oss", parts.qkv_biased("attention_bias")),
    fixed={"attention_out_bias": False}, biased=True,
))
ERNIE4_5 = register(Decoder(  # ERNIE and GLM rotate neighbours in the source, too: nothing is reordered
    "Ernie4_5ForCausalLM ernie4_5", "ernie4_5",
    parts.layer("ernie4_5", parts.PLAIN_ATTENTION, parts.PLAIN_FEED),
    fixed={"use_bias": False}, tied=True, defaults={"rope_theta": 500000.0, "rms_norm_eps": 1e-5},
))
derive(
    ERNIE4_5, "PaddleOCRVLForConditionalGeneration paddleocr_vl_text", "paddleocr",
    rotates=options.with_sections(), tied=False,
)
HUNYUAN_ATTENTION = (*parts.PLAIN_ATTENTION, *parts.QK_LAYERNORMS)
register(Decoder(
    "HunYuanDenseV1ForCausalLM hunyuan_v1_dense", "hunyuan-dense",
    (*HUNYUAN_ATTENTION, *parts.norms("hunyuan-dense"), *parts.PLAIN_FEED), rotates=hunyuan_rotation,
))
GLM4 = register(Decoder(
    "Glm4ForCausalLM glm4", "glm4",
    parts.layer("glm4", parts.qkv_biased("attention_bias"), table("""
        mlp.gate_up_proj ffn_up ff+ff d
        mlp.down_proj ffn_down d ff
    """), "input_layernorm post_self_attn_layernorm post_attention_layernorm post_mlp_layernorm"),
    partial=True, biased=True, defaults={"partial_rotary_factor": 0.5},
))
GLM_OCR = derive(
    GLM4, "GlmOcrForConditionalGeneration glm_ocr_text",
    parts=(*parts.in_halves(GLM4.parts[:2], biases=False), *GLM4.parts[2:]),
    rotates=options.with_sections(partial=True), fixed={"attention_bias": False}, biased=False, defaults={},
)
derive(
    GLM_OCR, "Glm4vForConditionalGeneration glm4v_text",
    parts=(
        *parts.in_halves(GLM4.parts[:2], biases=True), replace(GLM4.parts[2], bias="yes"), *GLM4.parts[3:],
    ),
    defaults=GLM4.defaults,
)
register(Decoder(
    "ApertusForCausalLM apertus", "apertus",
    parts.layer(
        "apertus", parts.PLAIN_ATTENTION, parts.PLAIN_FEED, "attention_layernorm feedforward_layernorm"
    ),
    (apertus,), base=12e6, unread="post_norm qk_norm",  # the class does not read these
    numbers=tuple((f"xielu.{name}", f"mlp.act_fn.{name}") for name in ("alpha_p", "alpha_n", "beta", "eps")),
))
register(Decoder(
    "Jais2ForCausalLM jais2", "jais2", parts.layer("jais2"), fixed={"attention_bias": True, "mlp_bias": True},
    epsilon="layer_norm_eps", biased=True, defaults={"layer_norm_eps": 1e-5},
))
