"""Kimi Linear: latent attention without rotation, and the delta rule with a decay for each channel."""

from __future__ import annotations

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.decoders import Decoder, Part, Sizes
from oxillama.convert.experts import SIGMOID, correction, dense_first, shared, stated_kinds
from oxillama.convert.hybrids import kinds_of, negative_exponential
from oxillama.convert.latent import LATENT_KEYS, QUERIES, latent
from oxillama.convert.options import counts
from oxillama.convert.parts import BEFORE, gated, only
from oxillama.convert.rotation import Metadata, Tensors, refuse_unread
from oxillama.errors import LoadError

USUAL_NAMES = {
    "model_max_length": "max_position_embeddings",
    "num_experts_per_token": "num_experts_per_tok",
    "num_expert_group": "n_group",
    "moe_renormalize": "norm_topk_prob",
}


def usual_keys(config: Config) -> None:
    """Puts keys by the names that other families have, and what ``linear_attn_config`` holds beside them."""
    for there, here in USUAL_NAMES.items():
        if config.has(there):
            config.values[here] = config.values[there]
    inner = config.table("linear_attn_config")
    n = config.size("num_hidden_layers")
    if inner.has("full_attn_layers"):
        full, recurrent = inner.get("full_attn_layers"), inner.get("kda_layers", [])
        sound = isinstance(full, list) and isinstance(recurrent, list) and len(full) + len(recurrent) == n
        if not sound or sorted([*full, *recurrent], key=str) != sorted(range(1, n + 1), key=str):
            raise LoadError(
                f"{inner.name}: full_attn_layers and kda_layers: expected each of 1 to {n} once, got "
                f"{full!r:.60} and {recurrent!r:.60}"
            )
        kinds = ["full_attention" if i + 1 in full else "linear_attention" for i in range(n)]
        config.values.setdefault("layer_types", kinds)
    for there, here in (
        ("head_dim", "linear_head_dim"),
        ("num_heads", "linear_num_heads"),
        ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    ):
        if inner.has(there):
            config.values[here] = inner.get(there)
    refuse_unread(inner)


def kimi_linear(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    heads = sizes["heads"]
    counts(config, metadata, sizes)
    dense_first(config, metadata, sizes, config.size("first_k_dense_replace", 1, least=0))
    stated_kinds(config, sizes)
    shared(config, metadata, sizes, "num_shared_experts")
    metadata["expert_gating_func"] = SIGMOID
    metadata["expert_weights_scale"] = config.number("routed_scaling_factor", 1.0)
    config.require(norm_topk_prob=True, n_group=1, topk_group=1, moe_router_activation_func="sigmoid")
    config.require(moe_layer_freq=1, mla_use_nope=True, num_nextn_predict_layers=0, linear_num_heads=heads)
    config.require(num_key_value_heads=heads)
    config.ignore("use_grouped_topk", "rope_theta")  # of one group, and of no layer
    config.only("rope_scaling")
    recurrent = kinds_of(config, sizes, ("linear_attention",))
    made = latent(config, metadata, sizes)
    if sizes["q_rank"]:
        raise LoadError(f"{config.name}: q_lora_rank: {sizes['q_rank']} is not supported")
    metadata["attention.head_count_kv"] = [0 if each else 1 for each in recurrent]
    metadata["kda.head_dim"] = sizes["width"] = config.size("linear_head_dim", 128)
    metadata["ssm.conv_kernel"] = sizes["taps"] = config.size("linear_conv_kernel_dim", 4)
    sizes["inner"] = heads * sizes["width"]
    return made


def rates(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Of decay, a column with one for each head."""
    return negative_exponential(values, sizes).reshape(-1, 1)


KDA = (
    *(Part(f"self_attn.{x}_proj", f"attn_{x}", "inner d") for x in "qkv"),
    *(Part(f"self_attn.{x}_conv1d", f"ssm_conv1d_{x}", "inner one taps") for x in "qkv"),
    Part("self_attn.f_a_proj", "ssm_f_a", "width d"),
    Part("self_attn.f_b_proj", "ssm_f_b", "inner width"),
    Part("self_attn.dt_bias", "ssm_dt.bias", "inner", bare=True),
    Part("self_attn.A_log", "ssm_a", "one one heads one", bare=True, change=rates, becomes="heads one"),
    Part("self_attn.b_proj", "ssm_beta", "heads d"),
    Part("self_attn.g_a_proj", "ssm_g_a", "width d"),
    Part("self_attn.g_b_proj", "ssm_g_b", "inner width"),
    Part("self_attn.o_norm", "ssm_norm", "width"),
    Part("self_attn.o_proj", "attn_output", "d inner"),
)
KIMI_LINEAR = Decoder(
    "kimi-linear",
    (
        *only("recurrent", KDA),
        *only("attending", (QUERIES, *LATENT_KEYS)),
        *BEFORE,
        *only("dense", gated("block_sparse_moe.{}_proj")),
        Part("block_sparse_moe.gate", "ffn_gate_inp", "experts d", only="routed"),
        *only("routed", gated("block_sparse_moe.experts.{{e}}.{}", "_exps", "expert_ff", "w1 w3 w2")),
        *only("shared", gated("block_sparse_moe.shared_experts.{}_proj", "_shexp", "shared_ff")),
        correction("block_sparse_moe.gate.e_score_correction_bias"),
    ),
    kimi_linear,
    copies_tied=True,
    prepare=usual_keys,
)
