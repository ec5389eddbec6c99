"""Decoders with gates of attended values: Laguna, Spark 2.5, Muse Glimmer, K2-Horizon."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.deepseek import STATED
from oxillama.models.families.llama import LLAMA
from oxillama.models.families.sparse import PLAIN, SHARED, listed_windows
from oxillama.models.family import WINDOWS, Routing
from oxillama.models.metadata import Reader
from oxillama.models.read_experts import GATINGS, MAX_EXPERTS
from oxillama.models.sizes import Experts
from oxillama.models.spec import Spec

LOCAL = (*WINDOWS, "rope.dimension_count_swa")

# Laguna: a windowed layer rotates more of a head, without scaling; gates are of heads or of their elements.
LAGUNA = PLAIN.variant(
    "laguna", options=LOCAL, states=("leading_dense_block_count",), window_period=4, full_layer="first",
    local_rope="plain", attn_gate="auto", gate_activation="softplus",
    routing=Routing(
        options=(*STATED, SHARED), gating="sigmoid", normalize=False, shared_width="expert",
        bias="yes",
    ),
)  # fmt: skip

# Spark 2.5: heads of queries and of keys differ from layer to layer.
SPARK = LLAMA.variant(
    "spark2_5", options=LOCAL, requires=("attention.sliding_window_pattern",), rope="neox", attn_gate="head",
    activation="gelu", routing=None, adjust=listed_windows,
)  # fmt: skip

# Muse Glimmer: norms around the blocks, rotation where there are windows.
MUSE_GLIMMER = LLAMA.variant(
    "muse-glimmer", options=(*WINDOWS, "final_logit_softcapping", "logit_scale"),
    requires=("attention.sliding_window", "logit_scale"), embd_norm=True, plain_embd_norm=True,
    attn_post_norm=("post_attention_norm",), ffn_post_norm=("post_ffw_norm",), post_norm_eps=1e-8,
    window_period=4, rope_on_windows_only=True, local_rope="plain", qk_norm="head", attn_gate="elements",
    final_soft_cap=30.0, routing=None, output="own",
)  # fmt: skip


def value_experts(spec: Spec, read: Reader) -> Spec:
    """Norms of slices, and experts that make the values of the layers behind the dense ones."""
    groups, n = (
        read.size(f"attention.{key}", usual, least=0)
        for key, usual in (("group_norm_groups", 1), ("value_expert_count", 0))
    )
    divides = groups >= 1 and not spec.n_embd % groups
    read.expect(divides, "attention.group_norm_groups", f"a divisor of {spec.n_embd}", groups)
    spec = replace(spec, norm_groups=groups)
    if not n:
        return spec
    used = read.size("attention.value_expert_used_count")
    dense = read.size("leading_dense_block_count", 0, least=0)
    wanted = f"up to {MAX_EXPERTS}, and at least the {used} that a token uses"
    read.expect(used <= n <= MAX_EXPERTS, "attention.value_expert_count", wanted, n)
    gating = GATINGS.get(read.size("expert_gating_func", 0, least=0), "sigmoid")
    sizes = Experts(
        n_experts=n,
        shared_width=0,
        gating=gating,
        normalize=read.flag("expert_weights_norm", False),
        scale=read.factor("expert_weights_scale"),
    )
    counts = [used if i >= dense else 0 for i in range(spec.n_layers)]
    return replace(spec.with_layers(value_experts=counts), value_experts=sizes)


K2_HORIZON = PLAIN.variant(
    "k2-horizon", requires=(), ignored_keys=("moe_every_n_layers",), qk_norm="heads", qk_norm_optional=True,
    attn_gate="elements", attn_gate_optional=True, gate_activation="softplus2",
    routing=Routing(
        options=(*STATED, SHARED), gating="sigmoid", normalize=False, shared_width="counted",
    ),
    adjust=value_experts,
)  # fmt: skip
