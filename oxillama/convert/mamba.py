"""Hybrids of attention and Mamba-2: Granite 4, Falcon-H1 and Nemotron-H."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.decoders import EMBEDDING, HEAD, Change, Decoder, Part, Sizes
from oxillama.convert.experts import GRANITE_EXPERTS, SIGMOID, correction, weights_of_experts
from oxillama.convert.hybrids import column, flat, key_heads, kinds_of
from oxillama.convert.options import counts, granite_scales
from oxillama.convert.parts import ATTENTION, BEFORE, only
from oxillama.convert.rotation import Metadata, Tensors, rotation
from oxillama.errors import LoadError


def half(which: int) -> Change:
    """The first or the second half of the rows."""

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        return np.split(values, 2)[which]

    return change


def state_space(
    metadata: Metadata, sizes: Sizes, heads: int, inner: int, groups: int, state: int, taps: int
) -> None:
    """Sizes of the recurrent part: ``inner`` channels in heads, groups of which share B and C."""
    if inner % heads or inner % groups:
        raise LoadError(
            f"config.json: {inner} channels: expected a multiple of {heads} heads and of {groups} groups"
        )
    sizes.update({"ssm_heads": heads, "inner": inner, "taps": taps, "state": groups * state})
    sizes.update({"groups": groups, "inner/groups": inner // groups, "channels": inner + 2 * groups * state})
    metadata.update(
        {
            "ssm.conv_kernel": taps,
            "ssm.state_size": state,
            "ssm.group_count": groups,
            "ssm.time_step_rank": heads,
            "ssm.inner_size": inner,
        }
    )


def granite_hybrid(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Granite 4: with experts and a shared one, or, in the small models, the shared one alone."""
    granite_scales(config, metadata)
    recurrent = kinds_of(config, sizes, ("mamba", "linear_attention"))
    key_heads(metadata, sizes, recurrent)
    heads, width = config.size("mamba_n_heads"), config.size("mamba_d_head")
    groups, state = config.size("mamba_n_groups", 1), config.size("mamba_d_state")
    state_space(metadata, sizes, heads, heads * width, groups, state, config.size("mamba_d_conv", 4))
    config.require(mamba_conv_bias=True, mamba_proj_bias=False)
    # the heads say it, or it changes nothing
    config.ignore("mamba_expand", "mamba_chunk_size", "time_step_limit", "time_step_min", "time_step_max")
    config.ignore("time_step_floor", "normalization_function", "init_method")
    turns_ = config.get("position_embedding_type")
    config.only("position_embedding_type", "rope", "nope")
    metadata["rope.scaling.finetuned"] = turns_ == "rope"
    experts = config.size("num_local_experts", 0, least=0)
    sizes["shared_ff"] = config.size("shared_intermediate_size")
    sizes.kinds["routed"] = [experts > 0] * sizes["layers"]
    sizes.kinds["dense"] = [experts == 0] * sizes["layers"]
    config.ignore("num_experts_per_tok")
    if experts:
        counts(config, metadata, sizes, "num_local_experts", width="")
        metadata["expert_shared_feed_forward_length"] = sizes["shared_ff"]
    else:
        metadata["feed_forward_length"] = sizes["shared_ff"]
    return rotation(config, metadata, sizes["dim"])


def mamba2(source: str) -> tuple[Part, ...]:
    """Tensors of a recurrent part, by the beginning of their names in the source."""
    return (
        Part(f"{source}.in_proj", "ssm_in", "inner+channels+ssm_heads d"),
        Part(f"{source}.conv1d", "ssm_conv1d", "channels one taps", change=flat, becomes="channels taps"),
        Part(f"{source}.conv1d.bias", "ssm_conv1d.bias", "channels", bare=True),
        Part(f"{source}.dt_bias", "ssm_dt.bias", "ssm_heads", bare=True),
        Part(
            f"{source}.A_log", "ssm_a", "ssm_heads", bare=True, becomes="ssm_heads one",
            change=lambda values, sizes: -np.exp(values).reshape(-1, 1),
        ),
        Part(f"{source}.D", "ssm_d", "ssm_heads", bare=True, change=column, becomes="ssm_heads one"),
        Part(
            f"{source}.norm", "ssm_norm", "inner", becomes="groups inner/groups",
            change=lambda values, sizes: values.reshape(sizes["groups"], -1),
        ),
        Part(f"{source}.out_proj", "ssm_out", "d inner"),
    )  # fmt: skip


def granite_block(kind: str, ending: str) -> tuple[Part, ...]:
    """The block that every token uses."""
    source, shape = "shared_mlp.input_linear", "shared_ff+shared_ff d"
    return only(
        kind,
        (
            Part(source, f"ffn_gate{ending}", shape, change=half(0), becomes="shared_ff d"),
            Part(source, f"ffn_up{ending}", shape, change=half(1), becomes="shared_ff d"),
            Part("shared_mlp.output_linear", f"ffn_down{ending}", "d shared_ff"),
        ),
    )


