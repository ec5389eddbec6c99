"""Feed-forward blocks with experts, whose outputs are added in the order of the experts' numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from oxillama.reference.floats import F32, fma
from oxillama.reference.rows import ACTIVATIONS, limited_gate, norm, route
from oxillama.reference.source import Source, Unsupported

GATINGS = {0: None, 1: "softmax", 2: "sigmoid", 3: "chosen"}
"""``expert_gating_func``: 0 for that of the family."""


def mixture_of_experts(
    source: Source,
    block: str,
    h: np.ndarray,
    out: np.ndarray,
    shared: Callable[[np.ndarray, np.ndarray | None], np.ndarray],
    seen: np.ndarray,
) -> np.ndarray:
    """out (n, d) + weight * expert(h) for each expert of a row, fused, one after the other.

    ``shared`` computes the shared expert, or the dense block beside the experts, added to something or not;
    it is used if the file has it.
    ``seen`` is what the router reads.
    """
    facts = source.facts
    if facts.gating is None:
        raise Unsupported(f"reference: {source.name}: no statement of its experts")
    n_experts = source.key("expert_count")
    gating = GATINGS[source.key("expert_gating_func", 0)] or facts.gating
    normalize = source.key("expert_weights_norm", facts.normalize)
    layer, scale = int(block.split(".")[1]), source.key("expert_weights_scale") or 1.0
    used = source.per_layer("expert_used_count", source.n_layers)[layer]
    groups, kept = source.key("expert_group_count") or 1, source.key("expert_group_used_count") or 1
    bias = source.optional(f"{block}.exp_probs_b.bias")
    name = f"{block}.ffn_down_exps.scale"
    factors = source.optional(name) if "ffn_down_exps" in facts.unscaled else None
    # of each expert: rows, weights
    chosen: list[list[tuple[int, np.float32]]] = [[] for _ in range(n_experts)]
    for row, logits in enumerate(source.linear(f"{block}.ffn_gate_inp", seen)):
        experts, weights = route(
            logits, used, gating, bias=bias, groups=groups, kept=kept, normalize=normalize, scale=scale
        )
        weights = weights if factors is None else weights * factors[experts]
        for expert, weight in zip(experts, weights):
            chosen[expert].append((row, weight))
    take_experts(source, block)
    is_latent = bool(source.key("moe_latent_size", 0))
    given = source.linear(f"{block}.ffn_latent_down", h) if is_latent else h
    total = np.zeros_like(given) if is_latent else out.copy()
    for expert, pairs in enumerate(chosen):
        if pairs:
            rows, shares = np.array([row for row, _ in pairs]), np.array([weight for _, weight in pairs])
            if facts.scales_input:
                y = one_expert(source, block, expert, given[rows] * shares[:, None], rows)
                total[rows] = total[rows] + y
            else:
                y = one_expert(source, block, expert, given[rows], rows)
                total[rows] = fma(y, shares[:, None], total[rows])
    out = source.linear(f"{block}.ffn_latent_up", total, onto=out) if is_latent else total
    if facts.dense_beside == "scaled" and source.has(f"{block}.ffn_up.weight"):
        return shared(h, out) * F32(math.sqrt(0.5))
    if not source.has(f"{block}.ffn_up_shexp.weight"):
        return out
    if not facts.shared_gate:
        return shared(h, out)
    y = shared(h, None)
    share = ACTIVATIONS["sigmoid"](source.linear(f"{block}.ffn_gate_inp_shexp", h))
    return fma(y, share, out)


def dense_and_experts(
    source: Source,
    block: str,
    x: np.ndarray,
    eps: float,
    feed_forward: Callable[[str, np.ndarray, np.ndarray | None], np.ndarray],
) -> np.ndarray:
    """norm1(dense(norm(x))) + norm2(experts(norm3(x))); the router reads x / rms(x) times a vector (Gemma 4).

    ``feed_forward`` computes the dense block (ending "") and a shared expert ("_shexp").
    """
    before, after, before_experts, after_experts = (
        source.vector(f"{block}.{name}.weight")
        for name in ("ffn_norm", "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
    )
    y = norm(feed_forward("", norm(x, eps, before), None), eps, after)
    seen = norm(x, eps, source.vector(f"{block}.ffn_gate_inp.scale") / F32(math.sqrt(x.shape[1])))
    h, shared = norm(x, eps, before_experts), partial(feed_forward, "_shexp")
    routed = mixture_of_experts(source, block, h, np.zeros_like(h), shared, seen)
    found: np.ndarray = y + norm(routed, eps, after_experts)
    return found


def take_experts(source: Source, block: str) -> None:
    """Notes that the matrices of all experts are used, though a text may choose some of them only."""
    for part in ("gate", "up", "down", "gate_up"):
        for kind in ("weight", "bias", "scale", "input_scale"):
            name = f"{block}.ffn_{part}_exps.{kind}"
            if source.has(name):
                source.used_tensors.add(name)
                source.multiplied.add(name)


def one_expert(source: Source, block: str, expert: int, h: np.ndarray, at: np.ndarray) -> np.ndarray:
    """float32 (n, d): the output of one expert for rows h at the positions ``at`` (n,)."""

    def product(name: str, x: np.ndarray) -> np.ndarray:
        return source.linear(f"{block}.ffn_{name}_exps", x, expert, positions=at)

    if source.has(f"{block}.ffn_gate_up_exps.weight"):
        gates, up = np.split(product("gate_up", h), 2, axis=1)
    elif not source.has(f"{block}.ffn_gate_exps.weight"):
        return product("down", ACTIVATIONS[source.facts.activation](product("up", h)))
    else:
        gates, up = product("gate", h), product("up", h)
    limits = source.per_layer("swiglu_clamp_exp", source.n_layers, 0.0)
    return product("down", limited_gate(source.facts.activation, gates, up, limits[int(block.split(".")[1])]))
