"""Reads the experts of a model from its file's metadata, and checks them."""

from __future__ import annotations

from oxillama.models.family import Family
from oxillama.models.metadata import Reader
from oxillama.models.sizes import Experts
from oxillama.models.spec import LayerSpec

MAX_EXPERTS = 1024
GATINGS = {1: "softmax", 2: "sigmoid", 3: "softmax_after_topk", 4: "sqrt_softplus"}
"""``expert_gating_func``, by llama.cpp's numbers."""


def expert_layers(read: Reader, family: Family, n_layers: int) -> list[bool]:
    """Whether each layer has experts."""
    assert family.routing is not None
    if family.routing.layers == "router":
        return [f"blk.{i}.ffn_gate_inp.weight" in read.file.tensors for i in range(n_layers)]
    dense = read.size("leading_dense_block_count", 0, least=0)
    step = read.size("interleave_moe_layer_step", 1, least=0)
    if "moe_every_n_layers" in family.all_options:
        every = read.size("moe_every_n_layers", 0, least=0)
        return [every > 0 and i % every == 1 for i in range(n_layers)]
    return [i >= dense and step > 0 and (i + 1) % step == 0 for i in range(n_layers)]


def read_used(read: Reader, family: Family, widths: list[int]) -> tuple[list[int], list[int]]:
    """The experts that a token uses and the width of an expert, both for each layer; 0 without experts."""
    n_layers, has = len(widths), expert_layers(read, family, len(widths))
    if family.routing is None or not any(has):
        return [0] * n_layers, [0] * n_layers
    n, counts = read.size("expert_count"), read.per_layer("expert_used_count", n_layers, least=0)
    are_there = all(0 < count <= n for here, count in zip(has, counts) if here)
    read.expect(are_there, "expert_used_count", f"1 to {n} experts", counts)
    parts = counts if family.routing.width == "ff/used" else [1] * n_layers
    stated = read.per_layer("expert_feed_forward_length", n_layers, 0, least=0)
    found = [stated[i] or widths[i] // parts[i] if has[i] else 0 for i in range(n_layers)]
    return [count if here else 0 for here, count in zip(has, counts)], found


def read_experts(read: Reader, family: Family, layers: tuple[LayerSpec, ...]) -> Experts | None:
    """The experts of the model, checked; None where no layer has experts."""
    routing, first = family.routing, next((layer for layer in layers if layer.experts), None)
    if routing is None or first is None:
        return None
    n, used = read.size("expert_count"), max(layer.experts for layer in layers)
    read.expect(n <= MAX_EXPERTS, "expert_count", f"at most {MAX_EXPERTS}", n)
    shared = read.size("expert_shared_feed_forward_length", 0, least=0)
    if routing.shared_width in ("expert", "counted"):
        count = read.size("expert_shared_count", int(routing.shared_width == "expert"), least=0)
        shared = shared or first.expert_width * count
        shared = 0 if routing.shared_width == "counted" and not count else shared
    elif routing.shared_width == "ff" and not shared:
        shared = first.n_ff
    number = read.size("expert_gating_func", 0, least=0)
    known = f"one of {', '.join(map(str, GATINGS))}"
    read.expect(number in (0, *GATINGS), "expert_gating_func", known, number)
    groups = read.size("expert_group_count", 1, least=0) or 1
    kept = read.size("expert_group_used_count", 1, least=0) or 1
    gating = GATINGS.get(number, routing.gating)
    if groups > 1:
        key, found = "expert_group_count", f"{used} of {n} experts from {kept} of {groups} groups"
        are_enough = not n % groups and kept <= groups and used <= kept * (n // groups)
        read.expect(are_enough, key, "groups of enough experts", found)
        by_logits = gating == "softmax_after_topk" or routing.scales_input
        read.expect(not by_logits, key, "1 group for experts chosen by their logits", groups)
    return Experts(
        n_experts=n,
        shared_width=shared,
        gating=gating,
        normalize=read.flag("expert_weights_norm", routing.normalize),
        scale=read.factor("expert_weights_scale"),
        groups=groups,
        groups_used=kept,
    )
