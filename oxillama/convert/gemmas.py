"""Gemma 3n and Gemma 4: embeddings of each layer, keys and values that the last layers share."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

from oxillama.convert.config import Config
from oxillama.convert.decoders import Decoder, Part, Sizes
from oxillama.convert.options import counts, kinds_of_attention, two_rotations, windows
from oxillama.convert.parts import (
    ATTENTION,
    BOTH_SIDES,
    FEED,
    HEAD_NORMS,
    TEXT_IN_TOWERS,
    TOWERS,
    biased,
    only,
)
from oxillama.convert.rotation import Metadata, Tensors, refuse_unread, rotation_of
from oxillama.errors import LoadError

LAYER_INPUTS = (
    Part("per_layer_input_gate", "inp_gate", "inputs d"),
    Part("per_layer_projection", "proj", "d inputs"),
    Part("post_per_layer_input_norm", "post_norm", "d"),
)
LAYER_EMBEDDINGS = (
    Part("embed_tokens_per_layer", "per_layer_token_embd", "layer_vocab all_inputs", rows="vocab"),
    Part("per_layer_model_projection", "per_layer_model_proj", "all_inputs d"),
    Part("per_layer_projection_norm", "per_layer_proj_norm", "inputs"),
)
SHARED_KV = tuple(Part(f"self_attn.{name}.", "", "") for name in ("k_proj", "v_proj", "k_norm", "v_norm"))
"""Tensors that some files have in layers without keys of their own, and that are not used."""

DEFAULTS = (("hidden_activation", "gelu_pytorch_tanh"), ("rms_norm_eps", 1e-6), ("head_dim", 256))


def shared_keys(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """The last layers have no keys of their own."""
    n = sizes["layers"]
    shared = config.size("num_kv_shared_layers", 0, least=0, most=n - 1)
    metadata["attention.shared_kv_layers"] = shared
    windowed = sizes.kinds["windowed"]
    sources = {kind: i for i, kind in enumerate(windowed[: n - shared])}
    if shared and any(kind not in sources for kind in windowed[n - shared :]):
        raise LoadError(
            f"{config.name}: num_kv_shared_layers: expected layers of both kinds before the last {shared}"
        )
    sizes.kinds["sharing"] = [i >= n - shared for i in range(n)]
    sizes.kinds["own"] = [i < n - shared for i in range(n)]


def layer_embeddings(config: Config, metadata: Metadata, sizes: Sizes, least: int) -> None:
    """The width of the embeddings that each layer has of its own; ``least`` 0 where there may be none."""
    width = config.size("hidden_size_per_layer_input", 256, least, most=(1 << 20) - 1)
    metadata["embedding_length_per_layer_input"] = sizes["inputs"] = width
    sizes["all_inputs"] = width * sizes["layers"]
    rows = config.get("vocab_size_per_layer_input", sizes["vocab"])  # without a width only a number
    sizes["layer_vocab"] = config.size("vocab_size_per_layer_input", rows) if width else 0
    if sizes["layer_vocab"] > sizes["vocab"]:
        raise LoadError(
            f"{config.name}: vocab_size_per_layer_input: expected at most {sizes['vocab']}, "
            f"got {sizes['layer_vocab']}"
        )
    sizes.kinds["with_inputs"] = [width > 0] * sizes["layers"]


def soft_cap(config: Config, metadata: Metadata) -> None:
    """That of the logits; llama.cpp caps where a file says nothing."""
    found = config.number("final_logit_softcapping") if config.has("final_logit_softcapping") else 0.0
    metadata["final_logit_softcapping"] = found


# --- Gemma 4 ----------------------------------------------------------------------------------------


def of_full_layers(config: Config, key: str, old: str, usual: int, full: list[bool]) -> int:
    """A size of layers without windows: of each layer in ``per_layer_config``, or stated once as ``old``."""
    if not config.has("per_layer_config"):
        return config.size(old, usual)
    table = config.table("per_layer_config")
    entries = [table.table(str(i)) for i in range(len(full))]
    found = {entry.size(key, usual) for entry, is_full in zip(entries, full) if is_full}
    strange = [i for i, entry in enumerate(entries) if not full[i] and entry.values]
    other = {name for entry in entries for name in entry.values} - {"head_dim", "num_key_value_heads"}
    if len(found) != 1 or strange or other or table.values.keys() - {str(i) for i in range(len(full))}:
        raise LoadError(
            f"{table.name}: expected the same head_dim and num_key_value_heads for all layers without "
            f"windows and nothing for others, got {table.values!r:.120}"
        )
    return found.pop()


def gemma4(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Layers without windows have wider heads, of which a share rotates."""
    n = sizes["layers"]
    config.only("hidden_activation", "gelu_pytorch_tanh")
    config.only("use_bidirectional_attention", False, "vision")  # images are not read
    windowed = kinds_of_attention(config, [(i + 1) % 6 > 0 for i in range(n)])
    full = [not each for each in windowed]
    if not full[-1] or not any(windowed):
        raise LoadError(f"{config.name}: layer_types: expected both kinds, and full_attention at the end")
    sizes.kinds["windowed"], sizes.kinds["full"] = windowed, full
    shared_keys(config, metadata, sizes)
    layer_embeddings(config, metadata, sizes, 0)
    soft_cap(config, metadata)
    local, heads = sizes["dim"], sizes["heads"]
    same = config.flag("attention_k_eq_v")
    dim = of_full_layers(config, "head_dim", "global_head_dim", 512, full)
    config.ignore("global_head_dim")
    kv_heads = sizes["kv_heads"]
    if same or config.has("per_layer_config"):
        kv_heads = of_full_layers(config, "num_key_value_heads", "num_global_key_value_heads", kv_heads, full)
    config.ignore("num_global_key_value_heads")  # counts with attention_k_eq_v alone
    sizes.update({"full_dim": dim, "full_q": heads * dim, "full_k": kv_heads * dim})
    metadata["attention.key_length"] = metadata["attention.value_length"] = dim
    metadata["attention.key_length_swa"] = metadata["attention.value_length_swa"] = local
    metadata["attention.sliding_window"] = config.size("sliding_window", 512)
    metadata["attention.sliding_window_pattern"] = windowed
    if kv_heads != sizes["kv_heads"]:
        metadata["attention.head_count_kv"] = [
            sizes["kv_heads"] if has_window else kv_heads for has_window in windowed
        ]
    own = sizes.kinds["own"]
    sizes.kinds["own_windowed"] = [a and b for a, b in zip(own, windowed)]
    sizes.kinds["own_full"] = [a and b for a, b in zip(own, full)]
    sizes.kinds["own_values"] = [a and not same for a in sizes.kinds["own_full"]]
    doubled = config.flag("use_double_wide_mlp")
    sizes.kinds["wide"] = [doubled and each for each in sizes.kinds["sharing"]]
    sizes.kinds["narrow"] = [not each for each in sizes.kinds["wide"]]
    sizes["2ff"] = 2 * sizes["ff"]
    if any(sizes.kinds["wide"]):
        metadata["feed_forward_length"] = [sizes["2ff" if wide else "ff"] for wide in sizes.kinds["wide"]]
    gemma4_experts(config, metadata, sizes)
    return gemma4_rotation(config, metadata, local, dim)


