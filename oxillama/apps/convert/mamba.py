"""Hybrids of attention and Mamba-2: Granite 4, Falcon-H1 and Nemotron-H."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from oxillama.apps.convert import options, parts
from oxillama.apps.convert.config import Config
from oxillama.apps.convert.decoders import EMBEDDING, HEAD, Decoder, Sizes, derive, register
from oxillama.apps.convert.dense import GRANITE_EXPERTS
from oxillama.apps.convert.hybrids import key_heads, kinds_of, write_state
from oxillama.apps.convert.rotation import Metadata, Tensors
from oxillama.apps.convert.tables import Part, table
from oxillama.errors import LoadError


def state_space(
    metadata: Metadata, sizes: Sizes, heads: int, inner: int, groups: int, state: int, taps: int
) -> None:
    """Sizes of the recurrent part: ``inner`` channels in heads; the heads of a group share B and C."""
    if inner % heads or inner % groups:
        raise LoadError(
            f"config.json: {inner} channels: expected a multiple of {heads} heads and of {groups} groups"
        )
    sizes.update({"ssm_heads": heads, "inner": inner, "taps": taps, "state": groups * state})
    sizes.update({"groups": groups, "inner/groups": inner // groups, "channels": inner + 2 * groups * state})
    write_state(metadata, taps, state, groups, heads, inner)


def mamba2(source: str) -> tuple[Part, ...]:
    """Tensors of a recurrent part, whose names begin with ``source``."""
    return table(
        f"""
        {source}.in_proj     ssm_in          inner+channels+ssm_heads d
        {source}.conv1d      ssm_conv1d      channels one taps -> channels taps flat
        {source}.conv1d.bias ssm_conv1d.bias channels / bare
        {source}.dt_bias     ssm_dt.bias     ssm_heads / bare
        {source}.A_log       ssm_a           ssm_heads -> ssm_heads one rates / bare
        {source}.D           ssm_d           ssm_heads -> ssm_heads one column / bare
        {source}.norm        ssm_norm        inner -> groups inner/groups by_group
        {source}.out_proj    ssm_out         d inner
        """,
        flat=parts.flat,
        rates=lambda values, sizes: parts.column(parts.decay(values, sizes), sizes),
        column=parts.column,
        by_group=lambda values, sizes: values.reshape(sizes["groups"], -1),
    )


# --- Granite 4 --------------------------------------------------------------------------------------


def granite_hybrid(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Layers have experts and a shared one, or, in the small models, the shared one alone."""
    key_heads(metadata, sizes, kinds_of(config, sizes, "mamba", "linear_attention"))
    heads, width = config.size("mamba_n_heads"), config.size("mamba_d_head")
    groups, state = config.size("mamba_n_groups", 1), config.size("mamba_d_state")
    state_space(metadata, sizes, heads, heads * width, groups, state, config.size("mamba_d_conv", 4))
    position = config.get("position_embedding_type")
    config.only("position_embedding_type", "rope", "nope")
    metadata["rope.scaling.finetuned"] = position == "rope"
    experts = config.size("num_local_experts", 0, least=0)
    sizes["shared_ff"] = config.size("shared_intermediate_size")
    sizes.split(experts > 0, "routed", "dense")
    if experts:
        options.counts("num_local_experts", width="")(config, metadata, sizes)
        metadata["expert_shared_feed_forward_length"] = sizes["shared_ff"]
    else:
        metadata["feed_forward_length"] = sizes["shared_ff"]


def granite_block(kind: str, ending: str) -> tuple[Part, ...]:
    """The block that all tokens use."""
    return table(
        f"""
      [{kind}]
        shared_mlp.input_linear  ffn_gate{ending} shared_ff+shared_ff d -> shared_ff d gates
        shared_mlp.input_linear  ffn_up{ending}   shared_ff+shared_ff d -> shared_ff d ups
        shared_mlp.output_linear ffn_down{ending} d shared_ff
        """,
        gates=parts.half(0),
        ups=parts.half(1),
    )


# fmt: off
register(Decoder(
    "GraniteMoeHybridForCausalLM granitemoehybrid", "granitehybrid",
    (
        *parts.only("attending", parts.ATTENTION), *parts.only("recurrent", mamba2("mamba")),
        *parts.norms("granitehybrid"),
        *parts.only("routed", GRANITE_EXPERTS), *granite_block("routed", "_shexp"),
        *granite_block("dense", ""),
    ),
    (options.granite_scales, granite_hybrid), reordered=True,
    fixed={"mamba_conv_bias": True, "mamba_proj_bias": False},
    unread="mamba_expand mamba_chunk_size time_step_limit time_step_min time_step_max time_step_floor "
        "normalization_function init_method num_experts_per_tok",
))
# fmt: on

# --- Falcon-H1 --------------------------------------------------------------------------------------


def without_limits(config: Config) -> None:
    """Refuses limits of the time steps; reads keys that only training uses."""
    config.only("time_step_limit", [0, math.inf], [0, {"__float__": "Infinity"}])
    config.ignore("time_step_min", "time_step_max", "time_step_floor", "num_logits_to_keep")


