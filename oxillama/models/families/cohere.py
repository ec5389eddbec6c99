"""Cohere's Command R: parallel blocks after one layer norm without bias, scaled logits."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.deepseek import STATED
from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS, AtLayers, Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

COMMAND_R = LLAMA.variant(
    "command-r",
    options=("logit_scale",),
    norm="layer",
    residual="parallel",
    ffn_norm="",
    routing=None,
    output="tied",
    at_layers=(AtLayers(64, None, qk_norm="heads"),),  # Command R+,
)

# Three layers of four have a window and rotate; the fourth has neither.
COHERE2 = COMMAND_R.variant(
    "cohere2", at_layers=(), options=("logit_scale", *WINDOWS[:2]), window_period=4, rope_on_windows_only=True
)


def dense_layers_rotate(spec: Spec, read: Reader) -> Spec:
    """The dense layers before the layers with experts rotate, with a window or without."""
    dense = read.size("leading_dense_block_count", least=0)
    layers = (replace(layer, rope=0) if i < dense else layer for i, layer in enumerate(spec.layers))
    return replace(spec, layers=tuple(layers))


COHERE2_MOE = COHERE2.variant(
    "cohere2moe", requires=("expert_count",), states=("leading_dense_block_count",), ignored_keys=WINDOWS[2:],
    full_layer="first", whole_rotation=True, next_token="states", norm="stated",
    routing=Routing(
        options=STATED, gating="sigmoid", normalize=False, shared_width="counted", bias="no",
        mean_with_shared=True,
    ),
    output="auto", adjust=dense_layers_rotate,
)  # fmt: skip
