"""Decoders of which some layers have windows, and differ in more than that: EXAONE 4, K-EXAONE, Trinity,
Granite with windows, MiMo 2."""

from __future__ import annotations

from dataclasses import replace

from oxillama.convert.config import Config
from oxillama.convert.decoders import Decoder, Part, Sizes
from oxillama.convert.experts import (
    DENSE_THEN_EXPERTS,
    SIGMOID,
    correction,
    dense_first,
    shared,
    stated_kinds,
    weights_of_experts,
)
from oxillama.convert.options import counts, granite_scales, kinds_of_attention
from oxillama.convert.parts import ATTENTION, BEFORE, BEHIND, EXPERTS, FEED, HEAD_NORMS, biased, only
from oxillama.convert.rotation import Metadata, Tensors, refuse_unread, rotation, rotation_of
from oxillama.errors import LoadError

MANY = 64
"""Number of layers of the EXAONE 4 with windows, by which GGUF files are recognized."""


def windows_only(config: Config, metadata: Metadata, usual: list[bool], same: bool = False) -> list[bool]:
    """Writes a window, and which layers have it; ``same``: Raises LoadError if these are not the usual ones,
    because something else hangs on the number of the layer."""
    found = kinds_of_attention(config, usual)
    if same and found != usual:
        raise LoadError(f"{config.name}: layer_types: expected every fourth to be full_attention")
    metadata["attention.sliding_window"] = config.size("sliding_window")
    metadata["attention.sliding_window_pattern"] = found
    return found


def three_of_four(sizes: Sizes) -> list[bool]:
    return [(i + 1) % 4 > 0 for i in range(sizes["layers"])]


# --- EXAONE -----------------------------------------------------------------------------------------


