"""Hybrids of attention and the gated delta rule: Qwen3-Next, Qwen 3.5 and Kimi Linear."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from oxillama.errors import LoadError
from oxillama.models.families.deepseek import MANY_EXPERTS, latent_sizes
from oxillama.models.families.mamba import stated_sizes
from oxillama.models.families.qwen import QWEN3, interleaved_sections
from oxillama.models.family import Routing
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.spec import RecurrentSizes, Spec

EVERY = 4
"""One layer of so many attends, where the file does not say."""


def delta_layers(spec: Spec, read: Reader, interleaved: bool) -> Spec:
    """Which layers are recurrent, and the sizes of their heads."""
    sizes = stated_sizes(read, groups=read.size("ssm.group_count"), interleaved=interleaved)
    if sizes.inner != sizes.heads * sizes.n or sizes.heads % sizes.groups:
        found = f"{sizes.inner} channels, {sizes.heads} heads of {sizes.n}, {sizes.groups} of keys"
        raise LoadError(f"{read.prefix}.ssm.inner_size: expected whole heads in equal groups, got {found}")
    key, n = "attention.recurrent_layers", spec.n_layers
    if read.is_array(key):
        recurrent = read.per_layer(key, n, least=0)
    else:
        every = read.size("full_attention_interval", EVERY)
        recurrent = [int((i + 1) % every > 0) for i in range(n)]
    mixer = spec.family.recurrent_mixer
    layers = tuple(
        replace(layer, mixer=mixer, n_kv_heads=0, rope=None) if found else layer
        for layer, found in zip(spec.layers, recurrent)
    )
    return replace(spec, layers=layers, recurrent=sizes)


def interleaved_layers(spec: Spec, read: Reader) -> Spec:
    """Heads of keys that take turns, as the coordinates of a token do in rotations."""
    return delta_layers(interleaved_sections(spec, read), read, interleaved=True)


ROUTING = Routing(
    options=("expert_feed_forward_length", "expert_shared_feed_forward_length"),
    width="ff/used",
    shared_width="ff",
    shared_gate=True,
)

QWEN3_NEXT = register(
    QWEN3.derive(
        "qwen3next",
        requires=("expert_count",),
        attn_gate="query",
        recurrent_mixer="delta",
        next_token=True,
        ffn_norm="post_attention_norm",
        routing=ROUTING,
        classifier="",
    ),
    partial(delta_layers, interleaved=False),
)
QWEN35 = register(
    QWEN3_NEXT.derive("qwen35", options=("rope.dimension_sections",), requires=(), routing=None),
    interleaved_layers,
)
QWEN35_MOE = register(
    QWEN35.derive("qwen35moe", requires=("expert_count",), routing=ROUTING), interleaved_layers
)


def kimi_layers(spec: Spec, read: Reader) -> Spec:
    """Latent attention without rotation, and heads of delta attention in layers without key heads."""
    dim, heads = read.size("kda.head_dim"), max(layer.n_heads for layer in spec.layers)
    sizes = RecurrentSizes(
        taps=read.size("ssm.conv_kernel"), inner=heads * dim, n=dim, heads=heads, groups=heads
    )
    return replace(latent_sizes(spec, read), recurrent=sizes)


KIMI_LINEAR = register(
    QWEN3.derive(
        "kimi-linear",
        rope="none",
        requires=("expert_gating_func",),
        ignored_keys=("expert_weights_norm",),
        mixer="mla",
        recurrent_mixer="kda",
        qk_norm="",
        routing=Routing(options=(*MANY_EXPERTS, "expert_gating_func"), shared_width="expert", bias="yes"),
        output="own",
        classifier="",
    ),
    kimi_layers,
)