FACTORS = {
    **{"embedding": "embedding_multiplier", "output": "lm_head_multiplier"},
    **{"attention_in": "attention_in_multiplier", "attention_out": "attention_out_multiplier"},
    **{"key": "key_multiplier", "ssm_in": "ssm_in_multiplier", "ssm_out": "ssm_out_multiplier"},
}


def falcon_h1(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Both mixers read the same input in all layers. Factors, which GGUF lacks, multiply the matrices."""
    heads = config.size("mamba_n_heads")
    inner = config.size("mamba_d_ssm", config.size("mamba_expand", 2) * sizes["d"])
    if config.get("mamba_d_head", "auto") != "auto":
        config.only("mamba_d_head", inner // heads)
    groups, state = config.size("mamba_n_groups", 1), config.size("mamba_d_state", 256)
    state_space(metadata, sizes, heads, inner, groups, state, config.size("mamba_d_conv", 4))
    normed = config.flag("mamba_rms_norm")
    sizes.split(normed, "normed")
    config.only("mamba_norm_before_gate", False, *(() if normed else (True,)))
    without_limits(config)
    for name, key in FACTORS.items():
        sizes.factors[name] = config.number(key, 1.0)
    sizes.factors["key"] *= sizes.factors["attention_in"]
    for names, key in (("gate down", "mlp_multipliers"), ("z x b c dt", "ssm_multipliers")):
        n = len(names.split())
        values = [float(value) for value in config.numbers(key, n)] if config.has(key) else [1.0] * n
        sizes.factors |= zip(names.split(), values)


def scaled_by_part(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """The matrix that makes z, x, B, C and the time steps: the rows of each have a factor."""
    parts = {"z": "inner", "x": "inner", "b": "state", "c": "state", "dt": "ssm_heads"}
    factors = [np.full(sizes[size], sizes.factors[name]) for name, size in parts.items()]
    scales: np.ndarray = (np.concatenate(factors) * sizes.factors["ssm_in"]).astype(np.float32)
    found: np.ndarray = values * scales[:, None]
    return found


# fmt: off
IN, *STATE, NORM, OUT = mamba2("mamba")
IN_OUT = zip(parts.PLAIN_ATTENTION, ("attention_in", "key", "attention_in", "attention_out"))
register(Decoder(
    "FalconH1ForCausalLM falcon_h1", "falcon-h1",
    (
        *(replace(part, factor=factor) for part, factor in IN_OUT),
        replace(IN, change=scaled_by_part, becomes=IN.shape), *STATE, *parts.only("normed", (NORM,)),
        replace(OUT, factor="ssm_out"),
        *table("""
            input_layernorm         attn_norm d
            pre_ff_layernorm.weight ffn_norm  d / bare
            feed_forward.gate_proj  ffn_gate  ff d / factor=gate
            feed_forward.up_proj    ffn_up    ff d
            feed_forward.down_proj  ffn_down  d ff / factor=down
        """),  # llama.cpp's name of the second norm has no ".weight"
    ),
    (falcon_h1,), defaults={"rms_norm_eps": 1e-5},
    fixed={
        "mamba_conv_bias": True, "mamba_proj_bias": False, "projectors_bias": False, "attention_bias": False,
        "mlp_bias": False,
    },
    unread="mamba_chunk_size mamba_use_mlp attn_layer_indices layers_block_type",
    first=(replace(EMBEDDING, factor="embedding"),), last=table("final_layernorm output_norm d"),
    head=replace(HEAD, factor="output"),
))
# fmt: on

# --- Nemotron-H -------------------------------------------------------------------------------------

LETTERS = {"M": "recurrent", "*": "attending", "-": "dense", "E": "routed"}
WORDS = {
    **{"linear_attention": "recurrent", "mamba": "recurrent", "full_attention": "attending"},
    **{"attention": "attending", "mlp": "dense", "moe": "routed"},
}


def nemotron_kinds(config: Config) -> list[str]:
    """The kind of each layer, which the config writes as `LETTERS` or `WORDS`."""
    pattern = config.get("hybrid_override_pattern")
    letters = isinstance(pattern, str)
    listed = pattern if letters else config.get("layers_block_type")
    known: dict[str, str] = LETTERS if letters else WORDS
    sound = isinstance(listed, (str, list)) and all(isinstance(each, str) for each in listed)
    if not sound or not listed or any(each not in known for each in listed):
        key = "hybrid_override_pattern" if letters else "layers_block_type"
        config.refuse_if(True, key, f"some of {', '.join(known)}", listed)
    return [known[each] for each in listed]


def nemotron(config: Config) -> Decoder:
    """The decoder of a config: models with experts have an architecture of their own in GGUF."""
    kinds = nemotron_kinds(config)
    if "routed" in kinds and "dense" in kinds:
        raise LoadError(
            f"{config.name}: layers_block_type: expected dense blocks or experts, got both, "
            "which GGUF cannot express"
        )
    return NEMOTRON_H_MOE if "routed" in kinds else replace(NEMOTRON_H, chosen=None)


def count_layers(config: Config) -> None:
    """Sets the number of layers, which the pattern determines."""
    config.values["num_hidden_layers"] = len(nemotron_kinds(config))
    config.values.setdefault("intermediate_size", 21504)
    if config.has("attention_head_dim"):
        config.values.setdefault("head_dim", config.size("attention_head_dim"))


def nemotron_h(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """A layer has one block: Mamba-2, attention without positions, a dense block, or experts."""
    found = nemotron_kinds(config)
    for kind in LETTERS.values():
        sizes.kinds[kind] = [each == kind for each in found]
    metadata["attention.head_count_kv"] = [sizes["kv_heads"] if kind == "attending" else 0 for kind in found]
    metadata["attention.layer_norm_epsilon"] = metadata["attention.layer_norm_rms_epsilon"]
    width = {"dense": sizes["ff"], "routed": sizes["ff"]}
    metadata["feed_forward_length"] = [width.get(kind, 0) for kind in found]
    heads = config.size("mamba_num_heads", 128)
    inner = heads * config.size("mamba_head_dim", 64)
    taps = config.size("conv_kernel", config.get("mamba_d_conv", 4))
    groups = config.size("n_groups", config.get("mamba_n_groups", 8))
    state_space(metadata, sizes, heads, inner, groups, config.size("ssm_state_size", 128), taps)
    without_limits(config)
    has_experts = any(sizes.kinds["routed"])
    latent = has_experts and config.has("moe_latent_size")
    sizes.kinds["latent"] = [latent and each for each in sizes.kinds["routed"]]
    if has_experts:
        nemotron_experts(config, metadata, sizes, latent)
    return {}


def nemotron_experts(config: Config, metadata: Metadata, sizes: Sizes, latent: bool) -> None:
    """Experts without gates; ``latent`` : they read and write a narrower vector than the hidden state."""
    options.counts("n_routed_experts")(config, metadata, sizes)
    options.sigmoid(config, metadata, sizes)
    options.expert_weights(config, metadata, sizes)
    shared = config.size("moe_shared_expert_intermediate_size", 7688)
    sizes["shared_ff"] = metadata["expert_shared_feed_forward_length"] = shared
    metadata["expert_shared_count"] = config.size("n_shared_experts", 1)
    sizes["latent"] = sizes["d"]
    if latent:
        sizes["latent"] = metadata["moe_latent_size"] = config.size("moe_latent_size")


# fmt: off
MIXERS = (
    Part("norm", "attn_norm", "d"), *parts.only("recurrent", mamba2("mixer")),
    *table("""
      [attending]
        mixer.q_proj attn_q q d
        mixer.k_proj attn_k k d
        mixer.v_proj attn_v v d
        mixer.o_proj attn_output d q
    """),
)
NEMOTRON_H = register(Decoder(
    "NemotronHForCausalLM nemotron_h", "nemotron_h",
    (*MIXERS, *table("""
      [dense]
        mixer.up_proj   ffn_up   ff d / bias=mlp_bias
        mixer.down_proj ffn_down d ff / bias=mlp_bias
    """)),
    rotates=nemotron_h, epsilon="layer_norm_epsilon", activations=("silu", "swish"),
    fixed={
        "use_conv_bias": True, "use_bias": False, "mamba_proj_bias": False, "attention_bias": False,
        "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2",
    },
    # keys that repeat others, that change nothing, or of MTP layers and experts that the model does not have
    unread="""
        num_hidden_layers sliding_window expand chunk_size mamba_ssm_cache_dtype use_mamba_kernels
        residual_in_fp32 rescale_prenorm_residual rope_parameters rope_theta partial_rotary_factor
        moe_shared_expert_overlap mtp_layers_block_type mtp_hybrid_override_pattern num_nextn_predict_layers
        mamba_d_conv mamba_n_groups n_routed_experts num_experts_per_tok moe_intermediate_size
        moe_shared_expert_intermediate_size n_shared_experts moe_latent_size routed_scaling_factor
        norm_topk_prob n_group topk_group
    """,
    defaults={"layer_norm_epsilon": 1e-5, "head_dim": 128},
    first=table("embeddings token_embd vocab d"), last=table("norm_f output_norm d"),
    left_out=("mtp.",), renamed=(("backbone.", "model."),), prepare=count_layers, chosen=nemotron,
))
NEMOTRON_H_MOE = derive(
    NEMOTRON_H, "nemotron_h", "nemotron_h_moe", chosen=None,
    parts=(*MIXERS, *table("""
      [routed]
        mixer.gate                          ffn_gate_inp   experts d
        mixer.experts.{e}.up_proj           ffn_up_exps    expert_ff latent
        mixer.experts.{e}.down_proj         ffn_down_exps  latent expert_ff
        mixer.shared_experts.up_proj        ffn_up_shexp   shared_ff d
        mixer.shared_experts.down_proj      ffn_down_shexp d shared_ff
        mixer.gate.e_score_correction_bias  exp_probs_b.bias experts / bare
      [latent]
        mixer.fc1_latent_proj ffn_latent_down latent d
        mixer.fc2_latent_proj ffn_latent_up   d latent
    """)),
)
