"""Feed-forward blocks with experts; outputs are added in the order of the experts' numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from oxillama.reference.floats import F32, fma, softplus
from oxillama.reference.rows import ACTIVATIONS, limited_gate, norm, normalized, route, situ, softmax
from oxillama.reference.source import Source, Unsupported

GATINGS = {0: None, 1: "softmax", 2: "sigmoid", 3: "chosen", 4: "sqrt_softplus"}
"""Gatings by ``expert_gating_func``; 0: the family's."""


def mixture_of_experts(
    source: Source,
    block: str,
    h: np.ndarray,
    out: np.ndarray,
    shared: Callable[[np.ndarray, np.ndarray | None], np.ndarray],
    seen: np.ndarray,
) -> np.ndarray:
    """out (n, d) + weight * expert(h) for each expert of a row, fused, one by one.

    ``shared`` computes the shared expert, or the dense block parallel to the experts, and adds it to its
    second argument; used if the file has it.
    ``seen`` : the router's input.
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
    bias = source.optional(
        f"{block}.exp_probs_b" + (".bias" if source.has(f"{block}.exp_probs_b.bias") else "")
    )
    name = f"{block}.ffn_down_exps.scale"
    factors = source.optional(name) if "ffn_down_exps" in facts.unscaled else None
    # expert -> (row, weight) pairs
    chosen: list[list[tuple[int, np.float32]]] = [[] for _ in range(n_experts)]
    table = token_table(source, f"{block}.ffn_gate_tid2eid.weight", used)
    for row, logits in enumerate(source.linear(f"{block}.ffn_gate_inp", seen)):
        experts, weights = route(
            logits, used, gating, bias=bias, groups=groups, kept=kept, normalize=normalize, scale=scale
        )
        if table is not None:
            experts = np.sort(table[source.tokens[row]])
            weights = np.sqrt(softplus(logits[experts]))
            weights = normalized(weights) if normalize else weights
            weights = weights * F32(scale)
        weights = weights if factors is None else weights * factors[experts]
        for expert, weight in zip(experts, weights):
            chosen[expert].append((row, weight))
    take_experts(source, block)
    is_latent = bool(source.key("moe_latent_size", 0) or source.key("expert_latent_length", 0))
    given = source.linear(f"{block}.ffn_latent_down", h) if is_latent else h
    halved = facts.mean_with_shared and source.has(f"{block}.ffn_up_shexp.weight")
    total = np.zeros_like(given) if is_latent or halved else out.copy()
    for expert, pairs in enumerate(chosen):
        if pairs:
            rows, shares = np.array([row for row, _ in pairs]), np.array([weight for _, weight in pairs])
            if facts.scales_input:
                y = one_expert(source, block, expert, given[rows] * shares[:, None], rows)
                total[rows] = total[rows] + y
            else:
                y = one_expert(source, block, expert, given[rows], rows)
                total[rows] = fma(y, shares[:, None], total[rows])
    if halved:
        return out + shared(h, total) * F32(0.5)
    middle = source.optional(f"{block}.ffn_routed_norm.weight")
    if is_latent and middle is not None:
        total = norm(total, source.key("attention.layer_norm_rms_epsilon"), middle)
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


def token_table(source: Source, name: str, used: int) -> np.ndarray | None:
    """int32 (tokens, used): the experts of each token; None: the router chooses (DeepSeek-V4)."""
    if not source.has(name):
        return None
    source.used_tensors.add(name)
    return source.file.data(name).view("<i4").reshape(-1, used)


def dense_and_experts(
    source: Source,
    block: str,
    x: np.ndarray,
    eps: float,
    feed_forward: Callable[[str, np.ndarray, np.ndarray | None], np.ndarray],
) -> np.ndarray:
    """norm1(dense(norm(x))) + norm2(experts(norm3(x))); the router reads (x / rms(x)) * vector (Gemma 4).

    ``feed_forward`` computes the dense block (ending "") or a shared expert ("_shexp").
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


def take_experts(source: Source, block: str, ending: str = "exps") -> None:
    """Mark the matrices of all experts as used, even if a text chooses only some of them."""
    for part in ("gate", "up", "down", "gate_up"):
        for kind in ("weight", "bias", "scale", "input_scale"):
            name = f"{block}.ffn_{part}_{ending}.{kind}"
            if source.has(name):
                source.used_tensors.add(name)
                source.multiplied.add(name)


