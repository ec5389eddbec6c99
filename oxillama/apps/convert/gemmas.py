"""The Gemma family; from Gemma 3n on, layers have embeddings of their own, and the last ones share keys."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from oxillama.apps.convert import options, parts
from oxillama.apps.convert.config import Config
from oxillama.apps.convert.decoders import LAST, Decoder, Sizes, derive, register
from oxillama.apps.convert.rotation import Metadata, Tensors, refuse_unread, rotation_of
from oxillama.apps.convert.tables import Part, table
from oxillama.errors import LoadError

TANH = {"hidden_activation": "gelu_pytorch_tanh"}


# --- Gemma 1 to 3 -----------------------------------------------------------------------------------


def score_scales(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The factors and soft caps of scores and logits in Gemma 2 and 3."""
    asked = config.number("query_pre_attn_scalar")
    if asked != sizes["dim"]:
        metadata["attention.scale"] = asked**-0.5
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        metadata[key] = config.number(key) if config.has(key) else 0.0


def second_windows(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    options.windows(config, metadata, options.every(2, sizes))


def gemma3(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Layers with windows have a base of their own and no scaling."""
    if metadata.pop("attn_logit_softcapping"):
        raise LoadError("config.json: attn_logit_softcapping: is not supported of Gemma 3")
    period = config.size("sliding_window_pattern", 6)
    options.windows(config, metadata, options.every(period, sizes), stated=period != 6)
    local = config.number("rope_local_base_freq", 10000.0)
    return options.two_rotations(config, metadata, sizes["dim"], 1e6, local)


def both_ways(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Attention in both directions, with windows centred on a token."""
    if not config.flag("use_bidirectional_attention"):
        raise LoadError(f"{config.name}: use_bidirectional_attention: expected true of an encoder, got false")


# fmt: off
GEMMA = register(Decoder(  # early configs say "gelu" and mean its approximation by tanh
    "GemmaForCausalLM gemma", "gemma", parts.layer("gemma"), fixed=TANH, norm_plus=1.0, tied=True,
    activations=("gelu", "gelu_pytorch_tanh"), defaults={"head_dim": 256, "rms_norm_eps": 1e-6},
))
GEMMA2 = derive(
    GEMMA, "Gemma2ForCausalLM gemma2", "gemma2", parts=parts.layer("gemma2"),
    steps=(score_scales, second_windows), activations=(),
    defaults={
        **GEMMA.defaults, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
)
GEMMA3 = derive(
    GEMMA2, "Gemma3ForCausalLM gemma3_text", "gemma3", parts=parts.layer("gemma3"),
    steps=(score_scales,), rotates=gemma3, left_out=parts.TOWERS, renamed=parts.TEXT_IN_TOWERS,
    defaults={
        **GEMMA.defaults, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "max_position_embeddings": 131072, "num_attention_heads": 8, "num_key_value_heads": 4,
    },
)
derive(
    GEMMA3, "Gemma3TextModel gemma3_text", "gemma-embedding",
    steps=(both_ways, score_scales), inside="", left_out=(), renamed=(("model.", ""),),
)
# fmt: on


# --- Gemma 3n and 4 ---------------------------------------------------------------------------------

LAYER_INPUTS = table("""
    per_layer_input_gate      inp_gate  inputs d
    per_layer_projection      proj      d inputs
    post_per_layer_input_norm post_norm d
""")
LAYER_EMBEDDINGS = table("""
    embed_tokens_per_layer     per_layer_token_embd layer_vocab all_inputs / rows=vocab
    per_layer_model_projection per_layer_model_proj all_inputs d
    per_layer_projection_norm  per_layer_proj_norm  inputs
""")
SHARED_KV = tuple(Part(f"self_attn.{name}.", "", "") for name in ("k_proj", "v_proj", "k_norm", "v_norm"))
"""Unused tensors that some folders have in layers without keys of their own."""

DEFAULTS: dict[str, Any] = {**TANH, "rms_norm_eps": 1e-6, "head_dim": 256}


def shared_keys(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The last layers attend to keys of earlier ones."""
    n = sizes["layers"]
    shared = config.size("num_kv_shared_layers", 0, least=0, most=n - 1)
    metadata["attention.shared_kv_layers"] = shared
    windowed = sizes.kinds["windowed"]
    if shared and not {*windowed[n - shared :]} <= {*windowed[: n - shared]}:
        raise LoadError(
            f"{config.name}: num_kv_shared_layers: expected layers of both kinds before the last {shared}"
        )
    sizes.split([i >= n - shared for i in range(n)], "sharing", "own")


def layer_embeddings(config: Config, metadata: Metadata, sizes: Sizes, least: int) -> None:
    """The width of the embeddings of each layer; ``least`` is 0 where a model may have none."""
    width = config.size("hidden_size_per_layer_input", 256, least, most=(1 << 20) - 1)
    metadata["embedding_length_per_layer_input"] = sizes["inputs"] = width
    sizes["all_inputs"] = width * sizes["layers"]
    rows = config.get("vocab_size_per_layer_input", sizes["vocab"])  # has no effect without a width
    sizes["layer_vocab"] = config.size("vocab_size_per_layer_input", rows) if width else 0
    n, rows = sizes["vocab"], sizes["layer_vocab"]
    config.refuse_if(rows > n, "vocab_size_per_layer_input", f"at most {n}", rows)
    sizes.split(width > 0, "with_inputs")
    # llama.cpp has a soft cap of the logits where a file states none
    found = config.number("final_logit_softcapping") if config.has("final_logit_softcapping") else 0.0
    metadata["final_logit_softcapping"] = found


def of_full_layers(config: Config, key: str, old: str, usual: int, full: list[bool]) -> int:
    """A size of layers without windows: of each layer in ``per_layer_config``, or stated once as ``old``."""
    if not config.has("per_layer_config"):
        return config.size(old, usual)
    by_layer = config.table("per_layer_config")
    entries = [by_layer.table(str(i)) for i in range(len(full))]
    found = {entry.size(key, usual) for entry, is_full in zip(entries, full) if is_full}
    strange = [i for i, entry in enumerate(entries) if not full[i] and entry.values]
    other = {name for entry in entries for name in entry.values} - {"head_dim", "num_key_value_heads"}
    if len(found) != 1 or strange or other or by_layer.values.keys() - {str(i) for i in range(len(full))}:
        raise LoadError(
            f"{by_layer.name}: expected the same head_dim and num_key_value_heads for all layers without "
            f"windows and nothing for others, got {by_layer.values!r:.120}"
        )
    return found.pop()


def gemma4(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Layers without windows have wider heads, and a share of each head rotates."""
    config.only("use_bidirectional_attention", False, "vision")  # concerns rows of pictures only
    windowed = options.kinds_of_attention(config, options.every(6, sizes))
    full = [not each for each in windowed]
    if not full[-1] or not any(windowed):
        raise LoadError(f"{config.name}: layer_types: expected both kinds, and full_attention at the end")
    sizes.split(windowed, "windowed", "full")
    shared_keys(config, metadata, sizes)
    layer_embeddings(config, metadata, sizes, 0)
    local, heads, kv_heads = sizes["dim"], sizes["heads"], sizes["kv_heads"]
    same = config.flag("attention_k_eq_v")
    dim = of_full_layers(config, "head_dim", "global_head_dim", 512, full)
    if same or config.has("per_layer_config"):
        kv_heads = of_full_layers(config, "num_key_value_heads", "num_global_key_value_heads", kv_heads, full)
    config.ignore("global_head_dim", "num_global_key_value_heads")
    sizes.update({"full_dim": dim, "full_q": heads * dim, "full_k": kv_heads * dim})
    metadata["attention.key_length"] = metadata["attention.value_length"] = dim
    metadata["attention.key_length_swa"] = metadata["attention.value_length_swa"] = local
    metadata["attention.sliding_window"] = config.size("sliding_window", 512)
    metadata["attention.sliding_window_pattern"] = windowed
    if kv_heads != sizes["kv_heads"]:
        metadata["attention.head_count_kv"] = [sizes["kv_heads"] if each else kv_heads for each in windowed]
    own, sharing = sizes.kinds["own"], sizes.kinds["sharing"]
    sizes.split([a and b for a, b in zip(own, windowed)], "own_windowed")
    sizes.split([a and b for a, b in zip(own, full)], "own_full")
    sizes.split([a and not same for a in sizes.kinds["own_full"]], "own_values")
    doubled = config.flag("use_double_wide_mlp")
    sizes.split([doubled and each for each in sharing], "wide", "narrow")
    sizes["2ff"] = 2 * sizes["ff"]
    if any(sizes.kinds["wide"]):
        metadata["feed_forward_length"] = [sizes["2ff" if wide else "ff"] for wide in sizes.kinds["wide"]]
    has_experts = config.flag("enable_moe_block")  # in addition to the dense blocks of all layers
    sizes.split(has_experts, "routed")
    if has_experts:
        options.counts(used="top_k_experts")(config, metadata, sizes)


def gemma4_rotation(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Layers without windows rotate the fastest pairs of a head, slower by a factor; others rotate all."""
    both = config.table("rope_parameters")
    rope, inner = both.table("full_attention"), both.table("sliding_attention")
    if not rope.values:
        rope.values |= {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    inner.require(rope_type="default", partial_rotary_factor=1)
    metadata["rope.freq_base_swa"] = inner.number("rope_theta", 10000.0)
    metadata["rope.dimension_count_swa"] = sizes["dim"]
    refuse_unread(both, inner)
    return rotation_of(rope, config, metadata, sizes["full_dim"], 1e6, partial=True)


def resized(parts: tuple[Part, ...], kind: str, **names: str) -> tuple[Part, ...]:
    """The parts in layers of one kind, with other sizes in place of some names."""
    return tuple(
        replace(part, only=kind, shape=" ".join(names.get(word, word) for word in part.shape.split()))
        for part in parts
    )


Q, K, V, OUT = parts.PLAIN_ATTENTION
Q_NORM, K_NORM = parts.HEAD_NORMS
FULL = {"q": "full_q", "k": "full_k", "v": "full_k", "dim": "full_dim"}
GEMMA4_LAYER = (
    *parts.only("windowed", (Q, Q_NORM, OUT)),
    *parts.only("own_windowed", (K, K_NORM, V)),
    *resized((Q, Q_NORM, OUT), "full", **FULL),
    *resized((K, K_NORM), "own_full", **FULL),
    *resized((V,), "own_values", **FULL),
    *parts.only("sharing", SHARED_KV),
    *parts.norms("gemma4"),
    *parts.only("narrow", parts.PLAIN_FEED),
    *resized(parts.FEED, "wide", ff="2ff"),
    *parts.only("with_inputs", LAYER_INPUTS),
    Part("layer_scalar", "layer_output_scale.weight", "one", bare=True),
)
GEMMA4_EXPERTS = table("""
  [routed]
    router.proj                  ffn_gate_inp              experts d
    router.scale                 ffn_gate_inp.scale        d / bare
    router.per_expert_scale      ffn_down_exps.scale       experts / bare
    experts.gate_up_proj         ffn_gate_up_exps.weight   experts expert_ff+expert_ff d / bare
    experts.down_proj            ffn_down_exps.weight      experts d expert_ff / bare
    post_feedforward_layernorm_1 post_ffw_norm_1           d
    pre_feedforward_layernorm_2  pre_ffw_norm_2            d
    post_feedforward_layernorm_2 post_ffw_norm_2           d
""")


def gemma3n(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Four streams of hidden states; the gates of the first layers let only the largest values through."""
    n = sizes["layers"]
    sizes.update({"streams": 4, "others": 3, "coefficients": 16, "rank": config.size("laurel_rank", 64)})
    metadata["altup.active_idx"], metadata["altup.num_inputs"] = 0, sizes["streams"]
    options.windows(config, metadata, options.every(5, sizes), stated=True)
    sizes.split(metadata.get("attention.sliding_window_pattern", False), "windowed")
    shared_keys(config, metadata, sizes)
    layer_embeddings(config, metadata, sizes, 1)
    usual = [0.95 if i < 10 and n > 10 else 0.0 for i in range(n)]
    key = "activation_sparsity_pattern"
    if isinstance(config.get(key), (int, float)):
        config.values[key] = [config.get(key)] * n
    shares = config.listed(key, n, is_share, f"{n} numbers from 0 to below 1", usual)
    # In standard deviations, with a divisor of n in the source, of n - 1 in GGUF.
    unbiased = math.sqrt((sizes["ff"] - 1) / sizes["ff"])
    cuts = [NormalDist().inv_cdf(share) * unbiased if share else -math.inf for share in shares]
    config.refuse_if(any(-math.inf < cut < 0 for cut in cuts), key, "0 or 0.5 and more", shares)
    metadata["activation_sparsity_scale"] = cuts
    local = config.number("rope_local_base_freq", 10000.0)
    return options.two_rotations(config, metadata, sizes["dim"], 1e6, local)


def is_share(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < 1


# fmt: off
GEMMA4 = register(Decoder(
    "Gemma4ForCausalLM gemma4_text", "gemma4", (*GEMMA4_LAYER, *GEMMA4_EXPERTS), (gemma4,),
    rotates=gemma4_rotation, tied=True,
    fixed=TANH, unread="num_experts top_k_experts moe_intermediate_size",  # no effect without the flag
    defaults={**DEFAULTS, "num_key_value_heads": 4, "max_position_embeddings": 131072},
    last=(*LAST, *parts.only("with_inputs", LAYER_EMBEDDINGS)), left_out=parts.TOWERS,
    renamed=parts.TEXT_IN_TOWERS,
))
derive(
    GEMMA4, "Gemma4UnifiedForCausalLM gemma4_unified_text",
    defaults={
        **GEMMA4.defaults, "max_position_embeddings": 262144, "sliding_window": 1024,
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
    },
)
derive(
    GEMMA4, "Gemma3nForCausalLM gemma3n_text", "gemma3n", steps=(), rotates=gemma3n,
    parts=(
        *(Q, OUT, Q_NORM), *parts.only("own", (K, V, K_NORM)), *parts.only("sharing", SHARED_KV),
        *parts.norms("gemma3n"),
        *parts.PLAIN_FEED, *LAYER_INPUTS, *table("""
            laurel.linear_left          laurel_l                   rank d
            laurel.linear_right         laurel_r                   d rank
            laurel.post_laurel_norm     laurel_post_norm           d
            altup.router_norm           altup_router_norm          d
            altup.modality_router       altup_router               streams d
            altup.prediction_coefs      altup_predict_coef         coefficients streams
            altup.correction_coefs      altup_correct_coef         streams streams
            altup.correct_output_scale  altup_correct_scale.weight d / bare
        """),
    ),
    fixed={**TANH, "altup_correct_scale": True, "altup_active_idx": 0, "altup_num_inputs": 4},
    unread="altup_coef_clip altup_lr_multiplier query_pre_attn_scalar",
    defaults={
        **DEFAULTS, "num_key_value_heads": 2, "max_position_embeddings": 32768, "sliding_window": 512,
        "num_kv_shared_layers": 15, "final_logit_softcapping": 30.0, "vocab_size_per_layer_input": 262144,
    },
    last=(*LAST, *LAYER_EMBEDDINGS, *table("""
        altup_projections.{e}         altup_proj        d d / count=others
        altup_unembed_projections.{e} altup_unembd_proj d d / count=others
    """)),
)
