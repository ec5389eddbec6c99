"""Mamba; hybrids of Mamba and attention layers: Jamba and Granite 4; LFM2, a hybrid with short convolutions.

Layers of a hybrid without key heads are recurrent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oxillama.models.families.granite import GRANITE, granite_rotation
from oxillama.models.families.llama import LLAMA
from oxillama.models.family import Family, Routing, register
from oxillama.models.metadata import Reader
from oxillama.models.sizes import RecurrentSizes
from oxillama.models.spec import Spec


def stated_sizes(read: Reader, **others: Any) -> RecurrentSizes:
    """The sizes that files of all state spaces state, and ``others`` of a family."""
    return RecurrentSizes(
        taps=read.size("ssm.conv_kernel"),
        inner=read.size("ssm.inner_size"),
        n=read.size("ssm.state_size"),
        heads=read.size("ssm.time_step_rank"),
        **others,
    )


def ssm_sizes(spec: Spec, read: Reader) -> Spec:
    """The sizes of a state space, checked against each other."""
    second = "mamba2" in (spec.family.recurrent_mixer, spec.family.mixer.rpartition("+")[2])
    sizes = stated_sizes(
        read,
        groups=read.size("ssm.group_count") if second else 1,
        norms="plain" if read.flag("ssm.dt_b_c_rms", False) else "",
    )
    are_equal = not second or not (sizes.inner % sizes.heads or sizes.heads % sizes.groups)
    found = f"{sizes.inner} channels, {sizes.heads} heads, {sizes.groups} groups"
    read.expect(are_equal, "ssm.inner_size", "groups of equal heads", found)
    return replace(spec, recurrent=sizes)


MAMBA = register(
    Family(
        "mamba", options=("ssm.dt_b_c_rms",), rope="none", mixer="mamba", recurrent_mixer="mamba",
        ffn_norm="", feed_forward="",
    ),
    ssm_sizes,
)  # fmt: skip
MAMBA2 = MAMBA.variant("mamba2", options=(), mixer="mamba2", recurrent_mixer="mamba2", adjust=ssm_sizes)


def jamba_layers(spec: Spec, read: Reader) -> Spec:
    """Jamba norms dt, B and C."""
    spec = ssm_sizes(spec, read)
    assert spec.recurrent is not None
    return replace(spec, recurrent=replace(spec.recurrent, norms="learned"))


JAMBA = LLAMA.variant(
    "jamba", rope="none", recurrent_mixer="mamba", routing=Routing(normalize=False, layers="router"),
    adjust=jamba_layers,
)  # fmt: skip


def granite_hybrid(spec: Spec, read: Reader) -> Spec:
    """The rotation of Granite and the sizes of its Mamba-2 layers."""
    return ssm_sizes(granite_rotation(spec, read), read)


GRANITE_HYBRID = GRANITE.variant("granitehybrid", recurrent_mixer="mamba2", adjust=granite_hybrid)


def short_taps(spec: Spec, read: Reader) -> Spec:
    """LFM2's convolutions, whose only size is their length."""
    taps = read.size("shortconv.l_cache")
    read.expect(spec.causal or taps % 2, "shortconv.l_cache", "an odd number in an encoder", taps)
    return replace(spec, recurrent=RecurrentSizes(taps=taps, inner=spec.n_embd, n=1, heads=1))


LFM2 = LLAMA.variant(
    "lfm2", options=("attention.sliding_window",), rope="neox", recurrent_mixer="shortconv", qk_norm="head",
    output_norm="token_embd_norm", routing=None, adjust=short_taps,
)  # fmt: skip

LFM2_MOE = LFM2.variant(
    "lfm2moe", options=(), requires=("expert_count", "expert_gating_func"),
    routing=Routing(
        options=("expert_feed_forward_length", "expert_gating_func", "leading_dense_block_count"), bias="yes",
    ),
    adjust=short_taps,
)  # fmt: skip
