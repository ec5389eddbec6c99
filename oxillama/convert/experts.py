"""Families of decoders with experts, beyond Mixtral and Qwen: tensors, and options of configs."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.decoders import Decoder, Part, Sizes
from oxillama.convert.options import counts, granite_scales
from oxillama.convert.parts import (
    ATTENTION,
    BEFORE,
    EXPERTS,
    FEED,
    HEAD_NORMS,
    MIXTRAL_EXPERTS,
    ROW_NORMS,
    biased,
    gated,
    only,
)
from oxillama.convert.rotation import Metadata, Tensors, rotation
from oxillama.errors import LoadError

SIGMOID = 2
"""GGUF's number for weights of experts that are sigmoids."""

SHARED = gated("mlp.shared_experts.{}_proj", "_shexp", "shared_ff")


def correction(source: str, shape: str = "experts", kind: str = "routed") -> Part:
    """The bias that is added to the weights of experts for their choice only."""
    return Part(source, "exp_probs_b.bias", shape, only=kind, bare=True)


DENSE_THEN_EXPERTS = (*only("dense", FEED), *only("routed", EXPERTS), *only("shared", SHARED))


def dense_first(config: Config, metadata: Metadata, sizes: Sizes, n: int) -> None:
    """The first n layers are dense, the others have experts."""
    if not 0 <= n < sizes["layers"]:
        raise LoadError(
            f"{config.name}: expected some layers with experts, got {n} dense of {sizes['layers']}"
        )
    metadata["leading_dense_block_count"] = n
    sizes.kinds["routed"] = [i >= n for i in range(sizes["layers"])]
    sizes.kinds["dense"] = [i < n for i in range(sizes["layers"])]


def shared(config: Config, metadata: Metadata, sizes: Sizes, key: str) -> None:
    """Shared experts, stored as one expert of their total width."""
    n = metadata["expert_shared_count"] = config.size(key, 0, least=0, most=999)
    sizes["shared_ff"] = n * sizes["expert_ff"]
    sizes.kinds["shared"] = [n > 0 and has for has in sizes.kinds["routed"]]


def stated_kinds(config: Config, sizes: Sizes) -> None:
    """Raises LoadError if ``mlp_layer_types`` tells of other dense layers."""
    config.only("mlp_layer_types", ["dense" if dense else "sparse" for dense in sizes.kinds["dense"]])


def dense_then_experts(config: Config, metadata: Metadata, sizes: Sizes, gating: int) -> None:
    """Counts, dense layers and shared experts, as DeepSeek's configs have them."""
    counts(config, metadata, sizes, "n_routed_experts")
    dense_first(config, metadata, sizes, config.size("first_k_dense_replace", 0, least=0))
    shared(config, metadata, sizes, "n_shared_experts")
    metadata["expert_gating_func"] = gating


def weights_of_experts(config: Config, metadata: Metadata) -> None:
    """Their sum and their factor, and the groups that they are chosen from."""
    metadata["expert_weights_norm"] = config.flag("norm_topk_prob", True)
    metadata["expert_weights_scale"] = config.number("routed_scaling_factor", 1.0)
    groups = config.size("n_group", 1)
    used = config.size("topk_group", groups)
    if groups > 1:
        metadata["expert_group_count"], metadata["expert_group_used_count"] = groups, used


