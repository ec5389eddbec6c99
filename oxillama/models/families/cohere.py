"""Cohere's Command R: parallel blocks after one layer norm without bias, scaled logits."""

from __future__ import annotations

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS, AtLayers
from oxillama.models.registry import register

COMMAND_R = register(
    LLAMA.derive(
        "command-r",
        options=("logit_scale",),
        norm="layer",
        residual="parallel",
        ffn_norm="",
        routing=None,
        output="tied",
        at_layers=(AtLayers(64, None, qk_norm="heads"),),  # Command R+
    )
)

# Three layers of four have a window and rotate; the fourth has neither.
COHERE2 = register(
    COMMAND_R.derive(
        "cohere2",
        at_layers=(),
        options=("logit_scale", *WINDOWS[:2]),
        window_period=4,
        rope_on_windows_only=True,
    )
)
