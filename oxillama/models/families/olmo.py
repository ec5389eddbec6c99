"""OLMo (norms without parameters), OLMo 2 (norms after the blocks only, norms of whole q and k), OLMoE."""

from __future__ import annotations

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import WINDOWS, Routing

OLMO = LLAMA.variant("olmo", options=("attention.clamp_kqv",), norm="layer", norm_weight=False, routing=None)

OLMO2 = LLAMA.variant(
    "olmo2", options=WINDOWS[:2], rope="neox", routing=None, attn_norm="", ffn_norm="",
    attn_post_norm=("post_attention_norm",), ffn_post_norm=("post_ffw_norm",), qk_norm="row", window_period=4,
    local_rope="plain", output="own",
)  # fmt: skip

# OLMoE norms whole q and k, and does not renormalize the weights of its experts.
OLMOE = LLAMA.variant(
    "olmoe", options=("attention.clamp_kqv",), requires=("expert_count",), rope="neox", qk_norm="row",
    routing=Routing(options=("expert_weights_norm",), normalize=False), output="own",
)  # fmt: skip
