"""The llama family and its near relatives: RMS norms, rotary grouped-query attention, gated SiLU."""

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
