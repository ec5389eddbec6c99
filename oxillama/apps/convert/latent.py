"""Latent attention: DeepSeek 2 to 3.2, GLM 5, Mistral 4, and Kimi Linear, a hybrid with the delta rule."""

from __future__ import annotations

import numpy as np

from oxillama.apps.convert import options, parts
from oxillama.apps.convert.config import Config
from oxillama.apps.convert.decoders import Decoder, Sizes, derive, register
from oxillama.apps.convert.hybrids import kinds_of
from oxillama.apps.convert.rotation import Metadata, Tensors, refuse_unread, rotation
from oxillama.apps.convert.tables import Part, table
from oxillama.errors import LoadError


def latent(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Sizes of heads and of the compressed vectors; the magnitude of YaRN scales the scores."""
    nope, turned = config.size("qk_nope_head_dim"), config.size("qk_rope_head_dim")
    value, rank = config.size("v_head_dim"), config.size("kv_lora_rank")
    q_rank = config.size("q_lora_rank") if config.has("q_lora_rank") else 0
    heads = sizes["heads"]
    config.require(qk_head_dim=nope + turned, rope_interleave=True, attention_bias=False)
    sizes.update({"q": heads * (nope + turned), "values": heads * value, "nope": nope, "value": value})
    sizes.update({"q_rank": q_rank, "rank": rank, "turned": turned, "keys": heads * nope})
    sizes.split(q_rank > 0, "compressed", "direct")
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
        sound = isinstance(gain, (int, float)) and scales.get("mscale", gain) == gain
        wrong = not sound or "attention_factor" in scales
        config.refuse_if(wrong, "rope_scaling", "mscale equal to mscale_all_dim", scales)
        if gain:
            metadata["rope.scaling.attn_factor"] = 1.0
            metadata["rope.scaling.yarn_log_multiplier"] = 0.1 * gain
    return made


def mistral4(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The share of a head that rotates has two keys."""
    turned = config.size("qk_rope_head_dim")
    share = turned / (turned + config.size("qk_nope_head_dim"))
    for key in ("rope_parameters", "rope_scaling"):
        config.table(key).only("partial_rotary_factor", share)
        config.table(key).values.pop("partial_rotary_factor", None)


def selectors(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Selectors of positions; some layers of GLM have none and use an earlier layer's."""
    sizes["selector_queries"] = sizes["selector"] * sizes["selector_heads"]
    n = sizes["layers"]
    expected = f"full or shared for {n} layers"
    kinds = config.listed("indexer_types", n, lambda kind: kind in ("full", "shared"), expected, ["full"] * n)
    sizes.split([kind == "full" for kind in kinds], "selecting")
    config.only("layer_types", ["indexed_attention"] * n, ["full_attention"] * n)
    if config.has("indexer_types"):
        metadata["attention.indexer.types"] = sizes.kinds["selecting"]


def keys_of(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """(heads, rank, nope): the transposed rows of the keys, of rows [keys | values] of each head."""
    by_head = values.reshape(sizes["heads"], -1, values.shape[1])
    return np.ascontiguousarray(by_head[:, : sizes["nope"]].swapaxes(1, 2))


def values_of(values: np.ndarray, sizes: Sizes) -> np.ndarray:
    """(heads, value, rank): the rows of the values, of rows [keys | values] of each head."""
    return values.reshape(sizes["heads"], -1, values.shape[1])[:, sizes["nope"] :]


# fmt: off
QUERIES = Part("self_attn.q_proj", "attn_q", "q d")
LATENT_KEYS = table("""
    self_attn.kv_a_proj_with_mqa attn_kv_a_mqa  rank+turned d
    self_attn.kv_a_layernorm     attn_kv_a_norm rank
    self_attn.kv_b_proj          attn_k_b       keys+values rank -> heads rank nope keys
    self_attn.kv_b_proj          attn_v_b       keys+values rank -> heads value rank values
    self_attn.o_proj             attn_output    d values
""", keys=keys_of, values=values_of)
LATENT = (
    *table("""
      [compressed]
        self_attn.q_a_proj      attn_q_a      q_rank d
        self_attn.q_a_layernorm attn_q_a_norm q_rank
        self_attn.q_b_proj      attn_q_b      q q_rank
    """),
    *parts.only("direct", (QUERIES,)), *LATENT_KEYS,
)
SELECTOR = table("""
  [selecting]
    self_attn.indexer.wq_b         indexer.attn_q_b    selector_queries q_rank
    self_attn.indexer.wk           indexer.attn_k      selector d
    self_attn.indexer.weights_proj indexer.proj        selector_heads d
    self_attn.indexer.k_norm       indexer.k_norm      selector
    self_attn.indexer.k_norm.bias  indexer.k_norm.bias selector / bare
""")
BLOCKS = (*parts.norms("deepseek2"), *parts.DENSE_THEN_EXPERTS)
CORRECTION = parts.correction("mlp.gate.e_score_correction_bias")
DEEPSEEK2 = register(Decoder(
    "DeepseekV2ForCausalLM deepseek_v2", "deepseek2", (*LATENT, *BLOCKS),
    (
        *options.deepseek_counts(options.softmax), options.normed_weights,
        options.reads("routed_scaling_factor=1.0 expert_weights_scale"),
    ),
    rotates=latent, unread="aux_loss_alpha seq_aux ep_size",  # keys of training
    fixed={
        "topk_method": "greedy", "n_group": 1, "topk_group": 1, "scoring_func": "softmax",
        "moe_layer_freq": 1,
    },
))
DEEPSEEK3 = derive(
    DEEPSEEK2, "DeepseekV3ForCausalLM deepseek_v3", parts=(*LATENT, *BLOCKS, CORRECTION),
    steps=options.DEEPSEEK_EXPERTS, fixed=options.DEEPSEEK_FIXED, unread="ep_size", drafts=True,
)
DEEPSEEK32 = derive(
    DEEPSEEK3, "DeepseekV32ForCausalLM deepseek_v32", "deepseek32",
    parts=(*LATENT, *SELECTOR, *BLOCKS, CORRECTION),
    steps=(
        options.reads("""
            index_n_heads attention.indexer.head_count selector_heads
            index_head_dim attention.indexer.key_length selector
            index_topk attention.indexer.top_k
        """),
        selectors, *options.DEEPSEEK_EXPERTS,
    ),
)
derive(DEEPSEEK32, "GlmMoeDsaForCausalLM glm_moe_dsa", "glm-dsa")
derive(
    DEEPSEEK2, "Mistral4ForCausalLM mistral4", "mistral4",
    parts=(
        *LATENT, *parts.norms("mistral4"), *parts.only("dense", parts.FEED),
        *parts.only("routed", (parts.DENSE_THEN_EXPERTS[3], *parts.STACKED)),
        *parts.only("shared", parts.SHARED),
    ),
    steps=(
        *options.deepseek_counts(options.softmax), options.expert_weights, options.growing_queries, mistral4,
    ),
    fixed={}, unread="",
    left_out=parts.TOWERS, renamed=parts.TEXT_IN_TOWERS,
)
# fmt: on


# --- Kimi Linear: latent attention without rotation, and the delta rule with a decay for each channel


def kimi_keys(config: Config) -> None:
    """Gives keys, also the keys of ``linear_attn_config``, the names that other families have."""
    inner = config.table("linear_attn_config")
    for table_, text in (
        (config, "model_max_length max_position_embeddings num_experts_per_token num_experts_per_tok"),
        (config, "num_expert_group n_group moe_renormalize norm_topk_prob"),
        (inner, "head_dim linear_head_dim num_heads linear_num_heads"),
        (inner, "short_conv_kernel_size linear_conv_kernel_dim"),
    ):
        names = text.split()
        for there, here in zip(names[::2], names[1::2]):
            if table_.has(there):
                config.values[here] = table_.get(there)
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
    refuse_unread(inner)


def kimi_linear(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    heads = sizes["heads"]
    config.require(linear_num_heads=heads, num_key_value_heads=heads)
    recurrent = kinds_of(config, sizes, "linear_attention")
    made = latent(config, metadata, sizes)
    metadata["attention.head_count_kv"] = [0 if each else 1 for each in recurrent]
    metadata["kda.head_dim"] = sizes["width"] = config.size("linear_head_dim", 128)
    metadata["ssm.conv_kernel"] = sizes["taps"] = config.size("linear_conv_kernel_dim", 4)
    sizes["inner"] = heads * sizes["width"]
    return made


# fmt: off
KDA = table("""
  [recurrent]
    self_attn.q_proj   attn_q       inner d
    self_attn.k_proj   attn_k       inner d
    self_attn.v_proj   attn_v       inner d
    self_attn.q_conv1d ssm_conv1d_q inner one taps
    self_attn.k_conv1d ssm_conv1d_k inner one taps
    self_attn.v_conv1d ssm_conv1d_v inner one taps
    self_attn.f_a_proj ssm_f_a      width d
    self_attn.f_b_proj ssm_f_b      inner width
    self_attn.dt_bias  ssm_dt.bias  inner / bare
    self_attn.A_log    ssm_a        one one heads one -> heads one rates / bare
    self_attn.b_proj   ssm_beta     heads d
    self_attn.g_a_proj ssm_g_a      width d
    self_attn.g_b_proj ssm_g_b      inner width
    self_attn.o_norm   ssm_norm     width
    self_attn.o_proj   attn_output  d inner
""", rates=lambda values, sizes: parts.column(parts.decay(values, sizes), sizes))
BLOCK = "block_sparse_moe"
register(Decoder(
    "KimiLinearForCausalLM kimi_linear", "kimi-linear",
    (
        *KDA, *parts.only("attending", (QUERIES, *LATENT_KEYS)), *parts.norms("kimi-linear"),
        *parts.only("dense", parts.gated(f"{BLOCK}.{{}}_proj")),
        Part(f"{BLOCK}.gate", "ffn_gate_inp", "experts d", only="routed"),
        *parts.only("routed", parts.gated(
            "block_sparse_moe.experts.{{e}}.{}", "_exps", "expert_ff", "w1 w3 w2"
        )),
        *parts.only("shared", parts.gated(f"{BLOCK}.shared_experts.{{}}_proj", "_shexp", "shared_ff")),
        parts.correction(f"{BLOCK}.gate.e_score_correction_bias"),
    ),
    (
        options.counts(), options.dense_first("first_k_dense_replace", 1), options.stated_kinds,
        options.shared_experts("num_shared_experts"),
        options.sigmoid,
        options.reads("routed_scaling_factor=1.0 expert_weights_scale"),
    ),
    rotates=kimi_linear, prepare=kimi_keys,
    fixed={
        "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "moe_router_activation_func": "sigmoid",
        "moe_layer_freq": 1, "mla_use_nope": True, "num_nextn_predict_layers": 0, "rope_scaling": None,
        "q_lora_rank": None,
    },
    unread="use_grouped_topk rope_theta",  # all experts are one group, and no layer rotates
))
