"""Families of decoders with experts: GLM, dots.llm1, ERNIE, Hunyuan, MiniMax, Llama 4, gpt-oss."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.apps.convert import options, parts
from oxillama.apps.convert.config import Config, Packed
from oxillama.apps.convert.decoders import Decoder, Sizes, register
from oxillama.apps.convert.dense import HUNYUAN_ATTENTION, MIXTRAL_EXPERTS, hunyuan_rotation
from oxillama.apps.convert.rotation import Metadata
from oxillama.apps.convert.tables import Change, Part, table
from oxillama.errors import LoadError

# --- keys of configs --------------------------------------------------------------------------------


def optional_norms(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The larger models of GLM 4.5 norm q and k."""
    sizes.split(config.flag("use_qk_norm"), "normed")


def ernie(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """All layers after the dense ones have experts."""
    metadata["interleave_moe_layer_step"] = 1
    if sizes["shared_ff"]:
        metadata["expert_shared_feed_forward_length"] = sizes["shared_ff"]
    config.only("moe_layer_end_index", -1, sizes["layers"] - 1)


def hunyuan(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Experts as wide as a dense block, in every layer."""
    sizes["experts"] = metadata["expert_count"] = config.size("num_experts")
    metadata["expert_used_count"] = config.same_size("moe_topk")
    width = config.same_size("moe_intermediate_size", sizes["ff"])
    sizes["expert_ff"] = metadata["expert_feed_forward_length"] = width
    config.refuse_if(width != sizes["ff"], "moe_intermediate_size", f"{sizes['ff']}", width)
    n = config.same_size("num_shared_expert", 1)
    sizes["shared_ff"] = metadata["expert_shared_feed_forward_length"] = n * sizes["ff"]


def minimax_m2(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    config.only("use_mtp", False, True)
    if config.has("rotary_dim"):
        config.values.setdefault("partial_rotary_factor", config.size("rotary_dim") / sizes["dim"])


def llama4(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Three layers of four rotate and attend within chunks; the fourth scales its queries by the position.

    Files state neither the length of a chunk nor the scale.
    """
    n = sizes["layers"]
    step = metadata["interleave_moe_layer_step"] = config.size("interleave_moe_layer_step", 1)
    routed = [(i + 1) % step == 0 for i in range(n)]
    config.only("moe_layers", [i for i in range(n) if routed[i]])
    sizes.split(routed, "routed", "dense")
    sizes["ff"] = metadata["feed_forward_length"] = config.size("intermediate_size_mlp", 16384)
    rotates = options.every(4, sizes)
    config.only("no_rope_layers", [int(each) for each in rotates], [])
    config.only("layer_types", [f"{'chunked' if each else 'full'}_attention" for each in rotates])
    config.only("attn_temperature_tuning", True, 4)  # older configs say 4
    config.only("use_qk_norm", sizes["experts"] != 128)  # readers of files conclude this from the number


# fmt: off
register(Decoder(
    "Glm4MoeForCausalLM glm4_moe", "glm4moe",
    (
        *parts.qkv_biased("attention_bias"),
        *parts.only("normed", parts.HEAD_NORMS),
        *parts.norms("glm4moe"), *parts.DENSE_THEN_EXPERTS,
        parts.correction("mlp.gate.e_score_correction_bias"),
    ),
    (*options.DEEPSEEK_EXPERTS, optional_norms), partial=True,
    fixed=options.DEEPSEEK_FIXED, drafts=True, defaults={"partial_rotary_factor": 0.5},
))
register(Decoder(
    "Dots1ForCausalLM dots1", "dots1",
    (
        *parts.layer("dots1", feed=parts.DENSE_THEN_EXPERTS),
        parts.correction("mlp.gate.e_score_correction_bias"),
    ),
    (*options.DEEPSEEK_EXPERTS, options.full_attention), fixed=options.DEEPSEEK_FIXED,
    unread="sliding_window",
))
register(Decoder(
    "Ernie4_5_MoeForCausalLM ernie4_5_moe", "ernie4_5-moe",
    (
        *parts.layer("ernie4_5-moe", parts.PLAIN_ATTENTION, parts.DENSE_THEN_EXPERTS),
        parts.correction("mlp.moe_statics.e_score_correction_bias", "one experts"),
    ),
    (
        options.counts("moe_num_experts", "moe_k"), options.dense_first("moe_layer_start_index", 1),
        options.shared_experts("moe_num_shared_experts"), ernie,
    ),
    fixed={"moe_layer_interval": 1, "use_bias": False},
    unread="moe_norm_min",  # smaller than all sums of weights
    tied=True, drafts=True, defaults={"rope_theta": 500000.0, "rms_norm_eps": 1e-5},
))
register(Decoder(
    "HunYuanMoEV1ForCausalLM hunyuan_v1_moe", "hunyuan-moe",
    (
        *HUNYUAN_ATTENTION, *parts.norms("hunyuan-moe"), Part("mlp.gate.wg", "ffn_gate_inp", "experts d"),
        *parts.EXPERTS[1:], *parts.gated("mlp.shared_mlp.{}_proj", "_shexp", "shared_ff"),
    ),
    (hunyuan,), rotates=hunyuan_rotation, fixed={"use_qk_norm": True, "use_cla": False},
))
register(Decoder(
    "MiniMaxM2ForCausalLM minimax_m2", "minimax-m2",
    (
        *parts.layer("minimax-m2", parts.PLAIN_ATTENTION, MIXTRAL_EXPERTS),
        parts.correction("block_sparse_moe.e_score_correction_bias", kind=""),
    ),
    (options.counts("num_local_experts", width="intermediate_size"), options.sigmoid, minimax_m2),
    fixed={"scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer"}, partial=True,
    defaults={"rope_theta": 5e6},
))
GATE_UP, DOWN = "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"
register(Decoder(
    "Llama4ForCausalLM llama4_text", "llama4",
    parts.layer("llama4", feed=(
        *parts.only("dense", parts.gated("feed_forward.{}_proj")),
        Part("feed_forward.router", "ffn_gate_inp", "experts d", only="routed"),
        *parts.only("routed", parts.gated("feed_forward.shared_expert.{}_proj", "_shexp", "expert_ff")),
        *table(f"""
          [routed]
            {GATE_UP} ffn_gate_exps.weight experts d 2ff -> experts expert_ff d gates / bare each
            {GATE_UP} ffn_up_exps.weight experts d 2ff -> experts expert_ff d ups / bare each
            {DOWN} ffn_down_exps.weight experts expert_ff d -> experts d expert_ff transposed / bare each
        """.replace("2ff", "expert_ff+expert_ff"),
            gates=lambda values, sizes: parts.transposed(values, sizes)[:, :sizes["expert_ff"]],
            ups=lambda values, sizes: parts.transposed(values, sizes)[:, sizes["expert_ff"]:],
            transposed=parts.transposed,
        ),
    )),
    (options.counts("num_local_experts", width="intermediate_size"), llama4), base=500000.0,
    fixed={
        "no_rope_layer_interval": 4, "attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1,
    },
    unread="router_jitter_noise for_llm_compressor",  # keys of training
    defaults={
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
    },
))
# fmt: on


# --- gpt-oss: experts in MXFP4, as they are published, or in floats ---------------------------------

BLOCK = 32
"""Values of a block, which share a scale."""

LARGEST_SCALE = 252
"""The largest exponent, plus 127, for which the largest value, 6, times the scale is a float32."""


def gpt_oss(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The weights are a softmax over the chosen experts."""
    metadata["expert_feed_forward_length"] = sizes["ff"]
    config.require(experts_per_token=metadata["expert_used_count"])
    stored = config.table("quantization_config")
    packed = bool(stored.values)
    if packed:
        stored.only("quant_method", "mxfp4")
        stored.ignore("modules_to_not_convert")  # the names of the tensors say which these are
        if not stored.has("quant_method") or stored.unread():
            raise LoadError(
                f"{stored.name}: expected quant_method 'mxfp4' alone, got {', '.join(stored.values)}"
            )
    sizes.split(packed, "packed", "floats")
    options.windows(config, metadata, options.every(2, sizes))


def blocks(start: int, step: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Rows ``start``, ``start + step``, ... of a matrix of blocks, in GGUF's layout.

    In both layouts a block is 32 codes of four bits and a scale. In the source two neighbours share a byte,
    with the first code in the lower half; in GGUF codes at a distance of 16 do, and the scale comes first.
    """

    def packed(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """uint8 (rows, 17 n), of codes (all rows, n, 16) and scales (all rows, n)."""
        codes, scales = codes[start::step], scales[start::step]
        if scales.size and scales.max() > LARGEST_SCALE:
            raise LoadError(
                f"mlp.experts: scales: expected exponents up to {LARGEST_SCALE}, got {scales.max()}"
            )
        values = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], BLOCK)
        halves = values[..., : BLOCK // 2] | values[..., BLOCK // 2 :] << 4
        return np.concatenate([scales[..., None], halves], axis=-1).reshape(len(codes), -1)

    return packed


def mxfp4(config: Config, sizes: Sizes) -> list[Packed]:
    """The experts of all layers, where the source has blocks."""
    if not any(sizes.kinds["packed"]):
        return []
    n, d, ff = sizes["experts"], sizes["d"], sizes["ff"]
    for key, width in (("hidden_size", d), ("intermediate_size", ff)):
        if width % BLOCK:
            raise LoadError(f"{config.name}: {key}: expected a multiple of {BLOCK} for MXFP4, got {width}")
    found = []
    for i in range(sizes["layers"]):
        for source, target, start, step, rows, cols in (
            ("gate_up_proj", "ffn_gate_exps", 0, 2, ff, d),
            ("gate_up_proj", "ffn_up_exps", 1, 2, ff, d),
            ("down_proj", "ffn_down_exps", 0, 1, d, ff),
        ):
            name, shape = f"model.layers.{i}.mlp.experts.{source}", (n, step * rows, cols // BLOCK)
            sources = {f"{name}_blocks": (*shape, BLOCK // 2), f"{name}_scales": shape}
            there = f"blk.{i}.{target}.weight"
            found.append(Packed(sources, there, "MXFP4", (n, rows, cols), blocks(start, step)))
    return found


def second(which: int, rows: Change = lambda values, sizes: values) -> Change:
    """Every second row of experts, from row ``which``: gates and ups take turns."""
    return lambda values, sizes: rows(values, sizes)[:, which::2]


# fmt: off
register(Decoder(
    "GptOssForCausalLM gpt_oss", "gpt-oss",
    (
        *parts.ATTENTION, *parts.norms("gpt-oss"), parts.SINKS,
        Part("mlp.router", "ffn_gate_inp", "experts d", "yes"),
        *table("""
          [floats]
            mlp.experts.gate_up_proj ffn_gate_exps.weight experts d ff+ff -> experts ff d gates / bare each
            mlp.experts.gate_up_proj ffn_up_exps.weight experts d ff+ff -> experts ff d ups / bare each
            mlp.experts.down_proj ffn_down_exps.weight experts ff d -> experts d ff down / bare each
          []
            mlp.experts.gate_up_proj_bias ffn_gate_exps.bias experts ff+ff -> experts ff gate_biases / bare
            mlp.experts.gate_up_proj_bias ffn_up_exps.bias experts ff+ff -> experts ff up_biases / bare
            mlp.experts.down_proj_bias ffn_down_exps.bias experts d / bare
        """,
            gates=second(0, parts.transposed), ups=second(1, parts.transposed), down=parts.transposed,
            gate_biases=second(0), up_biases=second(1),
        ),
    ),
    (options.counts("num_local_experts", width=""), gpt_oss), base=150000.0, packed=mxfp4, biased=True,
    fixed={"swiglu_alpha": 1.702, "swiglu_limit": 7}, unread="initial_context_length",
    defaults={"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128, "rms_norm_eps": 1e-5},
))
