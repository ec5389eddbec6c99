"""Hybrids of attention with the delta rule (Qwen3-Next, Qwen 3.5) or short convolutions (LFM2)."""

from __future__ import annotations

import numpy as np

from oxillama.apps.convert import options, parts
from oxillama.apps.convert.config import Config
from oxillama.apps.convert.decoders import Decoder, Sizes, derive, register
from oxillama.apps.convert.rotation import Metadata
from oxillama.apps.convert.tables import Change, Part, table


def kinds_of(config: Config, sizes: Sizes, *recurrent: str) -> list[bool]:
    """Whether each layer is recurrent: whether ``layer_types`` has one of these words for it."""
    known = (*recurrent, "full_attention", "attention")
    kinds = config.words("layer_types", sizes["layers"], known)
    found = [kind in recurrent for kind in kinds]
    sizes.split(found, "recurrent", "attending")
    return found


def key_heads(metadata: Metadata, sizes: Sizes, recurrent: list[bool]) -> None:
    """Writes the number of key heads of each layer: recurrent layers have 0."""
    metadata["attention.head_count_kv"] = [0 if each else sizes["kv_heads"] for each in recurrent]


def write_state(metadata: Metadata, taps: int, width: int, groups: int, heads: int, inner: int) -> None:
    """Writes the sizes of recurrent layers."""
    names = ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
    metadata |= {f"ssm.{name}": n for name, n in zip(names, (taps, width, groups, heads, inner))}


# --- the delta rule ---------------------------------------------------------------------------------


