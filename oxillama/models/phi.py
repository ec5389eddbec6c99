"""The Phi family."""

from __future__ import annotations

from oxillama.models.family import Routing, register
from oxillama.models.llama import LLAMA, needs_experts

PHI2 = register(
    LLAMA.derive(
        "phi2",
        rope="neox",
        norm="layer",
        norm_bias="yes",
        residual="parallel",
        ffn_norm="",
        gate="none",
        activation="gelu",
        routing=None,
        output="own",
    )
)

# Its window is left alone, as in llama.cpp: files state it for layers that have none.
PHI3 = register(LLAMA.derive("phi3", rope="neox", longrope=True, gate="fused", routing=None))

PHI_MOE = register(
    PHI3.derive("phimoe", norm_bias="yes", gate="pair", routing=Routing(), output="own", adjust=needs_experts)
)
