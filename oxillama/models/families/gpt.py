"""GPT-2 and its descendants: layer norms with biases and feed-forward blocks without a gate; and gpt-oss."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS, Routing
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.spec import Spec

GPT2 = register(
    LLAMA.derive(
        "gpt2",
        rope="none",
        positions="yes",
        norm="layer",
        norm_bias="yes",
        gate="none",
        activation="gelu",
        routing=None,
    )
)

STARCODER = register(GPT2.derive("starcoder"))
ROTATING = GPT2.derive("", rope="neox", positions="no")
STARCODER2 = register(ROTATING.derive("starcoder2", options=("attention.sliding_window",)))
FALCON = register(ROTATING.derive("falcon", residual="parallel", ffn_norm=""))
BLOOM = register(GPT2.derive("bloom", positions="no", embd_norm=True, alibi_bias=8.0))

MPT = register(
    GPT2.derive(
        "mpt",
        options=("attention.clamp_kqv", "attention.max_alibi_bias"),
        positions="auto",
        norm_bias="auto",
        qk_norm="row",
        qk_norm_optional=True,
    )
)


def parallel_if_stated(spec: Spec, read: Reader) -> Spec:
    parallel = read.file.get(f"{read.prefix}.use_parallel_residual", bool)
    residual = "parallel" if parallel else "sequential"
    return replace(spec, family=spec.family.derive(spec.family.name, residual=residual))


GPT_NEOX = register(
    ROTATING.derive("gptneox", options=("use_parallel_residual",), output="own"), parallel_if_stated
)

STABLELM = register(
    ROTATING.derive(
        "stablelm",
        options=("use_parallel_residual",),  # which the tensors say, too
        gate="pair",
        activation="silu",
        residual="auto",
        qk_norm="heads",
        qk_norm_optional=True,
        output="own",
    )
)

NEMOTRON = register(ROTATING.derive("nemotron", activation="relu_squared", output="own"))
ORION = register(ROTATING.derive("orion", gate="pair", activation="silu", output="own"))

GPT_OSS = register(
    LLAMA.derive(
        "gpt-oss",
        options=WINDOWS,
        requires=("expert_count",),
        rope="neox",
        ffn_norm="post_attention_norm",
        sinks="yes",
        window_period=2,
        activation="silu_clamped",
        routing=Routing(
            options=("expert_feed_forward_length",), gating="softmax_after_topk", normalize=False
        ),
        output="own",
    )
)