def delta(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Sizes of the heads of recurrent layers. Each query of the other layers has a gate."""
    recurrent = kinds_of(config, sizes, "linear_attention")
    keys, values = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    width, taps = config.size("linear_key_head_dim"), config.size("linear_conv_kernel_dim")
    config.only("linear_value_head_dim", width)
    config.refuse_if(values % keys, "linear_num_value_heads", f"a multiple of {keys}", values)
    sizes.update({"key_heads": keys, "value_heads": values, "width": width, "taps": taps})
    sizes.update({"2q": 2 * sizes["q"], "keys": keys * width, "values": values * width})
    sizes["channels"] = 2 * sizes["keys"] + sizes["values"]
    write_state(metadata, taps, width, keys, values, values * width)
    n = next((i + 1 for i, each in enumerate(recurrent) if not each), 0)
    if n and recurrent == [(i + 1) % n > 0 for i in range(len(recurrent))]:
        metadata["full_attention_interval"] = n
    else:
        metadata["attention.recurrent_layers"] = recurrent


def of_key_heads(first: int, second: int) -> Change:
    """Some parts of a matrix that has, for each key head, [q | k | v | z], each of all heads."""

    def picked(values: np.ndarray, sizes: Sizes) -> np.ndarray:
        heads, width = sizes["key_heads"], sizes["width"]
        widths = [width, width, *2 * [sizes["values"] // heads]]
        parts = np.split(values.reshape(heads, sum(widths), -1), np.cumsum(widths)[:-1], axis=1)
        return np.concatenate([part.reshape(-1, values.shape[1]) for part in parts[first:second]])

    return picked


def turns(values: np.ndarray, sizes: Sizes, before: int = 0) -> np.ndarray:
    """Reorders the value heads in the rows after the first ``before`` ones.

    The heads of a key head are neighbours in the source; in GGUF the key heads take turns.
    """
    heads, groups = sizes["value_heads"], sizes["key_heads"]
    fixed, moved = values[:before], values[before:]
    by_head = moved.reshape(groups, heads // groups, -1, *values.shape[1:])
    return np.concatenate([fixed, by_head.swapaxes(0, 1).reshape(moved.shape)])


def turned_channels(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """`turns` of the rows of v, which follow the rows of q and k."""
    return turns(values, sizes, 2 * sizes["keys"])


# fmt: off
GATED_ATTENTION = parts.only("attending", (
    Part("self_attn.q_proj", "attn_q", "2q d"), *parts.PLAIN_ATTENTION[1:], *parts.HEAD_NORMS,
))
NEXT_DELTA = table("""
  [recurrent]
    linear_attn.in_proj_qkvz attn_qkv    channels+values d -> channels d qkv
    linear_attn.in_proj_qkvz attn_gate   channels+values d -> values d z
    linear_attn.in_proj_ba   ssm_ba      value_heads+value_heads d
    linear_attn.conv1d       ssm_conv1d  channels one taps -> channels taps flat
    linear_attn.dt_bias      ssm_dt.bias value_heads / bare
    linear_attn.A_log        ssm_a       value_heads -> value_heads decay / bare
    linear_attn.norm         ssm_norm    width / plain
    linear_attn.out_proj     ssm_out     d values
""", qkv=of_key_heads(0, 3), z=of_key_heads(3, 4), flat=parts.flat, decay=parts.decay)
DELTA = table("""
  [recurrent]
    linear_attn.in_proj_qkv attn_qkv    channels d -> channels d channels
    linear_attn.in_proj_z   attn_gate   values d -> values d turns
    linear_attn.in_proj_b   ssm_beta    value_heads d -> value_heads d turns
    linear_attn.in_proj_a   ssm_alpha   value_heads d -> value_heads d turns
    linear_attn.conv1d      ssm_conv1d  channels one taps -> channels taps taps
    linear_attn.dt_bias     ssm_dt.bias value_heads -> value_heads turns / bare
    linear_attn.A_log       ssm_a       value_heads -> value_heads decay / bare
    linear_attn.norm        ssm_norm    width / plain
    linear_attn.out_proj    ssm_out     d values -> d values columns
""",
    channels=turned_channels, turns=turns,
    taps=lambda values, sizes: turned_channels(parts.flat(values, sizes), sizes),
    decay=lambda values, sizes: turns(parts.decay(values, sizes), sizes),
    columns=lambda values, sizes: np.ascontiguousarray(turns(values.T, sizes).T),
)
QWEN3_NEXT = register(Decoder(
    "Qwen3NextForCausalLM qwen3_next", "qwen3next",
    (*GATED_ATTENTION, *NEXT_DELTA, *parts.norms("qwen3next"), *parts.EXPERTS, *parts.GATED_SHARED),
    (options.shared_expert, options.counts(), delta), partial=True, norm_plus=1.0,
    fixed={**options.IN_EVERY_LAYER, "norm_topk_prob": True, "attn_output_gate": True},
    unread="full_attention_interval",  # layer_types has the same information
    defaults={"partial_rotary_factor": 0.25, "intermediate_size": 1},
    left_out=("mtp.", *parts.SIGHT), renamed=parts.TEXT_IN_TOWERS,
))
QWEN35_MOE = derive(
    QWEN3_NEXT, "Qwen3_5MoeForCausalLM qwen3_5_moe_text", "qwen35moe",
    rotates=options.with_sections(partial=True),
    parts=(*GATED_ATTENTION, *DELTA, *parts.norms("qwen35moe"), *parts.EXPERTS, *parts.GATED_SHARED),
)
derive(
    QWEN35_MOE, "Qwen3_5ForCausalLM qwen3_5_text", "qwen35", steps=(delta,), fixed={"attn_output_gate": True},
    parts=(*GATED_ATTENTION, *DELTA, *parts.norms("qwen35"), *parts.FEED),
)
# fmt: on


# --- short convolutions -----------------------------------------------------------------------------


def lfm2(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The width of dense blocks may follow from the stated one."""
    key_heads(metadata, sizes, kinds_of(config, sizes, "conv"))
    options.reads("conv_L_cache shortconv.l_cache taps")(config, metadata, sizes)
    if config.flag("block_auto_adjust_ff_dim"):
        width = int(2 * sizes["ff"] / 3)
        multiple = config.size("block_multiple_of", 256)
        width = int(config.number("block_ffn_dim_multiplier", 1.0) * width)
        sizes["ff"] = metadata["feed_forward_length"] = -(-width // multiple) * multiple


# fmt: off
LFM2_LAYER = (
    *table("""
      [attending]
        self_attn.q_proj      attn_q      q d
        self_attn.k_proj      attn_k      k d
        self_attn.v_proj      attn_v      v d
        self_attn.out_proj    attn_output d q
        self_attn.q_layernorm attn_q_norm dim
        self_attn.k_layernorm attn_k_norm dim
      [recurrent]
        conv.in_proj  shortconv.in_proj  d+d+d d
        conv.conv     shortconv.conv     d one taps -> d taps flat
        conv.out_proj shortconv.out_proj d d
    """, flat=parts.flat),
    *parts.norms("lfm2", "operator_norm ffn_norm"),
)
LFM2_FEED = parts.gated("feed_forward.{}", names="w1 w3 w2")
LFM2 = register(Decoder(
    "Lfm2ForCausalLM lfm2", "lfm2", (*LFM2_LAYER, *LFM2_FEED), (lfm2,), base=1e6,
    fixed={"conv_bias": False}, unread="full_attn_idxs block_multiple_of block_ffn_dim_multiplier",
    epsilon="norm_eps", tied=True, last=table("embedding_norm token_embd_norm d"),
))
derive(
    LFM2, "Lfm2MoeForCausalLM lfm2_moe", "lfm2moe",
    parts=(
        *LFM2_LAYER, *parts.only("dense", LFM2_FEED),
        *parts.only("routed", (
            Part("feed_forward.gate", "ffn_gate_inp", "experts d"),
            *parts.gated("feed_forward.experts.{{e}}.{}", "_exps", "expert_ff", "w1 w3 w2"),
        )),
        parts.correction("feed_forward.expert_bias"),
    ),
    steps=(options.counts(), options.dense_first("num_dense_layers", 2), options.sigmoid, lfm2),
    fixed={"conv_bias": False, "norm_topk_prob": True, "routed_scaling_factor": 1, "use_expert_bias": True},
)
