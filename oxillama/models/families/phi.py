"""The Phi family."""

from __future__ import annotations

from oxillama.models.families.gpt import ROTATING
from oxillama.models.families.llama import LLAMA
from oxillama.models.family import Routing
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec

PHI2 = ROTATING.variant("phi2", residual="parallel", ffn_norm="", output="own")


def listed_windows(spec: Spec, read: Reader) -> Spec:
    """The window counts only in files that list its layers; others state one that no layer has."""
    return spec if read.is_array("attention.sliding_window_pattern") else spec.each_layer(window=0)


PHI3 = LLAMA.variant(
    "phi3", options=("attention.sliding_window", "attention.sliding_window_pattern"), rope="neox",
    longrope=True, gate="fused", routing=None, adjust=listed_windows,
)  # fmt: skip

PHI_MOE = PHI3.variant(
    "phimoe", options=(), requires=("expert_count",), norm_bias="yes", gate="pair", routing=Routing(),
    output="own",
)  # fmt: skip
