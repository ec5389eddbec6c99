"""Hybrids of attention and recurrent layers: Qwen3-Next, Qwen 3.5, LFM2 and Granite 4."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.decoders import Change, Decoder, Part, Sizes
from oxillama.convert.experts import (
    GRANITE_EXPERTS,
    SIGMOID,
    correction,
    counts,
    dense_first,
)
from oxillama.convert.options import granite_scales
from oxillama.convert.parts import ATTENTION, BEFORE, EXPERTS, FEED, SHARED, only
from oxillama.convert.rotation import Metadata, Tensors, rotation
from oxillama.errors import LoadError


def kinds_of(config: Config, sizes: Sizes, recurrent: tuple[str, ...]) -> list[bool]:
    """Which layers are recurrent, by ``layer_types``: one of these words, or an attending one."""
    kinds, n = config.get("layer_types"), sizes["layers"]
    known = (*recurrent, "full_attention", "attention")
    if not isinstance(kinds, list) or len(kinds) != n or any(kind not in known for kind in kinds):
        expected = f"one of {', '.join(known)} for each of {n} layers"
        raise LoadError(f"{config.name}: layer_types: expected {expected}, got {kinds!r:.80}")
    found = [kind in recurrent for kind in kinds]
    sizes.kinds["recurrent"], sizes.kinds["attending"] = found, [not each for each in found]
    return found


def key_heads(metadata: Metadata, sizes: Sizes, recurrent: list[bool]) -> None:
    """States key heads layer by layer: none in recurrent ones."""
    metadata["attention.head_count_kv"] = [0 if each else sizes["kv_heads"] for each in recurrent]


def negative_exponential(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """A rate of decay, of which the source has the logarithm."""
    decay: np.ndarray = -np.exp(values)
    return decay


def flat(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Taps of a convolution of single channels."""
    return values.reshape(len(values), -1)


