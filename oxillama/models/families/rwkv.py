"""RWKV: recurrent in both of its blocks, and without attention."""

from __future__ import annotations

from dataclasses import replace

from oxillama.errors import LoadError
from oxillama.models.family import Family
from oxillama.models.metadata import Reader
from oxillama.models.registry import register
from oxillama.models.spec import RecurrentSizes, Spec


def rwkv_sizes(spec: Spec, read: Reader) -> Spec:
    """Heads, ranks of the low-rank matrices, and the layers after which version 6 halves the hidden state."""
    dim, sixth = read.size("wkv.head_size"), spec.family.name == "rwkv6"
    if spec.n_embd % dim:
        raise LoadError(f"{read.prefix}.wkv.head_size: expected a divisor of {spec.n_embd}, got {dim}")
    read.refuse("token_shift_count", (2,))
    if sixth:
        ranks = {"mix": read.size("time_mix_extra_dim"), "decay": read.size("time_decay_extra_dim")}
    else:
        keys = {"w": "decay", "a": "iclr", "v": "value_residual_mix"}
        ranks = {name: read.size(f"attention.{key}_lora_rank") for name, key in keys.items()}
        ranks["g"] = read.size("attention.gate_lora_rank", 0, least=0)
    every = read.size("rescale_every_n_layers", 0, least=0) if sixth else 0
    layers = tuple(
        replace(layer, scale=0.5 if every and (i + 1) % every == 0 else 1.0)
        for i, layer in enumerate(spec.layers)
    )
    ssm = RecurrentSizes(taps=2, inner=spec.n_embd, n=dim, heads=spec.n_embd // dim, ranks=ranks)
    return replace(spec, layers=layers, recurrent=ssm)


RWKV6 = register(
    Family(
        "rwkv6",
        options=("rescale_every_n_layers",),
        rope="none",
        norm="layer",
        norm_bias="yes",
        embd_norm=True,
        ffn_norm="attn_norm_2",
        mixer="rwkv6",
        recurrent_mixer="rwkv6",
        feed_forward="rwkv6",
        output="own",
    ),
    rwkv_sizes,
)
RWKV7 = register(
    RWKV6.derive("rwkv7", options=(), mixer="rwkv7", recurrent_mixer="rwkv7", feed_forward="rwkv7"),
    rwkv_sizes,
)
