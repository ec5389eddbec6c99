"""GPT-2 and its descendants: layer norms with biases and feed-forward blocks without a gate; and gpt-oss."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS, Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

GPT2 = LLAMA.variant(
    "gpt2", rope="none", positions="yes", norm="layer", norm_bias="yes", gate="none", activation="gelu",
    routing=None,
)  # fmt: skip

STARCODER = GPT2.variant("starcoder")
ROTATING = GPT2.derive("", rope="neox", positions="no")
STARCODER2 = ROTATING.variant("starcoder2", options=("attention.sliding_window",))
FALCON = ROTATING.variant("falcon", residual="parallel", ffn_norm="")
BLOOM = GPT2.variant("bloom", positions="no", embd_norm=True, alibi_bias=8.0)

MPT = GPT2.variant(
    "mpt", options=("attention.clamp_kqv", "attention.max_alibi_bias"), positions="auto", norm_bias="auto",
    qk_norm="row", qk_norm_optional=True,
)  # fmt: skip


BIASED = ("attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
# The first Jais divides scores by the whole width of a head.
JAIS = GPT2.variant(
    "jais", options=("attention.max_alibi_bias",), positions="no",
    needs=tuple(f"{each}.bias" for each in BIASED), score_scale="1/key_dim", gate="pair", activation="silu",
    output="own",
)  # fmt: skip


def parallel_if_stated(spec: Spec, read: Reader) -> Spec:
    parallel = read.file.get(f"{read.prefix}.use_parallel_residual", bool)
    residual = "parallel" if parallel else "sequential"
    return replace(spec, family=spec.family.derive(spec.family.name, residual=residual))


GPT_NEOX = ROTATING.variant(
    "gptneox", options=("use_parallel_residual",), output="own", adjust=parallel_if_stated
)

STABLELM = ROTATING.variant(
    "stablelm",
    options=("use_parallel_residual",),  # the tensors say so, too
    gate="pair",
    activation="silu",
    residual="auto",
    qk_norm="heads",
    qk_norm_optional=True,
    output="own",
)

NEMOTRON = ROTATING.variant("nemotron", activation="relu_squared", output="own")
ORION = ROTATING.variant("orion", gate="pair", activation="silu", output="own")

GPT_OSS = LLAMA.variant(
    "gpt-oss", options=WINDOWS, requires=("expert_count",), rope="neox", ffn_norm="post_attention_norm",
    sinks="yes", window_period=2, activation="silu_clamped",
    routing=Routing(options=("expert_feed_forward_length",), gating="softmax_after_topk", normalize=False),
    output="own",
)  # fmt: skip
