"""The Gemma family: embeddings times sqrt(n_embd), gated GELU, norm weights stored with their 1, and from
version 2 on norms after the blocks, and windows on most layers."""

from __future__ import annotations

import math
from dataclasses import replace

from oxillama.models.families.llama import FACTORS, LLAMA
from oxillama.models.family import WINDOWS, AtLayers, Only, Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

GEMMA = LLAMA.variant(
    "gemma", rope="neox", routing=None, embedding_scale=0.0, activation="gelu", output="tied"
)


# The largest model of a generation has another score scale.
GEMMA2 = GEMMA.variant(
    "gemma2", options=(*WINDOWS, "attention.scale", "attn_logit_softcapping", "final_logit_softcapping"),
    attn_post_norm=("post_attention_norm",), ffn_post_norm=("post_ffw_norm",), window=4096, window_period=2,
    soft_cap=50.0, final_soft_cap=30.0, at_layers=(AtLayers(46, score_scale="embd/heads"),),
)  # fmt: skip

GEMMA3 = GEMMA2.variant(
    "gemma3", options=(*WINDOWS, "attention.scale", "final_logit_softcapping"), qk_norm="head", window=0,
    window_period=6, local_rope="unscaled", local_base=10000.0, soft_cap=0.0, final_soft_cap=0.0,
    output="auto", at_layers=(AtLayers(62, score_scale="embd/heads"),),
)  # fmt: skip

# An encoder; files may have two matrices for what is pooled.
GEMMA_EMBEDDING = GEMMA3.variant(
    "gemma-embedding", centred_windows=True, causal=False, output="none", projections=("dense_2", "dense_3"),
    at_layers=(),
)  # fmt: skip


def share_kv(spec: Spec, n_shared: int, read: Reader) -> Spec:
    """The last ``n_shared`` layers attend to keys and values of the last layer of their kind before them.

    Their own matrices of k and v, if there are any, have no use.
    """
    first = spec.n_layers - n_shared
    if not n_shared:
        return spec
    before = spec.layers[: max(first, 0)]
    sources = {bool(layer.window): i for i, layer in enumerate(before)}
    layers = list(before)
    for layer in spec.layers[len(before) :]:
        wanted = f"layers of both kinds before the last {n_shared}"
        has_kind = bool(layer.window) in sources
        read.expect(has_kind, "attention.shared_kv_layers", wanted, "none of one")
        source = sources[bool(layer.window)]
        heads = before[source].n_kv_heads
        layers.append(replace(layer, kv_from=source, n_kv_heads=heads))
    unused = tuple(
        name
        for i in range(len(before), spec.n_layers)
        for part in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
        if (name := f"blk.{i}.{part}") in read.file.tensors
    )
    return replace(spec, layers=tuple(layers), ignored=(*spec.ignored, *unused))


def shared_as_stated(spec: Spec, read: Reader) -> Spec:
    return share_kv(spec, read.size("attention.shared_kv_layers", 0, least=0), read)


# Gemma 4: windowed layers have narrower heads, the last layers share keys and values, and every layer may
# have an embedding of its own. Some models have experts beside the dense blocks.
GEMMA4 = GEMMA3.variant(
    "gemma4",
    options=(
        *WINDOWS, "attention.key_length_swa", "attention.shared_kv_layers", "attention.value_length_swa",
        "embedding_length_per_layer_input", "final_logit_softcapping", "rope.dimension_count_swa",
    ),
    requires=(
        "attention.key_length_swa", "attention.sliding_window", "attention.sliding_window_pattern",
        "attention.value_length_swa",
    ),
    at_layers=(), local_rope="plain", v_is_k=True, v_norm=True, score_scale="one", final_soft_cap=30.0,
    per_layer_input=True, output_scale=True,
    routing=Routing(
        options=("expert_feed_forward_length",), layers="router", beside_dense="normed", reads="block",
        scaled_outputs=True, bias="no",
    ),
    adjust=shared_as_stated,
)  # fmt: skip


# An encoder of Gemma 4's blocks. A matrix makes the last states of the tokens narrower or wider.
GEMMA_EMBEDDING2 = GEMMA4.variant(
    "gemma-embedding2",
    options=(
        *WINDOWS, "attention.key_length_swa", "attention.value_length_swa",
        "embedding_length_per_layer_input", "rope.dimension_count_swa",
    ),
    requires=("attention.sliding_window", "embedding_length_per_layer_input"), local_rope="unscaled",
    refuses=FACTORS, routing=None, v_is_k=False, centred_windows=True, causal=False, output="none",
    per_layer_table=False, token_projection=True, unadapted=("per_layer_model_proj",),
)  # fmt: skip


GEMMA3N_CUT = 1.6448533535003662
"""Standard deviations above the mean: the quantile 0.95 of a normal distribution."""


def gemma3n_layers(spec: Spec, read: Reader) -> Spec:
    """Sparse gates in the first ten layers, and own keys and values in the first twenty, unless stated."""
    n = spec.n_layers
    key = "activation_sparsity_scale"
    scales = read.get(key, list[float], []) or [GEMMA3N_CUT if i < 10 else -math.inf for i in range(n)]
    are_good = len(scales) >= n and all(scale == -math.inf or 0 <= scale <= 10 for scale in scales[:n])
    read.expect(are_good, key, f"-inf or a number from 0 to 10 for each of {n} layers", scales)
    cuts = [None if scale == -math.inf else scale for scale in scales[:n]]
    shared = read.size("attention.shared_kv_layers", max(0, n - 20), least=0)
    return share_kv(spec.with_layers(sparsity=cuts), shared, read)


GEMMA3N = GEMMA4.variant(
    "gemma3n",
    options=(
        *WINDOWS, "activation_sparsity_scale", "altup.active_idx", "altup.num_inputs",
        "attention.shared_kv_layers", "embedding_length_per_layer_input", "final_logit_softcapping",
    ),
    requires=("attention.sliding_window", "embedding_length_per_layer_input"),
    only=(Only("altup.active_idx", (0,)), Only("altup.num_inputs", (4,))), window_period=5, v_is_k=False,
    output_scale=False, streams="altup", routing=None, adjust=gemma3n_layers,
)  # fmt: skip
