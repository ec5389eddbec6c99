"""The llama family and its near relatives: RMS norms, rotary grouped-query attention, gated SiLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from oxillama.base.lazy_import import lazy
from oxillama.models.family import WINDOWS, Family, Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

new_temperature: Callable[..., Any] = lazy("oxillama.models.sizes:Temperature")

# Llama 1 to 3, Yi, Mixtral. The first Mistral has a window, which most files do not state.
LLAMA = Family("llama", routing=Routing())
LLAMA.variant("llama", options=WINDOWS[:2])

FACTORS = ("rope_freqs.weight", "rope_factors_*.weight")
"""Rotary factors, for families whose files llama.cpp refuses with them."""


def sharpen_by_length(spec: Spec, read: Reader) -> Spec:
    """Mistral 3: queries of all layers are scaled by log(position / original context)."""
    rate = read.amount("attention.temperature_scale")
    if not rate:
        return spec
    return replace(
        spec.each_layer(scaled_queries=True),
        temperature=new_temperature(rate, spec.ropes[0].original_context, 0),
    )


MISTRAL3 = LLAMA.variant(
    "mistral3",
    options=("attention.temperature_scale", "rope.scaling.yarn_log_multiplier"),
    adjust=sharpen_by_length,
)


def llama4_exceptions(spec: Spec, read: Reader) -> Spec:
    """Exceptions as in llama.cpp: a window of 0 turns chunks off, and the model with 128 experts has no head
    norms. Layers without rotation scale queries by their position."""
    family = spec.family
    if read.size("attention.sliding_window", 1, least=0) == 0:
        family = family.derive("llama4", chunk=0)
        spec = spec.each_layer(rope=0, chunk=0)
    else:
        layers = tuple(replace(layer, scaled_queries=layer.rope is None) for layer in spec.layers)
        spec = replace(spec, layers=layers, temperature=new_temperature(0.1, family.chunk, 1))
    if spec.experts is not None and spec.experts.n_experts == 128:
        family = family.derive("llama4", qk_norm="")
    return replace(spec, family=family)


# Llama 4 has experts and two kinds of attention. Three layers of four rotate, norm q and k, and attend within
# chunks of 8192 positions. The fourth does none of that.
LLAMA4 = LLAMA.variant(
    "llama4", options=WINDOWS,
    routing=Routing(
        options=("expert_feed_forward_length", "interleave_moe_layer_step"), gating="sigmoid",
        normalize=False, shared_width="expert", scales_input=True,
    ),
    no_rope_every=4, window_period=4, chunk=8192, qk_norm="unit", qk_norm_last=True, adjust=llama4_exceptions,
)  # fmt: skip

SMOLLM3 = LLAMA.variant("smollm3", no_rope_every=4)
INTERNLM2 = LLAMA.variant("internlm2", output="own")
EXAONE = LLAMA.variant("exaone", rope="neox")
