"""Decoders with windows in some layers: EXAONE 4, K-EXAONE, Trinity, Granite with windows, MiMo 2."""

from __future__ import annotations

from oxillama.apps.convert import options, parts
from oxillama.apps.convert.config import Config
from oxillama.apps.convert.decoders import Decoder, Sizes, derive, register
from oxillama.apps.convert.rotation import Metadata, Tensors, refuse_unread, rotation, rotation_of
from oxillama.apps.convert.tables import Part, table
from oxillama.errors import LoadError

MANY = 64
"""Number of layers of the EXAONE 4 with windows, by which readers of GGUF files recognize it."""


def write_windows(config: Config, metadata: Metadata, usual: list[bool]) -> list[bool]:
    """Writes the window and which layers have it; returns the latter."""
    found = options.kinds_of_attention(config, usual)
    metadata["attention.sliding_window"] = config.size("sliding_window")
    metadata["attention.sliding_window_pattern"] = found
    return found


def three_of_four(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    write_windows(config, metadata, options.every(4, sizes))


def exaone4(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Layers without a window do not rotate in the model that has windows."""
    n, has = sizes["layers"], config.has("sliding_window")
    if has != (n == MANY):
        expected = f"a number with {MANY} layers, and with no other number of layers"
        raise LoadError(f"{config.name}: sliding_window: expected {expected}, got {n} layers")
    (three_of_four if has else options.full_attention)(config, metadata, sizes)


def exaone_moe(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The width of the shared experts is stated, too."""
    config.only("is_moe_layer", sizes.kinds["routed"])
    metadata["expert_shared_feed_forward_length"] = sizes["shared_ff"]


def afmoe(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Every fourth layer neither rotates nor has a window; embeddings are multiplied by sqrt(d)."""
    if not config.flag("mup_enabled"):
        raise LoadError(f"{config.name}: mup_enabled: expected true, got false, which GGUF cannot express")
    if write_windows(config, metadata, options.every(4, sizes)) != options.every(4, sizes):
        raise LoadError(f"{config.name}: layer_types: expected every fourth to be full_attention")


def granite_swa(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Each layer has a base of its rotation, or 0 for no rotation."""
    n = sizes["layers"]
    options.granite_scales(config, metadata, sizes)
    write_windows(config, metadata, options.every(4, sizes, "first"))
    made = rotation(config, metadata, sizes["dim"])
    key, usual = "layer_rope_theta", [metadata["rope.freq_base"]] * n
    bases = config.listed(key, n, lambda base: type(base) in (int, float), f"{n} numbers", usual)
    turning = {float(base) for base in bases if base}
    wrong = len(turning) > 1 or any(base <= 0 for base in turning)
    config.refuse_if(wrong, key, "0 or the same base for all layers", bases)
    for base in turning:
        metadata["rope.freq_base"] = base
    metadata["attention.rope_pattern"] = [bool(base) for base in bases]
    return made


def granite_shared(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """A block that all tokens use, in some models."""
    width = sizes["shared_ff"] = config.size("shared_intermediate_size", 0, least=0)
    sizes.split(width > 0, "shared")
    if width:
        metadata["expert_shared_feed_forward_length"] = width


def mimo2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Layers with windows have twice as many key heads, and sinks; values are narrower than keys."""
    n, heads = sizes["layers"], sizes["heads"]
    usual = [False, *options.every(6, sizes)[1:]]
    windowed = write_windows(config, metadata, usual)
    if config.has("sliding_window_size"):  # does not count the token itself
        metadata["attention.sliding_window"] = config.size("sliding_window_size") + 1
    config.require(hybrid_layer_pattern=[int(each) for each in windowed])
    config.require(layernorm_epsilon=config.number("rms_norm_eps"))
    for key in ("head_dim", "num_attention_heads", "v_head_dim"):
        config.only(f"swa_{key}", config.get(key))
    value = metadata["attention.value_length"] = config.size("v_head_dim", 128)
    kv = {True: config.size("swa_num_key_value_heads", 2 * sizes["kv_heads"]), False: sizes["kv_heads"]}
    sizes.split(windowed, "windowed", "full")
    sizes.update({"local_k": kv[True] * sizes["dim"], "local_v": kv[True] * value})
    sizes.update({"v": kv[False] * value, "values": heads * value})
    metadata["attention.head_count_kv"] = [kv[each] for each in windowed]
    if config.has("attention_value_scale"):
        metadata["attention.value_scale"] = config.number("attention_value_scale")
    options.counts("n_routed_experts")(config, metadata, sizes)
    kinds = config.words("mlp_layer_types", n, ("dense", "sparse"), ["dense"] + ["sparse"] * (n - 1))
    config.only("moe_layer_freq", [int(kind == "sparse") for kind in kinds])
    sizes.split([kind == "sparse" for kind in kinds], "routed", "dense")
    options.sigmoid(config, metadata, sizes)
    # all layers rotate the same share of a head, with two bases
    both = config.table("rope_parameters")
    full, local = both.table("full_attention"), both.table("sliding_attention")
    share = full.number("partial_rotary_factor", config.number("partial_rotary_factor", 0.334))
    local.require(partial_rotary_factor=share, rope_type="default")
    full.only("rope_type", "default")
    full.values["partial_rotary_factor"] = share
    metadata["rope.freq_base_swa"] = local.number("rope_theta", config.number("swa_rope_theta", 10000.0))
    refuse_unread(both, local)
    return rotation_of(full, config, metadata, sizes["dim"], 5e6, partial=True)


# fmt: off
register(Decoder(
    "Exaone4ForCausalLM exaone4", "exaone4", parts.layer("exaone4", parts.PLAIN_ATTENTION, parts.PLAIN_FEED),
    (exaone4,),
    unread="sliding_window_pattern",
))
register(Decoder(
    "ExaoneMoeForCausalLM ExaoneMoEForCausalLM exaone_moe", "exaone-moe",
    (
        *parts.layer("exaone-moe", parts.PLAIN_ATTENTION, parts.DENSE_THEN_EXPERTS),
        parts.correction("mlp.e_score_correction_bias"),
    ),
    (
        three_of_four, options.counts(), options.dense_first("first_k_dense_replace", 0),
        options.stated_kinds,
        options.shared_experts("num_shared_experts"), exaone_moe,
        options.sigmoid, options.expert_weights,
    ),
    fixed={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    unread="sliding_window_pattern num_nextn_predict_layers mtp_layer_type", left_out=("mtp.",),
))
register(Decoder(
    "AfmoeForCausalLM afmoe", "afmoe",
    (
        *parts.PLAIN_ATTENTION, *parts.HEAD_NORMS, Part("self_attn.gate_proj", "attn_gate", "q d"),
        *parts.norms(
            "afmoe", "input_layernorm post_attention_layernorm pre_mlp_layernorm post_mlp_layernorm"
        ),
        *parts.only("dense", parts.FEED), Part("mlp.router.gate", "ffn_gate_inp", "experts d", only="routed"),
        *parts.DENSE_THEN_EXPERTS[4:], parts.correction("mlp.expert_bias"),
    ),
    (
        afmoe, options.counts(), options.dense_first("num_dense_layers", 1),
        options.shared_experts("num_shared_experts"),
        options.sigmoid, options.stated(expert_weights_norm=True),
        options.reads("route_scale=1.0 expert_weights_scale"),
    ),
    fixed={
        "score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1, "num_expert_groups": 1,
        "num_limited_groups": 1,
    },
    unread="global_attn_every_n_layers load_balance_coeff use_grouped_mm",
))
GRANITE_SWA = register(Decoder(
    "GraniteSWAForCausalLM granite_swa", "granite_swa",
    (*parts.ATTENTION, parts.SINKS, *parts.norms("granite_swa"), *parts.FEED),
    rotates=granite_swa, reordered=True, tied=True, defaults={"sliding_window": 128},
))
derive(
    GRANITE_SWA, "GraniteMoeSWAForCausalLM granitemoe_swa", tied=False,
    parts=(*parts.ATTENTION, parts.SINKS, *parts.norms("granite_swa"), *table("""
        block_sparse_moe.router               ffn_gate_inp             experts d
        block_sparse_moe.experts.gate_up_proj ffn_gate_up_exps.weight  experts ff+ff d / bare
        block_sparse_moe.experts.down_proj    ffn_down_exps.weight     experts d ff / bare
      [shared]
        shared_mlp.input_linear               ffn_up_shexp             shared_ff+shared_ff d
        shared_mlp.output_linear              ffn_down_shexp           d shared_ff
    """)),
    steps=(options.counts("num_local_experts", width=""), granite_shared),
)
register(Decoder(
    "MiMoV2FlashForCausalLM mimo_v2_flash", "mimo2",
    (
        *table("""
            self_attn.q_proj attn_q q d
          [full]
            self_attn.k_proj attn_k k d
            self_attn.v_proj attn_v v d
          [windowed]
            self_attn.k_proj attn_k local_k d
            self_attn.v_proj attn_v local_v d
          []
            self_attn.o_proj attn_output d values
          [windowed]
            self_attn.attention_sink_bias attn_sinks.weight heads / bare
        """),
        *parts.norms("mimo2"), *parts.only("dense", parts.PLAIN_FEED), *parts.only("routed", parts.EXPERTS),
        parts.correction("mlp.gate.e_score_correction_bias"),
    ),
    rotates=mimo2,
    fixed={
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "norm_topk_prob": True,
        "routed_scaling_factor": 1, "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid",
    },
    defaults={
        "rms_norm_eps": 1e-5, "head_dim": 192, "sliding_window": 129, "attention_value_scale": 0.707,
    },
    left_out=("model.mtp.",),
))
