"""DeepSeek: many small experts with shared ones, and from version 2 on latent attention."""

from __future__ import annotations

import math
from dataclasses import replace

from oxillama.errors import LoadError
from oxillama.models.families.llama import LLAMA
from oxillama.models.family import Family, Routing
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.rope import log_of
from oxillama.models.spec import Latent, Spec, Temperature

MANY_EXPERTS = (
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_weights_scale",
    "leading_dense_block_count",
)
STATED = (*MANY_EXPERTS, "expert_gating_func", "expert_weights_norm")

DEEPSEEK = register(
    LLAMA.derive(
        "deepseek",
        requires=("expert_count",),
        routing=Routing(options=MANY_EXPERTS, normalize=False, shared_width="expert"),
    )
)

LATENT_MATRICES = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b")


def latent_sizes(spec: Spec, read: Reader) -> Spec:
    """Newer files state the sizes of a head in keys of their own, older ones in those of attention."""
    latent = Latent(
        q_rank=read.size("attention.q_lora_rank", 0, least=0),
        kv_rank=read.size("attention.kv_lora_rank"),
        key_dim=read.size("attention.key_length_mla", 0, least=0) or spec.key_dim,
        value_dim=read.size("attention.value_length_mla", 0, least=0) or spec.value_dim,
        rotated=spec.ropes[0].n_rot if spec.ropes else read.size("rope.dimension_count"),
    )
    first = min(spec.attending, default=0)
    if latent.q_rank and f"blk.{first}.attn_q.weight" in read.file.tensors:
        latent = replace(latent, q_rank=0)  # some small models state an unused rank
    if latent.rotated >= latent.key_dim:
        key = f"{read.prefix}.rope.dimension_count"
        raise LoadError(f"{key}: expected an even number below {latent.key_dim}, got {latent.rotated}")
    layers = tuple(replace(layer, n_kv_heads=min(layer.n_kv_heads, 1)) for layer in spec.layers)
    return replace(
        spec,
        layers=layers,
        latent=latent,
        score_scale=read.amount("attention.scale") or 1 / math.sqrt(latent.key_dim),
    )


def deepseek2_numbers(spec: Spec, read: Reader) -> Spec:
    """DeepSeek applies YaRN's magnitude to the scores instead of the rotation.

    Its ``yarn_log_multiplier`` is a tenth of that in other families, as in llama.cpp.
    """
    spec = latent_sizes(spec, read)
    rope = spec.ropes[0]
    stretch = log_of(rope.factor)
    plain = read.number("rope.scaling.attn_factor", 1.0)
    k = read.factor("rope.scaling.yarn_log_multiplier", 0.0)
    magnitude = plain if rope.mix and k else rope.magnitude
    gain = plain * (1 + k * stretch) * (1.0 if rope.mix and k else 1 + 0.1 * stretch)
    if not gain > 0:
        key = f"{read.prefix}.rope.scaling.factor"
        raise LoadError(f"{key}: expected a factor with a score scale above 0, got {rope.factor}")
    rate = read.amount("attention.temperature_scale")
    if rate:
        length = read.size("attention.temperature_length")
        spec = replace(spec.each_layer(scaled_queries=True), temperature=Temperature(rate, length, 0))
    experts = spec.experts
    if (
        experts
        and spec.n_layers in (47, 48)
        and spec.n_vocab == 154880
        and not read.has("expert_gating_func")
    ):
        experts = replace(experts, gating="sigmoid")  # files of GLM 4.7 Flash do not state it
    ropes = tuple(replace(rope, magnitude=magnitude) for rope in spec.ropes)
    return replace(spec, ropes=ropes, score_scale=spec.score_scale * gain * gain, experts=experts)


DEEPSEEK2 = register(
    DEEPSEEK.derive(
        "deepseek2",
        options=(
            "attention.temperature_length",
            "attention.temperature_scale",
            "rope.scaling.yarn_log_multiplier",
        ),
        requires=(),
        routing=Routing(options=STATED, normalize=False, shared_width="expert"),
        mixer="mla",
        unadapted=("attn_q", *LATENT_MATRICES, "output"),
    ),
    deepseek2_numbers,
)


# Mistral's large model is DeepSeek 2 in every respect.
MISTRAL4 = register(DEEPSEEK2.derive("mistral4"), deepseek2_numbers)


# From version 3.2 on a selector of positions stands beside attention, with keys of its own.
DEEPSEEK32 = register(
    DEEPSEEK2.derive(
        "deepseek32",
        options=(*DEEPSEEK2.options, "attention.indexer.head_count", "attention.indexer.top_k"),
        requires=("attention.q_lora_rank",),
        indexed=True,
        ignores=("indexer.*",),
    ),
    deepseek2_numbers,
)
GLM_DSA = register(
    DEEPSEEK32.derive(
        "glm-dsa",
        routing=Routing(options=STATED, gating="sigmoid", normalize=False, shared_width="expert"),
    ),
    deepseek2_numbers,
)


def minicpm3_scales(spec: Spec, read: Reader) -> Spec:
    """Constants of the model's code, which files do not state."""
    return replace(
        latent_sizes(spec, read),
        embedding_scale=12.0,
        residual_scale=1.4 / math.sqrt(spec.n_layers),
        logit_scale=256 / spec.n_embd,
    )


MINICPM3: Family = register(
    LLAMA.derive(
        "minicpm3", rope="neox", longrope=True, mixer="mla", routing=None, unadapted=LATENT_MATRICES
    ),
    minicpm3_scales,
)