GRANITE_HYBRID = Decoder(
    "granitehybrid",
    (
        *only("attending", ATTENTION),
        *only("recurrent", mamba2("mamba")),
        *BEFORE,
        *only("routed", GRANITE_EXPERTS),
        *granite_block("routed", "_shexp"),
        *granite_block("dense", ""),
    ),
    granite_hybrid,
    reordered=True,
)

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


def falcon_h1(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Both mixers read the same in all layers. Factors, which GGUF has not, are multiplied into matrices."""
    heads = config.size("mamba_n_heads")
    inner = config.size("mamba_d_ssm", config.size("mamba_expand", 2) * sizes["d"])
    if config.get("mamba_d_head", "auto") != "auto":
        config.only("mamba_d_head", inner // heads)
    groups, state = config.size("mamba_n_groups", 1), config.size("mamba_d_state", 256)
    state_space(metadata, sizes, heads, inner, groups, state, config.size("mamba_d_conv", 4))
    normed = config.flag("mamba_rms_norm")
    sizes.kinds["normed"] = [normed] * sizes["layers"]
    config.only("mamba_norm_before_gate", False, *(() if normed else (True,)))
    config.only("mamba_conv_bias", True)
    config.require(mamba_proj_bias=False, projectors_bias=False, attention_bias=False, mlp_bias=False)
    # these say how, or what holds anyway
    config.ignore("mamba_chunk_size", "mamba_use_mlp", "attn_layer_indices", "layers_block_type")
    without_limits(config)
    for name, key in FACTORS.items():
        sizes.factors[name] = config.number(key, 1.0)
    sizes.factors["key"] *= sizes.factors["attention_in"]
    sizes.factors["gate"], sizes.factors["down"] = listed(config, "mlp_multipliers", 2)
    for name, value in zip(("z", "x", "b", "c", "dt"), listed(config, "ssm_multipliers", 5)):
        sizes.factors[name] = value
    return rotation(config, metadata, sizes["dim"])


def listed(config: Config, key: str, n: int) -> list[float]:
    """So many numbers above 0, all 1 where the config gives none."""
    return [1.0] * n if not config.has(key) else [float(value) for value in config.numbers(key, n)]


def scaled_by_part(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """The matrix that makes z, x, B, C and the steps of time: rows of each are scaled by a factor."""
    parts = {"z": "inner", "x": "inner", "b": "state", "c": "state", "dt": "ssm_heads"}
    factors = [np.full(sizes[size], sizes.factors[name]) for name, size in parts.items()]
    scales: np.ndarray = (np.concatenate(factors) * sizes.factors["ssm_in"]).astype(np.float32)
    found: np.ndarray = values * scales[:, None]
    return found


def scaled(part: Part, factor: str) -> Part:
    return replace(part, factor=factor, bias="")


IN, *STATE, NORM, OUT = mamba2("mamba")
FALCON_H1 = Decoder(
    "falcon-h1",
    (
        *(
            scaled(part, factor)
            for part, factor in zip(ATTENTION, ("attention_in", "key", "attention_in", "attention_out"))
        ),
        replace(IN, change=scaled_by_part, becomes=IN.shape),
        *STATE,
        *only("normed", (NORM,)),
        scaled(OUT, "ssm_out"),
        Part("input_layernorm", "attn_norm", "d"),
        Part("pre_ff_layernorm.weight", "ffn_norm", "d", bare=True),  # whose name in GGUF has no ".weight"
        Part("feed_forward.gate_proj", "ffn_gate", "ff d", factor="gate"),
        Part("feed_forward.up_proj", "ffn_up", "ff d"),
        Part("feed_forward.down_proj", "ffn_down", "d ff", factor="down"),
    ),
    falcon_h1,
    copies_tied=True,
    defaults=(("rms_norm_eps", 1e-5),),
    table=scaled(EMBEDDING, "embedding"),
    head=scaled(HEAD, "output"),
    last_norm=Part("final_layernorm", "output_norm", "d"),
)


# --- Nemotron-H -------------------------------------------------------------------------------------

LETTERS = {"M": "recurrent", "*": "attending", "-": "dense", "E": "routed"}
WORDS = {
    **{"linear_attention": "recurrent", "mamba": "recurrent", "full_attention": "attending"},
    **{"attention": "attending", "mlp": "dense", "moe": "routed"},
}


NOTHING_NEW = (
    *("expand", "chunk_size", "mamba_ssm_cache_dtype", "use_mamba_kernels", "residual_in_fp32"),
    *("rescale_prenorm_residual", "rope_parameters", "rope_theta", "partial_rotary_factor"),
    *("moe_shared_expert_overlap", "mtp_layers_block_type", "mtp_hybrid_override_pattern"),
    *("num_nextn_predict_layers", "mamba_d_conv", "mamba_n_groups"),
)
"""Keys that other keys or the tensors say, that change nothing, or are about blocks that are left out."""


def nemotron_kinds(config: Config) -> list[str]:
    """What each layer has, as `LETTERS` or `WORDS` say."""
    pattern = config.get("hybrid_override_pattern")
    letters = isinstance(pattern, str)
    listed_ = pattern if letters else config.get("layers_block_type")
    known: dict[str, str] = LETTERS if letters else WORDS
    sound = isinstance(listed_, (str, list)) and all(isinstance(each, str) for each in listed_)
    if not sound or not listed_ or any(each not in known for each in listed_):
        key = "hybrid_override_pattern" if letters else "layers_block_type"
        raise LoadError(f"{config.name}: {key}: expected some of {', '.join(known)}, got {listed_!r:.80}")
    return [known[each] for each in listed_]


def nemotron(config: Config) -> Decoder:
    """Models with experts have an architecture of their own in GGUF."""
    kinds = nemotron_kinds(config)
    if "routed" in kinds and "dense" in kinds:
        raise LoadError(
            f"{config.name}: layers_block_type: expected dense blocks or experts, got both, "
            "which GGUF cannot express"
        )
    return NEMOTRON_H_MOE if "routed" in kinds else replace(NEMOTRON_H, chosen=None)


def count_layers(config: Config) -> None:
    """Sets the number of layers, which the pattern determines."""
    config.ignore("num_hidden_layers")
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
    config.only("use_conv_bias", True)
    config.require(use_bias=False, mamba_proj_bias=False, attention_bias=False)
    config.require(mamba_hidden_act="silu", mlp_hidden_act="relu2")
    config.ignore("sliding_window", *NOTHING_NEW)  # the first is not read by the class
    without_limits(config)
    nemotron_experts(config, metadata, sizes, any(sizes.kinds["routed"]))
    return {}


def nemotron_experts(config: Config, metadata: Metadata, sizes: Sizes, has: bool) -> None:
    """Experts without gates, which may work on a narrower vector."""
    keys = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
    # without such layers they are only numbers
    config.ignore(*keys, "moe_shared_expert_intermediate_size", "n_shared_experts", "moe_latent_size")
    config.ignore("routed_scaling_factor", "norm_topk_prob", "n_group", "topk_group")
    latent = has and config.has("moe_latent_size")
    sizes.kinds["latent"] = [latent and each for each in sizes.kinds["routed"]]
    if not has:
        return
    counts(config, metadata, sizes, *keys)
    metadata["expert_gating_func"] = SIGMOID
    weights_of_experts(config, metadata)
    shared = config.size("moe_shared_expert_intermediate_size", 7688)
    sizes["shared_ff"] = metadata["expert_shared_feed_forward_length"] = shared
    metadata["expert_shared_count"] = config.size("n_shared_experts", 1)
    sizes["latent"] = sizes["d"]
    if latent:
        sizes["latent"] = metadata["moe_latent_size"] = config.size("moe_latent_size")


NEMOTRON_ATTENTION = tuple(
    Part(part.source.replace("self_attn", "mixer"), part.target, part.shape) for part in ATTENTION
)
NEMOTRON_H = Decoder(
    "nemotron_h",
    (
        Part("norm", "attn_norm", "d"),
        *only("recurrent", mamba2("mixer")),
        *only("attending", NEMOTRON_ATTENTION),
        Part("mixer.up_proj", "ffn_up", "ff d", "mlp_bias", only="dense"),
        Part("mixer.down_proj", "ffn_down", "d ff", "mlp_bias", only="dense"),
    ),
    nemotron_h,
    epsilon="layer_norm_epsilon",
    defaults=(("layer_norm_epsilon", 1e-5), ("head_dim", 128)),
    table=Part("embeddings", "token_embd", "vocab d"),
    last_norm=Part("norm_f", "output_norm", "d"),
    left_out=("mtp.",),
    renamed=(("backbone.", "model."),),
    prepare=count_layers,
    chosen=nemotron,
)
NEMOTRON_H_MOE = replace(
    NEMOTRON_H,
    architecture="nemotron_h_moe",
    parts=(
        *NEMOTRON_H.parts[:-2],
        *only(
            "routed",
            (
                Part("mixer.gate", "ffn_gate_inp", "experts d"),
                Part("mixer.experts.{e}.up_proj", "ffn_up_exps", "expert_ff latent"),
                Part("mixer.experts.{e}.down_proj", "ffn_down_exps", "latent expert_ff"),
                Part("mixer.shared_experts.up_proj", "ffn_up_shexp", "shared_ff d"),
                Part("mixer.shared_experts.down_proj", "ffn_down_shexp", "d shared_ff"),
            ),
        ),
        correction("mixer.gate.e_score_correction_bias"),
        Part("mixer.fc1_latent_proj", "ffn_latent_down", "latent d", only="latent"),
        Part("mixer.fc2_latent_proj", "ffn_latent_up", "d latent", only="latent"),
    ),
    chosen=None,
)

MAMBA_DECODERS: dict[str, tuple[str, Decoder]] = {
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid", GRANITE_HYBRID),
    "FalconH1ForCausalLM": ("falcon_h1", FALCON_H1),
    "NemotronHForCausalLM": ("nemotron_h", NEMOTRON_H),
}
