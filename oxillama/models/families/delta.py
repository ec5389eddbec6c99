"""Hybrids of attention and linear attention: Qwen3-Next, Qwen 3.5, Kimi Linear and MiniMax-01."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from oxillama.models.families.deepseek import MANY_EXPERTS, latent_sizes
from oxillama.models.families.mamba import stated_sizes
from oxillama.models.families.qwen import QWEN3, interleaved_sections
from oxillama.models.family import Routing
from oxillama.models.metadata import Reader
from oxillama.models.sizes import RecurrentSizes
from oxillama.models.spec import Spec

EVERY = 4
"""One layer of so many attends, where the file does not say."""


def delta_layers(spec: Spec, read: Reader, interleaved: bool) -> Spec:
    """The recurrent layers, and the sizes of their heads."""
    sizes = stated_sizes(read, groups=read.size("ssm.group_count"), interleaved=interleaved)
    are_whole = sizes.inner == sizes.heads * sizes.n and not sizes.heads % sizes.groups
    found = f"{sizes.inner} channels, {sizes.heads} heads of {sizes.n}, {sizes.groups} of keys"
    read.expect(are_whole, "ssm.inner_size", "whole heads in equal groups", found)
    return recurrent_layers(replace(spec, recurrent=sizes), read, EVERY)


def recurrent_layers(spec: Spec, read: Reader, usual: int) -> Spec:
    """The recurrent layers that a file lists, or all but every n-th; n is ``usual`` where the file does not
    say."""
    key, n = "attention.recurrent_layers", spec.n_layers
    if read.is_array(key):
        recurrent = read.per_layer(key, n, least=0)
    else:
        every = read.size("full_attention_interval", usual)
        recurrent = [int((i + 1) % every > 0) for i in range(n)]
    mixer = spec.family.recurrent_mixer
    layers = tuple(
        replace(layer, mixer=mixer, n_kv_heads=0, rope=None) if found else layer
        for layer, found in zip(spec.layers, recurrent)
    )
    return replace(spec, layers=layers)


def interleaved_layers(spec: Spec, read: Reader) -> Spec:
    """Heads of keys that take turns, as the coordinates of a token do in rotations."""
    return delta_layers(interleaved_sections(spec, read), read, interleaved=True)


ROUTING = Routing(
    options=("expert_feed_forward_length", "expert_shared_feed_forward_length"), width="ff/used",
    shared_width="ff", shared_gate=True,
)  # fmt: skip

QWEN3_NEXT = QWEN3.variant(
    "qwen3next", requires=("expert_count",), attn_gate="query", recurrent_mixer="delta", next_token="states",
    ffn_norm="post_attention_norm", routing=ROUTING, classifier="",
    adjust=partial(delta_layers, interleaved=False),
)  # fmt: skip
QWEN35 = QWEN3_NEXT.variant(
    "qwen35", options=("rope.dimension_sections",), requires=(), routing=None, adjust=interleaved_layers
)
CLEF = QWEN35.variant("clef", adjust=interleaved_layers)
QWEN35_MOE = QWEN35.variant(
    "qwen35moe", requires=("expert_count",), routing=ROUTING, adjust=interleaved_layers
)


def kimi_layers(spec: Spec, read: Reader, **more: Any) -> Spec:
    """Latent attention without rotation, and heads of delta attention in layers without key heads."""
    dim, heads = read.size("kda.head_dim"), max(layer.n_heads for layer in spec.layers)
    bound = read.get("kda.gate_lower_bound", float, 0.0)
    read.expect(-1e3 <= bound <= 0, "kda.gate_lower_bound", "a number from -1000 to 0", bound)
    sizes = RecurrentSizes(
        taps=read.size("ssm.conv_kernel"),
        inner=heads * dim,
        n=dim,
        heads=heads,
        groups=heads,
        least_decay=bound,
        **more,
    )
    return replace(latent_sizes(spec, read), recurrent=sizes)


KIMI_LINEAR = QWEN3.variant(
    "kimi-linear", rope="none", requires=("expert_gating_func",), ignored_keys=("expert_weights_norm",),
    mixer="mla", recurrent_mixer="kda", qk_norm="",
    routing=Routing(options=(*MANY_EXPERTS, "expert_gating_func"), shared_width="expert", bias="yes"),
    output="own", classifier="", adjust=kimi_layers,
)  # fmt: skip


def lightning_layers(spec: Spec, read: Reader) -> Spec:
    """Seven layers of eight have linear attention, where the file does not say which."""
    dim, heads = spec.key_dim, max(layer.n_heads for layer in spec.layers)
    read.expect(spec.value_dim == dim, "attention.value_length", f"{dim}, as keys have", spec.value_dim)
    sizes = RecurrentSizes(taps=1, inner=heads * dim, n=dim, heads=heads)
    return recurrent_layers(replace(spec, recurrent=sizes), read, 8)


# A block's input is normed and added to its output; the hidden state itself is not.
MINIMAX_01 = QWEN3.variant(
    "minimax-01", options=("residual_scale",), requires=("expert_count", "residual_scale"), residual="normed",
    recurrent_mixer="lightning", qk_norm="", routing=Routing(bias="no"), classifier="",
    adjust=lightning_layers,
)  # fmt: skip
