"""RWKV: recurrent in both of its blocks, and without attention."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.llama import LLAMA
from oxillama.models.family import Family, register
from oxillama.models.metadata import Reader
from oxillama.models.sizes import RecurrentSizes
from oxillama.models.spec import Spec


def rwkv_sizes(spec: Spec, read: Reader) -> Spec:
    """Heads, ranks of the low-rank matrices, and the layers after which version 6 halves the hidden state."""
    dim, sixth = read.size("wkv.head_size"), spec.family.mixer.startswith("rwkv6")
    heads, norms = spec.n_embd // dim, "auto" if spec.family.feed_forward == "dense" else ""
    read.expect(spec.n_embd % dim == 0, "wkv.head_size", f"a divisor of {spec.n_embd}", dim)
    read.refuse("token_shift_count", (1,) if norms else (2,))
    shared = read.size("attention.head_count_kv", 0, least=0) if norms else 0
    divides = not shared or not heads % shared
    read.expect(divides, "attention.head_count_kv", f"a divisor of {heads}", shared)
    if sixth:
        ranks = {"mix": read.size("time_mix_extra_dim"), "decay": read.size("time_decay_extra_dim")}
    else:
        keys = {"w": "decay", "a": "iclr", "v": "value_residual_mix"}
        ranks = {name: read.size(f"attention.{key}_lora_rank") for name, key in keys.items()}
        ranks["g"] = read.size("attention.gate_lora_rank", 0, least=0)
    every = read.size("rescale_every_n_layers", 0, least=0)
    scales = [0.5 if every and (i + 1) % every == 0 else 1.0 for i in range(spec.n_layers)]
    n, groups = spec.n_embd, shared or heads
    sizes = RecurrentSizes(taps=2, inner=n, n=dim, heads=heads, groups=groups, norms=norms, ranks=ranks)
    return replace(spec.with_layers(scale=scales), recurrent=sizes)


RWKV6 = register(
    Family(
        "rwkv6", options=("rescale_every_n_layers",), rope="none", norm="layer", norm_bias="yes",
        embd_norm=True, ffn_norm="attn_norm_2", mixer="rwkv6", recurrent_mixer="rwkv6", feed_forward="rwkv6",
        output="own",
    ),
    rwkv_sizes,
)  # fmt: skip
RWKV7 = RWKV6.variant(
    "rwkv7", options=(), mixer="rwkv7", recurrent_mixer="rwkv7", feed_forward="rwkv7", adjust=rwkv_sizes
)

# Time mixes in place of Qwen's attention; the other half of a layer is Qwen's.
RWKV6_QWEN2 = LLAMA.variant(
    "rwkv6qwen2", requires=("token_shift_count",), rope="none", norm_bias="auto", mixer="rwkv6qwen2",
    recurrent_mixer="rwkv6qwen2", routing=None, output="own", adjust=rwkv_sizes,
)  # fmt: skip
ARWKV7 = RWKV6_QWEN2.variant(
    "arwkv7", norm_bias="no", mixer="rwkv7", recurrent_mixer="rwkv7", adjust=rwkv_sizes
)