def exaone4(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Layers without windows do not rotate, where others have them."""
    n, has = sizes["layers"], config.has("sliding_window")
    config.ignore("sliding_window_pattern")  # layer_types say the same
    if has != (n == MANY):
        expected = f"a number with {MANY} layers, and with no other number of layers"
        raise LoadError(f"{config.name}: sliding_window: expected {expected}, got {n} layers")
    if has:
        windows_only(config, metadata, three_of_four(sizes))
    else:
        config.only("layer_types", ["full_attention"] * n)
    return rotation(config, metadata, sizes["dim"])


def exaone_moe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Layers without windows do not rotate; the first have dense blocks."""
    config.ignore("sliding_window_pattern")
    windows_only(config, metadata, three_of_four(sizes))
    counts(config, metadata, sizes)
    dense_first(config, metadata, sizes, config.size("first_k_dense_replace", 0, least=0))
    stated_kinds(config, sizes)
    config.only("is_moe_layer", sizes.kinds["routed"])
    shared(config, metadata, sizes, "num_shared_experts")
    metadata["expert_shared_feed_forward_length"] = sizes["shared_ff"]
    metadata["expert_gating_func"] = SIGMOID
    weights_of_experts(config, metadata)
    config.require(scoring_func="sigmoid", topk_method="noaux_tc")
    config.ignore("num_nextn_predict_layers", "mtp_layer_type")  # of blocks that are left out
    return rotation(config, metadata, sizes["dim"])


PLAIN_ATTENTION, PLAIN_FEED = biased(ATTENTION, ""), biased(FEED, "")
EXAONE4 = Decoder("exaone4", (*PLAIN_ATTENTION, *HEAD_NORMS, *BEHIND, *PLAIN_FEED), exaone4)
EXAONE_MOE = Decoder(
    "exaone-moe",
    (
        *PLAIN_ATTENTION,
        *HEAD_NORMS,
        *BEFORE,
        *DENSE_THEN_EXPERTS,
        correction("mlp.e_score_correction_bias"),
    ),
    exaone_moe,
    copies_tied=True,
    left_out=("mtp.",),
)


# --- Trinity ----------------------------------------------------------------------------------------


def afmoe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Every fourth layer neither rotates nor has a window; embeddings are multiplied by sqrt(d)."""
    if not config.flag("mup_enabled"):
        raise LoadError(f"{config.name}: mup_enabled: expected true, got false, which GGUF cannot express")
    config.ignore("global_attn_every_n_layers")  # layer_types say the same
    windows_only(config, metadata, three_of_four(sizes), same=True)
    counts(config, metadata, sizes)
    dense_first(config, metadata, sizes, config.size("num_dense_layers", 1, least=0))
    shared(config, metadata, sizes, "num_shared_experts")
    metadata["expert_gating_func"], metadata["expert_weights_norm"] = SIGMOID, True
    metadata["expert_weights_scale"] = config.number("route_scale", 1.0)
    config.require(score_func="sigmoid", route_norm=True)
    config.require(n_group=1, topk_group=1, num_expert_groups=1, num_limited_groups=1)
    config.ignore("load_balance_coeff", "use_grouped_mm")  # of training, or how it is computed
    return rotation(config, metadata, sizes["dim"])


AFMOE = Decoder(
    "afmoe",
    (
        *biased(ATTENTION, ""),
        *HEAD_NORMS,
        Part("self_attn.gate_proj", "attn_gate", "q d"),
        Part("input_layernorm", "attn_norm", "d"),
        Part("post_attention_layernorm", "post_attention_norm", "d"),
        Part("pre_mlp_layernorm", "ffn_norm", "d"),
        Part("post_mlp_layernorm", "post_ffw_norm", "d"),
        *(
            replace(part, source="mlp.router.gate") if part.source == "mlp.gate" else part
            for part in DENSE_THEN_EXPERTS
        ),
        correction("mlp.expert_bias"),
    ),
    afmoe,
)


# --- Granite ----------------------------------------------------------------------------------------


def granite_swa(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Layers have a base for their rotation, or 0 for none."""
    n = sizes["layers"]
    granite_scales(config, metadata)
    windows_only(config, metadata, [i % 4 > 0 for i in range(n)])
    made = rotation(config, metadata, sizes["dim"])
    bases = config.get("layer_rope_theta", [metadata["rope.freq_base"]] * n)
    if (
        not isinstance(bases, list)
        or len(bases) != n
        or not all(type(base) in (int, float) for base in bases)
    ):
        raise LoadError(f"{config.name}: layer_rope_theta: expected {n} numbers, got {bases!r:.80}")
    turning = {float(base) for base in bases if base}
    if len(turning) > 1 or any(base <= 0 for base in turning):
        raise LoadError(
            f"{config.name}: layer_rope_theta: expected 0 or the same base for all layers, got {bases!r:.80}"
        )
    for base in turning:
        metadata["rope.freq_base"] = base
    metadata["attention.rope_pattern"] = [bool(base) for base in bases]
    return made


def granite_moe_swa(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The same with experts in every layer, and perhaps a block that every token uses."""
    sizes["stacked"] = metadata["expert_count"] = config.size("num_local_experts")
    metadata["expert_used_count"] = config.size("num_experts_per_tok")
    width = sizes["shared_ff"] = config.size("shared_intermediate_size", 0, least=0)
    sizes.kinds["shared"] = [width > 0] * sizes["layers"]
    if width:
        metadata["expert_shared_feed_forward_length"] = width
    return granite_swa(config, metadata, sizes)


SINKS = Part("self_attn.sinks", "attn_sinks.weight", "heads", bare=True)
GRANITE_SWA = Decoder(
    "granite_swa",
    (*biased(ATTENTION, "attention_bias"), SINKS, *BEFORE, *FEED),
    granite_swa,
    reordered=True,
    tied=True,
    defaults=(("sliding_window", 128),),
)
GRANITE_MOE_SWA = replace(
    GRANITE_SWA,
    parts=(
        *biased(ATTENTION, "attention_bias"),
        SINKS,
        *BEFORE,
        Part("block_sparse_moe.router", "ffn_gate_inp", "stacked d"),
        Part(
            "block_sparse_moe.experts.gate_up_proj",
            "ffn_gate_up_exps.weight",
            "stacked ff+ff d",
            bare=True,
        ),
        Part("block_sparse_moe.experts.down_proj", "ffn_down_exps.weight", "stacked d ff", bare=True),
        Part("shared_mlp.input_linear", "ffn_up_shexp", "shared_ff+shared_ff d", only="shared"),
        Part("shared_mlp.output_linear", "ffn_down_shexp", "d shared_ff", only="shared"),
    ),
    options=granite_moe_swa,
    tied=False,
)


# --- MiMo -------------------------------------------------------------------------------------------


def mimo2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Windowed layers have twice as many key heads, and sinks; values are narrower than keys."""
    n, heads = sizes["layers"], sizes["heads"]
    usual = [i > 0 and (i + 1) % 6 > 0 for i in range(n)]
    windowed = windows_only(config, metadata, usual)
    if config.has("sliding_window_size"):  # without the token itself
        metadata["attention.sliding_window"] = config.size("sliding_window_size") + 1
    config.require(hybrid_layer_pattern=[int(each) for each in windowed])
    config.require(layernorm_epsilon=config.number("rms_norm_eps"))
    for key in ("head_dim", "num_attention_heads", "v_head_dim"):
        config.only(f"swa_{key}", config.get(key))
    config.require(add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False)
    value = metadata["attention.value_length"] = config.size("v_head_dim", 128)
    kv = {True: config.size("swa_num_key_value_heads", 2 * sizes["kv_heads"]), False: sizes["kv_heads"]}
    sizes.kinds["windowed"], sizes.kinds["full"] = windowed, [not each for each in windowed]
    sizes.update({"local_k": kv[True] * sizes["dim"], "local_v": kv[True] * value})
    sizes.update({"v": kv[False] * value, "values": heads * value})
    metadata["attention.head_count_kv"] = [kv[each] for each in windowed]
    if config.has("attention_value_scale"):
        metadata["attention.value_scale"] = config.number("attention_value_scale")
    counts(config, metadata, sizes, "n_routed_experts")
    kinds = config.words("mlp_layer_types", n, ("dense", "sparse"), ["dense"] + ["sparse"] * (n - 1))
    config.only("moe_layer_freq", [int(kind == "sparse") for kind in kinds])
    sizes.kinds["dense"] = [kind == "dense" for kind in kinds]
    sizes.kinds["routed"] = [kind == "sparse" for kind in kinds]
    metadata["expert_gating_func"] = SIGMOID
    config.only("norm_topk_prob", True)
    config.only("routed_scaling_factor", 1, 1.0)
    config.require(n_group=1, topk_group=1, scoring_func="sigmoid")
    return mimo2_rotation(config, metadata, sizes)


def mimo2_rotation(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The same share of a head rotates in all layers, with two bases."""
    both = config.table("rope_parameters")
    full, local = both.table("full_attention"), both.table("sliding_attention")
    share = full.number("partial_rotary_factor", config.number("partial_rotary_factor", 0.334))
    local.require(partial_rotary_factor=share, rope_type="default")
    full.only("rope_type", "default")
    full.values["partial_rotary_factor"] = share
    metadata["rope.freq_base_swa"] = local.number("rope_theta", config.number("swa_rope_theta", 10000.0))
    refuse_unread(both, local)
    return rotation_of(full, config, metadata, sizes["dim"], 5e6, partial=True)


Q, K, _, _ = PLAIN_ATTENTION
MIMO2 = Decoder(
    "mimo2",
    (
        Q,
        *only("full", (K, Part("self_attn.v_proj", "attn_v", "v d"))),
        Part("self_attn.k_proj", "attn_k", "local_k d", only="windowed"),
        Part("self_attn.v_proj", "attn_v", "local_v d", only="windowed"),
        Part("self_attn.o_proj", "attn_output", "d values"),
        Part("self_attn.attention_sink_bias", "attn_sinks.weight", "heads", bare=True, only="windowed"),
        *BEFORE,
        *only("dense", PLAIN_FEED),
        *only("routed", EXPERTS),
        correction("mlp.gate.e_score_correction_bias"),
    ),
    mimo2,
    copies_tied=True,
    defaults=(
        *(("rms_norm_eps", 1e-5), ("head_dim", 192), ("sliding_window", 129)),
        ("attention_value_scale", 0.707),
    ),
    left_out=("model.mtp.",),
)

WINDOWED_DECODERS: dict[str, tuple[str, Decoder]] = {
    "Exaone4ForCausalLM": ("exaone4", EXAONE4),
    "ExaoneMoeForCausalLM": ("exaone_moe", EXAONE_MOE),
    "ExaoneMoEForCausalLM": ("exaone_moe", EXAONE_MOE),
    "AfmoeForCausalLM": ("afmoe", AFMOE),
    "GraniteSWAForCausalLM": ("granite_swa", GRANITE_SWA),
    "GraniteMoeSWAForCausalLM": ("granitemoe_swa", GRANITE_MOE_SWA),
    "MiMoV2FlashForCausalLM": ("mimo_v2_flash", MIMO2),
}
