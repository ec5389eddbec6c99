"""Cohere's Command R: parallel blocks after one layer norm without bias, scaled logits."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.spec import Spec


def plus_norms(spec: Spec, read: Reader) -> Spec:
    """Command R+, with 64 layers, norms each head of q and k."""
    return replace(
        spec, family=spec.family.derive(spec.family.name, qk_norm="heads" if spec.n_layers >= 64 else "")
    )


COMMAND_R = register(
    LLAMA.derive(
        "command-r",
        options=("logit_scale",),
        norm="layer",
        residual="parallel",
        ffn_norm="",
        routing=None,
        output="tied",
    ),
    plus_norms,
)

# Three layers of four have a window and rotate; the fourth has neither.
COHERE2 = register(
    COMMAND_R.derive(
        "cohere2",
        options=("logit_scale", *WINDOWS[:2]),
        window_period=4,
        rope_on_windows_only=True,
    )
)
