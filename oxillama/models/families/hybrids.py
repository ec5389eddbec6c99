"""Hybrids of attention and Mamba-2 of other makes: Nemotron-H, Falcon-H1 and PLaMo 2."""

from __future__ import annotations

import math
from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.families.mamba import ssm_sizes, stated_sizes
from oxillama.models.family import Only, Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec


def single_blocks(spec: Spec, read: Reader) -> Spec:
    """A layer has one block: a feed-forward block if it has a width, else attention or Mamba-2."""
    widths = read.per_layer("feed_forward_length", spec.n_layers, least=0)
    layers = tuple(
        replace(layer, mixer="feed_forward", n_kv_heads=0, n_ff=width) if width else layer
        for layer, width in zip(spec.layers, widths)
    )
    experts = spec.experts and replace(spec.experts, latent=read.size("moe_latent_size", 0, least=0))
    return ssm_sizes(replace(spec, layers=layers, experts=experts), read)


NEMOTRON_H = LLAMA.variant(
    "nemotron_h", options=(), requires=("attention.layer_norm_epsilon",), rope="none", any_epsilon=True,
    recurrent_mixer="mamba2", ffn_norm="", feed_forward="", activation="relu_squared", gate="none",
    routing=None, adjust=single_blocks,
)  # fmt: skip
NEMOTRON_H_MOE = NEMOTRON_H.variant(
    "nemotron_h_moe", requires=("attention.layer_norm_epsilon", "expert_feed_forward_length"),
    ignored_keys=("expert_gating_func", "expert_shared_count"),
    routing=Routing(
        options=(
            "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_weights_norm",
            "expert_weights_scale",
        ),
        gating="sigmoid", normalize=False, gated=False, bias="yes", layers="router",
    ),
    adjust=single_blocks,
)  # fmt: skip

FALCON_H1 = LLAMA.variant(
    "falcon-h1", options=(), ignores=("attn_output.bias", "rope_freqs.weight"), rope="neox",
    mixer="attention+mamba2", routing=None, adjust=ssm_sizes,
)  # fmt: skip


def plamo2_sizes(spec: Spec, read: Reader) -> Spec:
    """The sizes of its state space; scores are scaled by the width of a value."""
    sizes = stated_sizes(read, ranks={"dt": max(64, spec.n_embd // 16)})
    found = f"{sizes.inner} channels, {sizes.heads} heads"
    read.expect(sizes.inner % sizes.heads == 0, "ssm.inner_size", "equal heads", found)
    return replace(spec, recurrent=sizes, score_scale=1 / math.sqrt(spec.value_dim))


PLAMO2 = LLAMA.variant(
    "plamo2", options=(), only=(Only("ssm.group_count", (0,)),), rope="neox", recurrent_mixer="plamo2",
    qk_norm="heads", attn_post_norm=("post_attention_norm",), ffn_post_norm=("post_ffw_norm",), gate="fused",
    routing=None, adjust=plamo2_sizes,
)  # fmt: skip