def column(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """A number for each head, as a matrix of one column."""
    return values.reshape(-1, 1)


# --- the delta rule ---------------------------------------------------------------------------------


def delta(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Sizes of the heads of recurrent layers; layers with attention have a gate beside each query."""
    recurrent = kinds_of(config, sizes, ("linear_attention",))
    keys, values = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    width, taps = config.size("linear_key_head_dim"), config.size("linear_conv_kernel_dim")
    config.only("linear_value_head_dim", width)
    if values % keys:
        raise LoadError(f"{config.name}: linear_num_value_heads: expected a multiple of {keys}, got {values}")
    sizes.update(
        {"key_heads": keys, "value_heads": values, "width": width, "taps": taps, "2q": 2 * sizes["q"]}
    )
    sizes.update({"keys": keys * width, "values": values * width, "2value_heads": 2 * values})
    metadata.update(
        {
            "ssm.conv_kernel": taps,
            "ssm.state_size": width,
            "ssm.group_count": keys,
            "ssm.time_step_rank": values,
            "ssm.inner_size": values * width,
        }
    )
    n = next((i + 1 for i, each in enumerate(recurrent) if not each), 0)
    if n and recurrent == [(i + 1) % n > 0 for i in range(len(recurrent))]:
        metadata["full_attention_interval"] = n
    else:
        metadata["attention.recurrent_layers"] = recurrent
    config.only("attn_output_gate", True)
    config.get("full_attention_interval")  # layer_types say the same
    return rotation(config, metadata, sizes["dim"], partial=True)


def delta_experts(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The same with experts in every layer."""
    sizes["shared_ff"] = metadata["expert_shared_feed_forward_length"] = config.size(
        "shared_expert_intermediate_size"
    )
    counts(config, metadata, sizes, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    config.only("norm_topk_prob", True)
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    return delta(config, metadata, sizes)


def with_sections(inner: Any, config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Qwen 3.5 rotates by coordinates of images; those of a text are equal."""
    rope = config.table("rope_parameters")
    found = rope.get("mrope_section", [])
    merged = {
        key: value for key, value in rope.values.items() if key not in ("mrope_section", "mrope_interleaved")
    }
    config.values["rope_parameters"] = merged
    made: Tensors = inner(config, metadata, sizes)
    pairs = metadata["rope.dimension_count"] // 2
    if not found:
        found = [-(-pairs // 3), (pairs + 1) // 3, pairs // 3]  # pairs take turns
    if not isinstance(found, list) or any(type(n) is not int or n < 0 for n in found) or sum(found) != pairs:
        raise LoadError(
            f"{config.name}: mrope_section: expected three numbers of {pairs} in all, got {found!r:.60}"
        )
    metadata["rope.dimension_sections"] = [*found, 0]
    return made


def of_key_heads(first: int, second: int) -> Change:
    """Some parts of a matrix that has, for each key head, [q | k | v | z], each of all heads."""

    def picked(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        heads, width = sizes["key_heads"], sizes["width"]
        widths = [width, width, *2 * [sizes["values"] // heads]]
        parts = np.split(values.reshape(heads, sum(widths), -1), np.cumsum(widths)[:-1], axis=1)
        return np.concatenate([part.reshape(-1, values.shape[1]) for part in parts[first:second]])

    return picked


def turns(values: np.ndarray, sizes: Sizes, before: int = 0) -> np.ndarray:
    """Value heads, behind ``before`` rows, so that those of a key head are not neighbours but take turns."""
    heads, groups = sizes["value_heads"], sizes["key_heads"]
    fixed, moved = values[:before], values[before:]
    by_head = moved.reshape(groups, heads // groups, -1, *values.shape[1:])
    return np.concatenate([fixed, by_head.swapaxes(0, 1).reshape(moved.shape)])


def turned(inner: Change | None = None, keys: bool = False) -> Change:
    """`turns` of what ``inner`` makes; ``keys``: behind the rows of q and k."""

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        made = values if inner is None else inner(values, sizes)
        return turns(made, sizes, 2 * sizes["keys"] if keys else 0)

    return change


def turned_columns(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    return np.ascontiguousarray(turns(values.T, sizes).T)


GATED_ATTENTION = only(
    "attending",
    (
        Part("self_attn.q_proj", "attn_q", "2q d"),
        *(Part(part.source, part.target, part.shape) for part in ATTENTION[1:]),
        Part("self_attn.q_norm", "attn_q_norm", "dim"),
        Part("self_attn.k_norm", "attn_k_norm", "dim"),
    ),
)
DELTA_NORMS = (
    Part("input_layernorm", "attn_norm", "d"),
    Part("post_attention_layernorm", "post_attention_norm", "d"),
)
QKVZ, CHANNELS = "keys+keys+values+values d", "keys+keys+values"
TAPS = f"{CHANNELS} one taps"
NEXT_DELTA = only(
    "recurrent",
    (
        Part(
            "linear_attn.in_proj_qkvz", "attn_qkv", QKVZ, change=of_key_heads(0, 3), becomes=f"{CHANNELS} d"
        ),
        Part("linear_attn.in_proj_qkvz", "attn_gate", QKVZ, change=of_key_heads(3, 4), becomes="values d"),
        Part("linear_attn.in_proj_ba", "ssm_ba", "2value_heads d"),
        Part("linear_attn.conv1d", "ssm_conv1d", TAPS, change=flat, becomes=f"{CHANNELS} taps"),
        Part("linear_attn.dt_bias", "ssm_dt.bias", "value_heads", bare=True),
        Part(
            "linear_attn.A_log", "ssm_a", "value_heads",
            change=negative_exponential, becomes="value_heads", bare=True,
        ),
        Part("linear_attn.norm", "ssm_norm", "width", plain=True),
        Part("linear_attn.out_proj", "ssm_out", "d values"),
    ),
)  # fmt: skip
DELTA = only(
    "recurrent",
    (
        Part(
            "linear_attn.in_proj_qkv", "attn_qkv", f"{CHANNELS} d",
            change=turned(keys=True), becomes=f"{CHANNELS} d",
        ),
        Part("linear_attn.in_proj_z", "attn_gate", "values d", change=turned(), becomes="values d"),
        Part("linear_attn.in_proj_b", "ssm_beta", "value_heads d", change=turned(), becomes="value_heads d"),
        Part("linear_attn.in_proj_a", "ssm_alpha", "value_heads d", change=turned(), becomes="value_heads d"),
        Part(
            "linear_attn.conv1d", "ssm_conv1d", TAPS,
            change=turned(flat, keys=True), becomes=f"{CHANNELS} taps",
        ),
        Part(
            "linear_attn.dt_bias", "ssm_dt.bias", "value_heads",
            change=turned(), becomes="value_heads", bare=True,
        ),
        Part(
            "linear_attn.A_log", "ssm_a", "value_heads",
            change=turned(negative_exponential), becomes="value_heads", bare=True,
        ),
        Part("linear_attn.norm", "ssm_norm", "width", plain=True),
        Part("linear_attn.out_proj", "ssm_out", "d values", change=turned_columns, becomes="d values"),
    ),
)  # fmt: skip
DEFAULTS = (("partial_rotary_factor", 0.25), ("intermediate_size", 1))
QWEN3_NEXT = Decoder(
    "qwen3next",
    (*GATED_ATTENTION, *NEXT_DELTA, *DELTA_NORMS, *EXPERTS, *SHARED),
    delta_experts,
    norm_plus=1.0,
    defaults=DEFAULTS,
)
QWEN35 = Decoder(
    "qwen35",
    (*GATED_ATTENTION, *DELTA, *DELTA_NORMS, *FEED),
    partial(with_sections, delta),
    norm_plus=1.0,
    defaults=DEFAULTS,
)
QWEN35_MOE = Decoder(
    "qwen35moe",
    (*GATED_ATTENTION, *DELTA, *DELTA_NORMS, *EXPERTS, *SHARED),
    partial(with_sections, delta_experts),
    norm_plus=1.0,
    defaults=DEFAULTS,
)


# --- short convolutions -----------------------------------------------------------------------------


def lfm2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The width of dense blocks may have to be derived from the stated one."""
    key_heads(metadata, sizes, kinds_of(config, sizes, ("conv",)))
    sizes["taps"] = metadata["shortconv.l_cache"] = config.size("conv_L_cache")
    sizes["3d"] = 3 * sizes["d"]
    config.only("conv_bias", False)
    config.get("full_attn_idxs")  # layer_types say the same
    if config.flag("block_auto_adjust_ff_dim"):
        width = int(2 * sizes["ff"] / 3)
        multiple = config.size("block_multiple_of", 256)
        width = int(config.number("block_ffn_dim_multiplier", 1.0) * width)
        sizes["ff"] = metadata["feed_forward_length"] = -(-width // multiple) * multiple
    for key in ("block_multiple_of", "block_ffn_dim_multiplier"):
        config.get(key)
    return rotation(config, metadata, sizes["dim"], 1e6)


def lfm2_moe(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    counts(config, metadata, sizes, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    n = config.get("num_dense_layers", 2)
    dense_first(config, metadata, sizes, n if type(n) is int else -1)
    metadata["expert_gating_func"] = SIGMOID
    config.only("norm_topk_prob", True)
    config.only("routed_scaling_factor", 1, 1.0)
    config.only("use_expert_bias", True)
    return lfm2(config, metadata, sizes)


LFM2_LAYER = (
    *only(
        "attending",
        (
            *(Part(part.source, part.target, part.shape) for part in ATTENTION[:3]),
            Part("self_attn.out_proj", "attn_output", "d q"),
            Part("self_attn.q_layernorm", "attn_q_norm", "dim"),
            Part("self_attn.k_layernorm", "attn_k_norm", "dim"),
        ),
    ),
    *only(
        "recurrent",
        (
            Part("conv.in_proj", "shortconv.in_proj", "3d d"),
            Part("conv.conv", "shortconv.conv", "d one taps", change=flat, becomes="d taps"),
            Part("conv.out_proj", "shortconv.out_proj", "d d"),
        ),
    ),
    Part("operator_norm", "attn_norm", "d"),
    Part("ffn_norm", "ffn_norm", "d"),
)
LFM2_FEED = (
    Part("feed_forward.w1", "ffn_gate", "ff d"),
    Part("feed_forward.w3", "ffn_up", "ff d"),
    Part("feed_forward.w2", "ffn_down", "d ff"),
)
LFM2_EXPERTS = (
    Part("feed_forward.gate", "ffn_gate_inp", "experts d"),
    Part("feed_forward.experts.{e}.w1", "ffn_gate_exps", "expert_ff d"),
    Part("feed_forward.experts.{e}.w3", "ffn_up_exps", "expert_ff d"),
    Part("feed_forward.experts.{e}.w2", "ffn_down_exps", "d expert_ff"),
)
LAST = Part("embedding_norm", "token_embd_norm", "d")
LFM2 = Decoder("lfm2", (*LFM2_LAYER, *LFM2_FEED), lfm2, epsilon="norm_eps", tied=True, last_norm=LAST)
LFM2_MOE = Decoder(
    "lfm2moe",
    (
        *LFM2_LAYER,
        *only("dense", LFM2_FEED),
        *only("routed", LFM2_EXPERTS),
        correction("feed_forward.expert_bias"),
    ),
    lfm2_moe,
    epsilon="norm_eps",
    tied=True,
    last_norm=LAST,
)


# --- Mamba-2 ----------------------------------------------------------------------------------------


def half(which: int) -> Change:
    """The first or the second half of the rows."""

    def change(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        return np.split(values, 2)[which]

    return change


def granite_hybrid(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Granite 4: with experts and a shared one, or, in the small models, the shared one alone."""
    granite_scales(config, metadata)
    recurrent = kinds_of(config, sizes, ("mamba", "linear_attention"))
    key_heads(metadata, sizes, recurrent)
    heads, width = config.size("mamba_n_heads"), config.size("mamba_d_head")
    groups, state = config.size("mamba_n_groups", 1), config.size("mamba_d_state")
    sizes.update({"ssm_heads": heads, "inner": heads * width, "taps": config.size("mamba_d_conv", 4)})
    sizes.update({"groups": groups, "inner/groups": heads * width // groups})
    sizes["channels"] = sizes["inner"] + 2 * groups * state
    metadata.update(
        {
            "ssm.conv_kernel": sizes["taps"],
            "ssm.state_size": state,
            "ssm.group_count": groups,
            "ssm.time_step_rank": heads,
            "ssm.inner_size": sizes["inner"],
        }
    )
    config.only("mamba_conv_bias", True)
    config.only("mamba_proj_bias", False)
    for key in ("mamba_expand", "mamba_chunk_size", "time_step_limit", "time_step_min", "time_step_max",
                "time_step_floor", "normalization_function", "init_method"):  # fmt: skip
        config.get(key)  # the heads say it, or it changes nothing
    turns_ = config.get("position_embedding_type")
    config.only("position_embedding_type", "rope", "nope")
    metadata["rope.scaling.finetuned"] = turns_ == "rope"
    experts = config.get("num_local_experts", 0)
    if type(experts) is not int or experts < 0:
        raise LoadError(f"{config.name}: num_local_experts: expected an integer, got {experts!r:.60}")
    sizes["shared_ff"] = config.size("shared_intermediate_size")
    sizes.kinds["routed"] = [experts > 0] * sizes["layers"]
    sizes.kinds["dense"] = [experts == 0] * sizes["layers"]
    used = config.get("num_experts_per_tok")
    if experts:
        sizes["experts"] = metadata["expert_count"] = experts
        metadata["expert_used_count"] = Config({"num_experts_per_tok": used}).size("num_experts_per_tok")
        metadata["expert_shared_feed_forward_length"] = sizes["shared_ff"]
    else:
        metadata["feed_forward_length"] = sizes["shared_ff"]
    return rotation(config, metadata, sizes["dim"])


MAMBA2 = only(
    "recurrent",
    (
        Part("mamba.in_proj", "ssm_in", "inner+channels+ssm_heads d"),
        Part("mamba.conv1d", "ssm_conv1d", "channels one taps", change=flat, becomes="channels taps"),
        Part("mamba.conv1d.bias", "ssm_conv1d.bias", "channels", bare=True),
        Part("mamba.dt_bias", "ssm_dt.bias", "ssm_heads", bare=True),
        Part(
            "mamba.A_log", "ssm_a", "ssm_heads", bare=True, becomes="ssm_heads one",
            change=lambda values, sizes: -np.exp(values).reshape(-1, 1),
        ),
        Part("mamba.D", "ssm_d", "ssm_heads", bare=True, change=column, becomes="ssm_heads one"),
        Part(
            "mamba.norm", "ssm_norm", "inner", becomes="groups inner/groups",
            change=lambda values, sizes: values.reshape(sizes["groups"], -1),
        ),
        Part("mamba.out_proj", "ssm_out", "d inner"),
    ),
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
        *MAMBA2,
        *BEFORE,
        *only("routed", GRANITE_EXPERTS),
        *granite_block("routed", "_shexp"),
        *granite_block("dense", ""),
    ),
    granite_hybrid,
    reordered=True,
)

HYBRID_DECODERS: dict[str, tuple[str, Decoder]] = {
    "Qwen3NextForCausalLM": ("qwen3_next", QWEN3_NEXT),
    "Qwen3_5ForCausalLM": ("qwen3_5_text", QWEN35),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe_text", QWEN35_MOE),
    "Lfm2ForCausalLM": ("lfm2", LFM2),
    "Lfm2MoeForCausalLM": ("lfm2_moe", LFM2_MOE),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid", GRANITE_HYBRID),
}
