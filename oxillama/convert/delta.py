"""Hybrids of attention and the delta rule: Qwen3-Next and Qwen 3.5."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.decoders import Change, Decoder, Part, Sizes
from oxillama.convert.experts import GLM_BEFORE
from oxillama.convert.hybrids import flat, kinds_of, negative_exponential
from oxillama.convert.options import counts, in_every_layer, shared_expert, with_sections
from oxillama.convert.parts import (
    ATTENTION,
    EXPERTS,
    FEED,
    HEAD_NORMS,
    SHARED,
    SIGHT,
    TEXT_IN_TOWERS,
    biased,
    only,
)
from oxillama.convert.rotation import Metadata, Tensors, rotation
from oxillama.errors import LoadError


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
    config.ignore("full_attention_interval")  # layer_types say the same
    return rotation(config, metadata, sizes["dim"], partial=True)


def delta_experts(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """The same with experts in every layer."""
    shared_expert(config, metadata, sizes)
    counts(config, metadata, sizes)
    config.only("norm_topk_prob", True)
    in_every_layer(config)
    return delta(config, metadata, sizes)


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
        *biased(ATTENTION[1:], ""),
        *HEAD_NORMS,
    ),
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
QWEN3_NEXT = Decoder(
    "qwen3next",
    (*GATED_ATTENTION, *NEXT_DELTA, *GLM_BEFORE, *EXPERTS, *SHARED),
    delta_experts,
    norm_plus=1.0,
    defaults=(("partial_rotary_factor", 0.25), ("intermediate_size", 1)),
    left_out=("mtp.", *SIGHT),  # MTP layers, and the image tower
    renamed=TEXT_IN_TOWERS,
)
QWEN35 = replace(
    QWEN3_NEXT,
    architecture="qwen35",
    parts=(*GATED_ATTENTION, *DELTA, *GLM_BEFORE, *FEED),
    options=partial(with_sections, delta),
)
QWEN35_MOE = replace(
    QWEN3_NEXT,
    architecture="qwen35moe",
    parts=(*GATED_ATTENTION, *DELTA, *GLM_BEFORE, *EXPERTS, *SHARED),
    options=partial(with_sections, delta_experts),
)

DELTA_DECODERS: dict[str, tuple[str, Decoder]] = {
    "Qwen3NextForCausalLM": ("qwen3_next", QWEN3_NEXT),
    "Qwen3_5ForCausalLM": ("qwen3_5_text", QWEN35),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe_text", QWEN35_MOE),
}
