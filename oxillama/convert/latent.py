"""DeepSeek 2 to 3.2 and GLM 5: latent attention, its keys' and values' matrices apart, and selectors."""

from __future__ import annotations

import numpy as np

from oxillama.convert.config import Config
from oxillama.convert.decoders import Decoder, Part, Sizes
from oxillama.convert.experts import (
    DENSE_THEN_EXPERTS,
    SHARED,
    STACKED,
    correction,
    deepseek_experts,
    dense_then_experts,
    weights_of_experts,
)
from oxillama.convert.options import sharpened
from oxillama.convert.parts import BEFORE, FEED, TEXT_IN_TOWERS, TOWERS, only
from oxillama.convert.rotation import Metadata, Tensors, rotation
from oxillama.errors import LoadError

SOFTMAX = 1
"""GGUF's number for weights of experts that are a softmax."""


def latent(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Sizes of heads and of the compressed vectors; YaRN's magnitude goes into the scores."""
    nope, turned = config.size("qk_nope_head_dim"), config.size("qk_rope_head_dim")
    value, rank = config.size("v_head_dim"), config.size("kv_lora_rank")
    q_rank = config.size("q_lora_rank") if config.has("q_lora_rank") else 0
    heads, n = sizes["heads"], sizes["layers"]
    config.require(qk_head_dim=nope + turned, rope_interleave=True, attention_bias=False)
    sizes.update({"q": heads * (nope + turned), "values": heads * value, "nope": nope, "value": value})
    sizes.update({"q_rank": q_rank, "rank": rank, "turned": turned, "keys": heads * nope})
    sizes.kinds["compressed"], sizes.kinds["direct"] = [q_rank > 0] * n, [q_rank == 0] * n
    metadata["attention.head_count_kv"] = 1
    metadata["attention.kv_lora_rank"] = rank
    if q_rank:
        metadata["attention.q_lora_rank"] = q_rank
    metadata["attention.key_length"], metadata["attention.value_length"] = rank + turned, rank
    metadata["attention.key_length_mla"], metadata["attention.value_length_mla"] = nope + turned, value
    made = rotation(config, metadata, turned)
    if metadata.get("rope.scaling.type") == "yarn":
        scales = config.table("rope_scaling").values | config.table("rope_parameters").values
        gain = scales.get("mscale_all_dim") or 0.0
        if (
            not isinstance(gain, (int, float))
            or scales.get("mscale", gain) != gain
            or "attention_factor" in scales
        ):
            raise LoadError(
                f"{config.name}: rope_scaling: expected mscale equal to mscale_all_dim, got {scales!r:.90}"
            )
        if gain:
            metadata["rope.scaling.attn_factor"] = 1.0
            metadata["rope.scaling.yarn_log_multiplier"] = 0.1 * gain
    return made


def deepseek2(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Softmax, and the best experts of all."""
    dense_then_experts(config, metadata, sizes, SOFTMAX)
    metadata["expert_weights_norm"] = config.flag("norm_topk_prob")
    metadata["expert_weights_scale"] = config.number("routed_scaling_factor", 1.0)
    config.require(topk_method="greedy", n_group=1, topk_group=1)
    config.ignore("aux_loss_alpha", "seq_aux", "ep_size", "scoring_func", "moe_layer_freq")  # of training
    config.require(scoring_func="softmax", moe_layer_freq=1)
    return latent(config, metadata, sizes)


def deepseek3(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    deepseek_experts(config, metadata, sizes)
    config.ignore("ep_size")
    return latent(config, metadata, sizes)


def mistral4(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Softmax, experts chosen from groups, and queries that grow with the logarithm of the position."""
    dense_then_experts(config, metadata, sizes, SOFTMAX)
    weights_of_experts(config, metadata)
    sharpened(config, metadata)
    turned = config.size("qk_rope_head_dim")
    share = turned / (turned + config.size("qk_nope_head_dim"))
    for key in ("rope_parameters", "rope_scaling"):
        config.table(key).only("partial_rotary_factor", share)
        config.table(key).values.pop("partial_rotary_factor", None)
    return latent(config, metadata, sizes)


def with_selectors(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Selectors of positions, which some layers of GLM share with an earlier one."""
    metadata["attention.indexer.head_count"] = config.size("index_n_heads")
    metadata["attention.indexer.key_length"] = sizes["selector"] = config.size("index_head_dim")
    metadata["attention.indexer.top_k"] = config.size("index_topk")
    sizes["selector_heads"] = metadata["attention.indexer.head_count"]
    sizes["selector_queries"] = sizes["selector"] * sizes["selector_heads"]
    n, kinds = sizes["layers"], config.get("indexer_types")
    kinds = ["full"] * n if kinds is None else kinds
    if (
        not isinstance(kinds, list)
        or len(kinds) != n
        or any(kind not in ("full", "shared") for kind in kinds)
    ):
        raise LoadError(
            f"{config.name}: indexer_types: expected full or shared for {n} layers, got {kinds!r:.80}"
        )
    sizes.kinds["selecting"] = [kind == "full" for kind in kinds]
    config.only("layer_types", ["indexed_attention"] * n, ["full_attention"] * n)
    if config.has("indexer_types"):
        metadata["attention.indexer.types"] = sizes.kinds["selecting"]
    return deepseek3(config, metadata, sizes)


def keys_of(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """(heads, rank, nope): what makes the keys of each head, transposed, of [keys | values] of each head."""
    by_head = values.reshape(sizes["heads"], -1, values.shape[1])
    return np.ascontiguousarray(by_head[:, : sizes["nope"]].swapaxes(1, 2))


def values_of(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """(heads, value, rank)."""
    return values.reshape(sizes["heads"], -1, values.shape[1])[:, sizes["nope"] :]


COMPRESSED_QUERIES = (
    Part("self_attn.q_a_proj", "attn_q_a", "q_rank d"),
    Part("self_attn.q_a_layernorm", "attn_q_a_norm", "q_rank"),
    Part("self_attn.q_b_proj", "attn_q_b", "q q_rank"),
)
LATENT_KEYS = (
    Part("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", "rank+turned d"),
    Part("self_attn.kv_a_layernorm", "attn_kv_a_norm", "rank"),
    Part("self_attn.kv_b_proj", "attn_k_b", "keys+values rank", change=keys_of, becomes="heads rank nope"),
    Part("self_attn.kv_b_proj", "attn_v_b", "keys+values rank", change=values_of, becomes="heads value rank"),
    Part("self_attn.o_proj", "attn_output", "d values"),
)
QUERIES = Part("self_attn.q_proj", "attn_q", "q d")
LATENT = (*only("compressed", COMPRESSED_QUERIES), *only("direct", (QUERIES,)), *LATENT_KEYS)
SELECTOR = only(
    "selecting",
    (
        Part("self_attn.indexer.wq_b", "indexer.attn_q_b", "selector_queries q_rank"),
        Part("self_attn.indexer.wk", "indexer.attn_k", "selector d"),
        Part("self_attn.indexer.weights_proj", "indexer.proj", "selector_heads d"),
        Part("self_attn.indexer.k_norm", "indexer.k_norm", "selector"),
        Part("self_attn.indexer.k_norm.bias", "indexer.k_norm.bias", "selector", bare=True),
    ),
)
CORRECTION = correction("mlp.gate.e_score_correction_bias")
DRAFTS = "num_nextn_predict_layers"
DEEPSEEK2 = Decoder("deepseek2", (*LATENT, *BEFORE, *DENSE_THEN_EXPERTS), deepseek2)
DEEPSEEK3 = Decoder(
    "deepseek2", (*LATENT, *BEFORE, *DENSE_THEN_EXPERTS, CORRECTION), deepseek3, drafts=DRAFTS
)
DEEPSEEK32 = Decoder(
    "deepseek32",
    (*LATENT, *SELECTOR, *BEFORE, *DENSE_THEN_EXPERTS, CORRECTION),
    with_selectors,
    drafts=DRAFTS,
)
GLM_DSA = Decoder("glm-dsa", DEEPSEEK32.parts, with_selectors, drafts=DRAFTS)

MISTRAL4 = Decoder(
    "mistral4",
    (
        *LATENT,
        *BEFORE,
        *only("dense", FEED),
        Part("mlp.gate", "ffn_gate_inp", "experts d", only="routed"),
        *only("routed", STACKED),
        *only("shared", SHARED),
    ),
    mistral4,
    left_out=TOWERS,
    renamed=TEXT_IN_TOWERS,
)

LATENT_DECODERS: dict[str, tuple[str, Decoder]] = {
    "DeepseekV2ForCausalLM": ("deepseek_v2", DEEPSEEK2),
    "DeepseekV3ForCausalLM": ("deepseek_v3", DEEPSEEK3),
    "DeepseekV32ForCausalLM": ("deepseek_v32", DEEPSEEK32),
    "Mistral4ForCausalLM": ("mistral4", MISTRAL4),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa", GLM_DSA),
}
