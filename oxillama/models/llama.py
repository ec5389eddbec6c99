"""The llama family and its near relatives: RMS norms, rotary grouped-query attention, gated SiLU."""

from oxillama.modelfile import ModelFile
from oxillama.models.spec import Family, register

LLAMA = register(
    Family(
        "llama",
        refuses={
            "expert_count": (0,),
            "expert_used_count": (0,),
            "attention.sliding_window": (0,),
            "attention.clamp_kqv": (0.0,),
            "attention.causal": (True,),
            "rope.scaling.attn_factor": (1.0,),
            "logit_scale": (0.0,),
        },
    )
)

# Qwen2 is Llama with the other rotary pairing; its biases on q, k and v come with the tensors.
QWEN2 = register(LLAMA.derive("qwen2", rope="neox"))


def of_file(family: Family, file: ModelFile) -> Family:
    """Llama 4's exceptions, as llama.cpp knows them: a window of 0 leaves attention plain, and the model with
    128 experts has no head norms."""
    if file.get(f"{family.name}.attention.sliding_window", int, -1) == 0:
        family = family.derive(family.name, no_rope_every=0, chunk=0, query_temperature=0.0)
    if file.get(f"{family.name}.expert_count", int) == 128:
        family = family.derive(family.name, head_norm=False)
    return family


# Llama 4 has experts, and two kinds of attention: three layers of four rotate, norm q and k, and see no
# further back than the last multiple of 8192; the fourth does none of that, but sharpens far queries.
LLAMA4 = register(
    LLAMA.derive(
        "llama4",
        experts=True,
        no_rope_every=4,
        chunk=8192,
        head_norm=True,
        query_temperature=0.1,
        adjust=of_file,
        refuses={
            key: harmless
            for key, harmless in (LLAMA.refuses or {}).items()
            if not key.startswith(("expert_", "attention.sliding_window"))
        }
        | {"attention.scale": (0.0,), "attention.sliding_window_pattern": (4,)},
    )
)
