"""Granite Switch: Granite with adapters that tokens of the text choose."""

from __future__ import annotations

from dataclasses import replace

from oxillama.errors import LoadError
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
        if size > MOST:
            raise LoadError(f"{read.prefix}.adapters.{key}: expected 1 to {MOST}, got {size}")
    for key in ("activate", "substitute"):
        full = f"{read.prefix}.adapters.token_ids_{key}"
        found: list[int] = read.file.get(full, list[int])
        if len(found) != n or not all(0 <= token < spec.n_vocab for token in found):
            raise LoadError(f"{full}: expected {n} tokens below {spec.n_vocab}, got {found!r:.60}")
        lists.append(tuple(found))
    gain = read.number("adapters.router_gain", 15.0)
    switch = Switch(activate=lists[0], substitute=lists[1], rank=rank, gain=gain)
    return granite_rotation(replace(spec, switch=switch), read)


GRANITE_SWITCH = GRANITE.variant(
    "graniteswitch", requires=("adapters.count",), needs=("attn_qkv.weight",), refuses=FACTORS,
    whole_rotation=True, text_only=True, routing=None,
    unadapted=("attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), adjust=adapters_of_tokens,
)  # fmt: skip