def gemma4_experts(config: Config, metadata: Metadata, sizes: Sizes) -> None:
    """Beside the dense blocks of all layers, or nowhere."""
    has = config.flag("enable_moe_block")
    sizes.kinds["routed"] = [has] * sizes["layers"]
    config.ignore("num_experts", "top_k_experts", "moe_intermediate_size")  # only numbers without the flag
    if not has:
        return
    counts(config, metadata, sizes, used="top_k_experts")
    sizes["stacked"] = sizes["experts"]


def gemma4_rotation(config: Config, metadata: Metadata, local: int, dim: int) -> Tensors:
    """Layers without windows rotate the fastest pairs of a whole head, divided by a factor; others all."""
    both = config.table("rope_parameters")
    rope, inner = both.table("full_attention"), both.table("sliding_attention")
    if not rope.values:
        rope.values |= {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    inner.only("rope_type", "default")
    inner.only("partial_rotary_factor", 1, 1.0)
    metadata["rope.freq_base_swa"] = inner.number("rope_theta", 10000.0)
    metadata["rope.dimension_count_swa"] = local
    refuse_unread(both, inner)
    return rotation_of(rope, config, metadata, dim, 1e6, partial=True)


def renamed_shapes(parts: tuple[Part, ...], kind: str, sizes: dict[str, str]) -> tuple[Part, ...]:
    """The parts in layers of one kind, with sizes of their own."""
    changed = []
    for part in only(kind, parts):
        words = " ".join(sizes.get(word, word) for word in part.shape.split())
        changed.append(Part(part.source, part.target, words, part.bias, kind))
    return tuple(changed)


Q, K, V, OUT = biased(ATTENTION, "")
Q_NORM, K_NORM = HEAD_NORMS
FULL = {"q": "full_q", "k": "full_k", "v": "full_k", "dim": "full_dim"}
GEMMA4_LAYER = (
    *only("windowed", (Q, Q_NORM, OUT)),
    *only("own_windowed", (K, K_NORM, V)),
    *renamed_shapes((Q, Q_NORM, OUT), "full", FULL),
    *renamed_shapes((K, K_NORM), "own_full", FULL),
    *renamed_shapes((V,), "own_values", FULL),
    *only("sharing", SHARED_KV),
    *BOTH_SIDES,
    *only("narrow", biased(FEED, "")),
    *renamed_shapes(FEED, "wide", {"ff": "2ff"}),
    *only("with_inputs", LAYER_INPUTS),
    Part("layer_scalar", "layer_output_scale.weight", "one", bare=True),
)
GEMMA4_EXPERTS = (
    Part("router.proj", "ffn_gate_inp", "stacked d"),
    Part("router.scale", "ffn_gate_inp.scale", "d", bare=True),
    Part("router.per_expert_scale", "ffn_down_exps.scale", "stacked", bare=True),
    Part("experts.gate_up_proj", "ffn_gate_up_exps.weight", "stacked expert_ff+expert_ff d", bare=True),
    Part("experts.down_proj", "ffn_down_exps.weight", "stacked d expert_ff", bare=True),
    Part("post_feedforward_layernorm_1", "post_ffw_norm_1", "d"),
    Part("pre_feedforward_layernorm_2", "pre_ffw_norm_2", "d"),
    Part("post_feedforward_layernorm_2", "post_ffw_norm_2", "d"),
)
GEMMA4 = Decoder(
    "gemma4",
    (*GEMMA4_LAYER, *only("routed", GEMMA4_EXPERTS)),
    gemma4,
    activations=("gelu_pytorch_tanh",),
    tied=True,
    defaults=(*DEFAULTS, ("num_key_value_heads", 4), ("max_position_embeddings", 131072)),
    others=only("with_inputs", LAYER_EMBEDDINGS),
    left_out=TOWERS,
    renamed=TEXT_IN_TOWERS,
)
GEMMA4_UNIFIED = replace(
    GEMMA4,
    defaults=(
        *DEFAULTS,
        *(("num_key_value_heads", 4), ("max_position_embeddings", 262144), ("sliding_window", 1024)),
        *(("hidden_size_per_layer_input", 0), ("num_kv_shared_layers", 0)),
    ),
)


# --- Gemma 3n ---------------------------------------------------------------------------------------


def gemma3n(config: Config, metadata: Metadata, sizes: Sizes) -> Tensors:
    """Four streams of hidden states, and gates of the first layers that only let the largest through."""
    n = sizes["layers"]
    config.require(hidden_activation="gelu_pytorch_tanh", altup_correct_scale=True, altup_active_idx=0)
    config.require(altup_num_inputs=4)
    # of training, or (the last) of the class it was derived from
    config.ignore("altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar")
    sizes.update({"streams": 4, "others": 3, "coefficients": 16, "rank": config.size("laurel_rank", 64)})
    metadata["altup.active_idx"], metadata["altup.num_inputs"] = 0, sizes["streams"]
    windows(config, metadata, [(i + 1) % 5 > 0 for i in range(n)], stated=True)
    sizes.kinds["windowed"] = metadata.get("attention.sliding_window_pattern", [False] * n)
    shared_keys(config, metadata, sizes)
    layer_embeddings(config, metadata, sizes, 1)
    soft_cap(config, metadata)
    usual = [0.95 if i < 10 and n > 10 else 0.0 for i in range(n)]
    shares = config.get("activation_sparsity_pattern", usual)
    if isinstance(shares, (int, float)):
        shares = [shares] * n
    if not isinstance(shares, list) or len(shares) != n or not all(is_share(share) for share in shares):
        raise LoadError(
            f"{config.name}: activation_sparsity_pattern: expected {n} numbers from 0 to below 1, "
            f"got {shares!r:.80}"
        )
    # In standard deviations, which the source divides by n and GGUF's by n - 1.
    unbiased = math.sqrt((sizes["ff"] - 1) / sizes["ff"])
    cuts = [NormalDist().inv_cdf(share) * unbiased if share else -math.inf for share in shares]
    if any(-math.inf < cut < 0 for cut in cuts):
        raise LoadError(
            f"{config.name}: activation_sparsity_pattern: expected 0 or 0.5 and more, got {shares!r:.80}"
        )
    metadata["activation_sparsity_scale"] = cuts
    return two_rotations(config, metadata, sizes["dim"], 1e6, config.number("rope_local_base_freq", 10000.0))


def is_share(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < 1


GEMMA3N_LAYER = (
    Q,
    OUT,
    Q_NORM,
    *only("own", (K, V, K_NORM)),
    *only("sharing", SHARED_KV),
    *BOTH_SIDES,
    *biased(FEED, ""),
    *LAYER_INPUTS,
    Part("laurel.linear_left", "laurel_l", "rank d"),
    Part("laurel.linear_right", "laurel_r", "d rank"),
    Part("laurel.post_laurel_norm", "laurel_post_norm", "d"),
    Part("altup.router_norm", "altup_router_norm", "d"),
    Part("altup.modality_router", "altup_router", "streams d"),
    Part("altup.prediction_coefs", "altup_predict_coef", "coefficients streams"),
    Part("altup.correction_coefs", "altup_correct_coef", "streams streams"),
    Part("altup.correct_output_scale", "altup_correct_scale.weight", "d", bare=True),
)
GEMMA3N = Decoder(
    "gemma3n",
    GEMMA3N_LAYER,
    gemma3n,
    activations=("gelu_pytorch_tanh",),
    tied=True,
    defaults=(
        *DEFAULTS,
        *(("num_key_value_heads", 2), ("max_position_embeddings", 32768), ("sliding_window", 512)),
        *(("num_kv_shared_layers", 15), ("final_logit_softcapping", 30.0)),
        ("vocab_size_per_layer_input", 262144),
    ),
    others=(
        *LAYER_EMBEDDINGS,
        Part("altup_projections.{e}", "altup_proj", "d d", count="others"),
        Part("altup_unembed_projections.{e}", "altup_unembd_proj", "d d", count="others"),
    ),
    left_out=TOWERS,
    renamed=TEXT_IN_TOWERS,
)

GEMMA_DECODERS: dict[str, tuple[str, Decoder]] = {
    "Gemma3nForCausalLM": ("gemma3n_text", GEMMA3N),
    "Gemma4ForCausalLM": ("gemma4_text", GEMMA4),
    "Gemma4UnifiedForCausalLM": ("gemma4_unified_text", GEMMA4_UNIFIED),
}