def deepseek_experts(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Experts as in DeepSeek's configs from the third on."""
    dense_then_experts(config, metadata, sizes, SIGMOID)
    weights_of_experts(config, metadata)
    config.require(moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc")
    stated_kinds(config, sizes)


def glm4_moe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """GLM 4.5 and later, with norms of q and k in the larger models."""
    deepseek_experts(config, metadata, sizes)
    sizes.kinds["normed"] = [config.flag("use_qk_norm")] * sizes["layers"]
    return rotation(config, metadata, sizes["dim"], partial=True)


def dots1(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    deepseek_experts(config, metadata, sizes)
    config.only("layer_types", ["full_attention"] * sizes["layers"])
    config.ignore("sliding_window")  # of no layer
    return rotation(config, metadata, sizes["dim"])


def ernie_moe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """ERNIE 4.5: softmax, and every layer behind the dense ones has experts."""
    counts(config, metadata, sizes, "moe_num_experts", "moe_k")
    dense_first(config, metadata, sizes, config.size("moe_layer_start_index", 1, least=0))
    shared(config, metadata, sizes, "moe_num_shared_experts")
    metadata["interleave_moe_layer_step"] = 1
    if sizes["shared_ff"]:
        metadata["expert_shared_feed_forward_length"] = sizes["shared_ff"]
    config.only("moe_layer_interval", 1)
    config.only("moe_layer_end_index", -1, sizes["layers"] - 1)
    config.ignore("moe_norm_min")  # below every sum of weights
    config.only("use_bias", False)
    return rotation(config, metadata, sizes["dim"])


def hunyuan_rotation(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Their "dynamic" multiplies the base by alpha^(d / (d - 2)) once, whatever the length of a text."""
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get(key)
        if not isinstance(table, dict) or not table.get("alpha"):
            continue
        rope, dim = config.table(key), sizes["dim"]
        rope.require(type="dynamic", rope_type="dynamic")
        base = rope.number("rope_theta", config.number("rope_theta", 10000.0))
        metadata["rope.freq_base"] = base * rope.number("alpha") ** (dim / (dim - 2))
        metadata["rope.dimension_count"] = dim
        return {}
    return rotation(config, metadata, sizes["dim"])


def hunyuan_moe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Experts as wide as a dense block, in every layer."""
    sizes["experts"] = metadata["expert_count"] = config.size("num_experts")
    metadata["expert_used_count"] = config.same_size("moe_topk")
    sizes["expert_ff"] = metadata["expert_feed_forward_length"] = config.same_size(
        "moe_intermediate_size", sizes["ff"]
    )
    if sizes["expert_ff"] != sizes["ff"]:
        raise LoadError(
            f"{config.name}: moe_intermediate_size: expected {sizes['ff']}, got {sizes['expert_ff']}"
        )
    n = config.same_size("num_shared_expert", 1)
    sizes["shared_ff"] = metadata["expert_shared_feed_forward_length"] = n * sizes["ff"]
    config.require(use_qk_norm=True, use_cla=False)
    return hunyuan_rotation(config, metadata, sizes)


def minimax_m2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Whole rows of q and k have norms."""
    counts(config, metadata, sizes, "num_local_experts", width="intermediate_size")
    metadata["expert_gating_func"] = SIGMOID
    config.require(scoring_func="sigmoid", use_qk_norm=True, qk_norm_type="per_layer")
    config.only("use_mtp", False, True)
    if config.has("rotary_dim"):
        config.values.setdefault("partial_rotary_factor", config.size("rotary_dim") / sizes["dim"])
    return rotation(config, metadata, sizes["dim"], partial=True)


def part_of_experts(which: int, size: str = "ff") -> Any:
    """Half of a matrix of all experts that holds gates and then ups."""

    def half(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        return values[:, which * sizes[size] : (which + 1) * sizes[size]]

    return half


def columns_of_experts(which: int | None) -> Any:
    """The transposed half of columns (experts, cols, 2 * expert_ff), or of None all of them."""

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        n = sizes["expert_ff"]
        columns = values if which is None else values[..., which * n : (which + 1) * n]
        return np.ascontiguousarray(columns.swapaxes(1, 2))

    return change


STACKED = (
    *(
        Part(
            "mlp.experts.gate_up_proj", f"{target}.weight", "experts expert_ff+expert_ff d",
            either=True, bare=True, each=True, change=part_of_experts(which, "expert_ff"),
            becomes="experts expert_ff d",
        )
        for which, target in enumerate(("ffn_gate_exps", "ffn_up_exps"))
    ),
    Part("mlp.experts.down_proj", "ffn_down_exps.weight", "experts d expert_ff", bare=True, either=True),
)  # fmt: skip
"""Experts in one tensor, as newer classes have them; some older folders have them transposed."""

GRANITE_EXPERTS = (
    Part("block_sparse_moe.router.layer", "ffn_gate_inp", "experts d"),
    Part(
        "block_sparse_moe.input_linear", "ffn_gate_exps", "experts ff+ff d",
        change=part_of_experts(0), becomes="experts ff d", each=True,
    ),
    Part(
        "block_sparse_moe.input_linear", "ffn_up_exps", "experts ff+ff d",
        change=part_of_experts(1), becomes="experts ff d", each=True,
    ),
    Part("block_sparse_moe.output_linear", "ffn_down_exps", "experts d ff"),
)  # fmt: skip


def granite_moe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    granite_scales(config, metadata)
    counts(config, metadata, sizes, "num_local_experts", width="")
    return rotation(config, metadata, sizes["dim"])


def llama4(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Three layers of four rotate and attend within chunks; the fourth scales its queries by their position.

    The numbers of both are not in files.
    """
    n = sizes["layers"]
    counts(config, metadata, sizes, "num_local_experts", width="intermediate_size")
    step = metadata["interleave_moe_layer_step"] = config.size("interleave_moe_layer_step", 1)
    routed = [(i + 1) % step == 0 for i in range(n)]
    config.only("moe_layers", [i for i in range(n) if routed[i]])
    sizes.kinds["routed"], sizes.kinds["dense"] = routed, [not has for has in routed]
    sizes["ff"] = metadata["feed_forward_length"] = config.size("intermediate_size_mlp", 16384)
    rotates = [(i + 1) % 4 > 0 for i in range(n)]
    config.only("no_rope_layer_interval", 4)
    config.only("no_rope_layers", [int(each) for each in rotates], [])
    config.only("layer_types", [f"{'chunked' if each else 'full'}_attention" for each in rotates])
    config.require(attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1)
    config.only("attn_temperature_tuning", True, 4)  # as older configs say it
    config.only("use_qk_norm", sizes["experts"] != 128)  # as readers take the count
    config.ignore("router_jitter_noise", "for_llm_compressor")  # of training
    return rotation(config, metadata, sizes["dim"], 500000.0)


LLAMA4_EXPERTS = (
    Part("feed_forward.router", "ffn_gate_inp", "experts d"),
    *gated("feed_forward.shared_expert.{}_proj", "_shexp", "expert_ff"),
    *(
        Part(
            "feed_forward.experts.gate_up_proj", f"{target}.weight", "experts d expert_ff+expert_ff",
            bare=True, each=True, change=columns_of_experts(which), becomes="experts expert_ff d",
        )
        for which, target in enumerate(("ffn_gate_exps", "ffn_up_exps"))
    ),
    Part(
        "feed_forward.experts.down_proj", "ffn_down_exps.weight", "experts expert_ff d",
        bare=True, each=True, change=columns_of_experts(None), becomes="experts d expert_ff",
    ),
)  # fmt: skip

HUNYUAN_NORMS = (
    Part("self_attn.query_layernorm", "attn_q_norm", "dim"),
    Part("self_attn.key_layernorm", "attn_k_norm", "dim"),
)
HUNYUAN_EXPERTS = (
    Part("mlp.gate.wg", "ffn_gate_inp", "experts d"),
    *EXPERTS[1:],
    *gated("mlp.shared_mlp.{}_proj", "_shexp", "shared_ff"),
)
GLM_BEFORE = (
    Part("input_layernorm", "attn_norm", "d"),
    Part("post_attention_layernorm", "post_attention_norm", "d"),
)
MINIMAX_CORRECTION = Part(
    "block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", "experts", bare=True
)

GLM4_MOE = Decoder(
    "glm4moe",
    (
        *biased(ATTENTION, "attention_bias", ("attn_output",)),
        *only("normed", HEAD_NORMS),
        *GLM_BEFORE,
        *DENSE_THEN_EXPERTS,
        correction("mlp.gate.e_score_correction_bias"),
    ),
    glm4_moe,
    drafts="num_nextn_predict_layers",
    defaults=(("partial_rotary_factor", 0.5),),
)
DOTS1 = Decoder(
    "dots1",
    (*ATTENTION, *HEAD_NORMS, *BEFORE, *DENSE_THEN_EXPERTS, correction("mlp.gate.e_score_correction_bias")),
    dots1,
    copies_tied=True,
)
ERNIE4_5_MOE = Decoder(
    "ernie4_5-moe",
    (
        *biased(ATTENTION, ""),
        *BEFORE,
        *DENSE_THEN_EXPERTS,
        correction("mlp.moe_statics.e_score_correction_bias", "one experts"),
    ),
    ernie_moe,
    tied=True,
    drafts="num_nextn_predict_layers",
    defaults=(("rope_theta", 500000.0), ("rms_norm_eps", 1e-5)),
)
HUNYUAN_MOE = Decoder(
    "hunyuan-moe", (*biased(ATTENTION, ""), *HUNYUAN_NORMS, *BEFORE, *HUNYUAN_EXPERTS), hunyuan_moe
)
MINIMAX_M2 = Decoder(
    "minimax-m2",
    (*biased(ATTENTION, ""), *ROW_NORMS, *BEFORE, *MIXTRAL_EXPERTS, MINIMAX_CORRECTION),
    minimax_m2,
    copies_tied=True,
    defaults=(("rope_theta", 5e6),),
)
GRANITE_MOE = Decoder("granitemoe", (*ATTENTION, *BEFORE, *GRANITE_EXPERTS), granite_moe, reordered=True)
LLAMA4 = Decoder(
    "llama4",
    (
        *ATTENTION,
        *BEFORE,
        *only("dense", gated("feed_forward.{}_proj")),
        *only("routed", LLAMA4_EXPERTS),
    ),
    llama4,
    defaults=(
        *(("num_attention_heads", 40), ("num_key_value_heads", 8), ("head_dim", 128)),
        *(("rms_norm_eps", 1e-5), ("max_position_embeddings", 131072)),
    ),
)

EXPERT_DECODERS: dict[str, tuple[str, Decoder]] = {
    "Glm4MoeForCausalLM": ("glm4_moe", GLM4_MOE),
    "Dots1ForCausalLM": ("dots1", DOTS1),
    "Ernie4_5_MoeForCausalLM": ("ernie4_5_moe", ERNIE4_5_MOE),
    "HunYuanMoEV1ForCausalLM": ("hunyuan_v1_moe", HUNYUAN_MOE),
    "MiniMaxM2ForCausalLM": ("minimax_m2", MINIMAX_M2),
    "GraniteMoeForCausalLM": ("granitemoe", GRANITE_MOE),
    "Llama4ForCausalLM": ("llama4_text", LLAMA4),
}
