"""Granite Switch: Granite with adapters that tokens of the text choose."""

from __future__ import annotations

from dataclasses import replace

from oxillama.models.families.granite import GRANITE, granite_rotation
from oxillama.models.families.llama import FACTORS
from oxillama.models.metadata import Reader
from oxillama.models.sizes import Switch
from oxillama.models.spec import Spec

MOST = 4096
"""Adapters, and their rank, as in llama.cpp."""


def adapters_of_tokens(spec: Spec, read: Reader) -> Spec:
    """The tokens that choose adapters, and the adapters' sizes."""
    n, rank = read.size("adapters.count"), read.size("adapters.lora_rank")
    lists = []
    for key, size in (("count", n), ("lora_rank", rank)):
        read.expect(size <= MOST, f"adapters.{key}", f"1 to {MOST}", size)
    for key in ("adapters.token_ids_activate", "adapters.token_ids_substitute"):
        found: list[int] = read.get(key, list[int], None)
        are_tokens = len(found) == n and all(0 <= token < spec.n_vocab for token in found)
        read.expect(are_tokens, key, f"{n} tokens below {spec.n_vocab}", f"{found!r:.60}")
        lists.append(tuple(found))
    gain = read.number("adapters.router_gain", 15.0)
    switch = Switch(activate=lists[0], substitute=lists[1], rank=rank, gain=gain)
    return granite_rotation(replace(spec, switch=switch), read)


GRANITE_SWITCH = GRANITE.variant(
    "graniteswitch", requires=("adapters.count",), needs=("attn_qkv.weight",), refuses=FACTORS,
    whole_rotation=True, text_only=True, routing=None,
    unadapted=("attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), adjust=adapters_of_tokens,
)  # fmt: skip