def value_experts(source: Source, block: str, h: np.ndarray) -> np.ndarray:
    """float32 (n, width): the values of all heads, sum of weight * SiLU(W h) over a few experts, in order."""
    used = source.key("attention.value_expert_used_count")
    gating = GATINGS[source.key("expert_gating_func", 0)] or "sigmoid"
    name, n_experts = f"{block}.attn_v_exps", source.key("attention.value_expert_count")
    normalize = source.key("expert_weights_norm", False)
    scale, bias = source.key("expert_weights_scale") or 1.0, source.optional(f"{block}.attn_v_gate.bias")
    logits = source.matrix(f"{block}.attn_v_gate.weight").times(h)
    logits = source.adapted(f"{block}.attn_v_gate.weight", h, logits)
    shares = np.zeros(logits.shape, F32)
    for row, each in enumerate(logits):
        chosen, weights = route(each, used, gating, bias=bias, normalize=normalize, scale=scale)
        shares[row, chosen] = weights
    out = np.zeros((len(h), source.shape(f"{name}.weight")[1]), F32)
    for expert in range(n_experts):
        at = np.flatnonzero(shares[:, expert])
        if not len(at):
            continue
        y = ACTIVATIONS["silu"](source.linear(name, h[at], expert, positions=at))
        out[at] = fma(y, shares[at, expert, None], out[at])
    return out


def chunk_experts(source: Source, block: str, seen: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out (n, d) plus the chunk experts' outputs for y, the experts' (Grove MoE, 2025).

    A row uses the chunks of its best experts' groups, each weighted by the probability of the *expert* with
    the chunk's number for each time that it is chosen; the weights' sum is 1. ``seen`` : the router's input.
    """
    n_experts, group = source.key("expert_count"), source.key("experts_per_group")
    source.key("expert_chunk_feed_forward_length")
    scale, n_chunks = F32(source.key("expert_group_scale")), n_experts // group
    used = source.per_layer("expert_used_count", source.n_layers)[int(block.split(".")[1])]
    shares = np.zeros((len(y), n_chunks), F32)
    for row, logits in enumerate(source.linear(f"{block}.ffn_gate_inp", seen)):
        probability, total = softmax(logits), F32(0)
        for expert in np.argsort(-logits, kind="stable")[: min(used, n_chunks)]:
            shares[row, expert // group] += F32(1)
        shares[row] *= probability[:n_chunks]
        for share in shares[row]:
            total = total + share
        shares[row] = shares[row] / max(total, F32(6.103515625e-5)) * scale
    take_experts(source, block, "chexps")
    out = out.copy()
    for chunk in range(n_chunks):
        at = np.flatnonzero(shares[:, chunk])
        if len(at):
            made = one_expert(source, block, chunk, y[at], at, "chexps")
            out[at] = fma(made, shares[at, chunk][:, None], out[at])
    return out


def one_expert(
    source: Source, block: str, expert: int, h: np.ndarray, at: np.ndarray, kind: str = "exps"
) -> np.ndarray:
    """float32 (n, d): the output of one expert for rows h at the positions ``at`` (n,)."""

    def product(name: str, x: np.ndarray) -> np.ndarray:
        return source.linear(f"{block}.ffn_{name}_{kind}", x, expert, positions=at)

    if source.has(f"{block}.ffn_gate_up_exps.weight"):
        gates, up = np.split(product("gate_up", h), 2, axis=1)
    elif not source.has(f"{block}.ffn_gate_exps.weight"):
        return product("down", ACTIVATIONS[source.facts.activation](product("up", h)))
    else:
        gates, up = product("gate", h), product("up", h)
    limits = source.per_layer("swiglu_clamp_exp", source.n_layers, 0.0)
    limit, first = limits[int(block.split(".")[1])], source.facts.limits_gates
    activation = source.key("hidden_activation", source.facts.activation)
    return product("down", gated(source, gates, up, limit, first, activation))


def gated(
    source: Source, gates: np.ndarray, up: np.ndarray, limit: float, first: bool, activation: str
) -> np.ndarray:
    """The activated gates times ups."""
    if source.facts.activation == "situ":
        bounds = (source.key(f"activation.situ_{key}", 0.0) for key in ("beta", "linear_beta"))
        return situ(gates, up, *bounds)
    return limited_gate(activation, gates, up, limit, first)
