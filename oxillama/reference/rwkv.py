"""RWKV versions 6 and 7: time mixes with a state matrix for each head, and channel mixes.

Both read a mix of each token with the previous one, channel by channel; zeros precede the first token.
"""

from __future__ import annotations

import math

import numpy as np

from oxillama.reference.floats import F32, exp, fma, in_lanes, tree
from oxillama.reference.products import Matrix
from oxillama.reference.rows import ACTIVATIONS, norm
from oxillama.reference.source import Source, Unsupported

GROUP_EPS, DECAY = 64e-5, -0.606531
"""Epsilon of the heads' norm, and the factor -e^-0.5 of version 7's decays."""


def change(h: np.ndarray) -> np.ndarray:
    """float32 (n, d): the previous row minus the row."""
    found: np.ndarray = np.pad(h[:-1], ((1, 0), (0, 0))) - h
    return found


def head_size(source: Source) -> int:
    """The number of channels of a head. Raises Unsupported for a number of shifted tokens other than two."""
    shifted = 1 if source.facts.dense_second else 2
    if source.key("token_shift_count", 2) != shifted:
        raise Unsupported(
            f"reference: {source.name}: no statement of another token_shift_count than {shifted}"
        )
    size: int = source.key("wkv.head_size")
    return size


def low_rank(source: Source, name: str, x: np.ndarray, activation: str = "") -> np.ndarray:
    """second(activation(first x)), with the matrices ``name`` + "1" and ``name`` + "2"."""
    low = source.linear(f"{name}1", x)
    return source.linear(f"{name}2", ACTIVATIONS[activation](low) if activation else low)


def normed(source: Source, block: str, y: np.ndarray) -> np.ndarray:
    """Heads (n, heads, dim) after their layer norm, (n, d)."""
    weight, bias = (source.vector(f"{block}_ln.{part}").reshape(y.shape[1:]) for part in ("weight", "bias"))
    return norm(y, GROUP_EPS, weight, bias, centred=True).reshape(len(y), -1)


def time_mix_6(source: Source, block: str, h: np.ndarray, onto: np.ndarray | None = None) -> np.ndarray:
    """Version 6 (Peng et al., "Eagle and Finch", 2024): y = r (S + u k v); S = w S + k v."""
    d, dim = h.shape[1], head_size(source)
    for key in ("time_mix_extra_dim", "time_decay_extra_dim"):
        source.key(key)
    block, more = f"{block}.time_mix", change(h)
    low = source.linear(f"{block}_w1", h + more * source.vector(f"{block}_lerp_x.weight").reshape(-1))
    parts = np.split(ACTIVATIONS["tanh"](low), 5, axis=1)
    if source.has(f"{block}_lerp_fused.weight"):
        lerps = source.vector(f"{block}_lerp_fused.weight").reshape(5, d)
    else:
        lerps = np.array([source.vector(f"{block}_lerp_{part}.weight").reshape(-1) for part in "wkvrg"])
    shares = source.vector(f"{block}_w2.weight")
    if source.file.tensors[f"{block}_w2.weight"].format.name != "F32":
        shares = shares.astype(np.float16).astype(F32)

    def mixed(which: int) -> np.ndarray:
        matrix = Matrix(d, shares.shape[2], shares[which], None, "")
        found: np.ndarray = (matrix.times(np.ascontiguousarray(parts[which])) + lerps[which]) * more + h
        return found

    w = low_rank(source, f"{block}_decay_w", mixed(0), "tanh") + source.vector(f"{block}_decay.weight")
    w = exp(-exp(w))
    k, v = source.linear(f"{block}_key", mixed(1)), source.linear(f"{block}_value", mixed(2))
    r, gates = source.linear(f"{block}_receptance", mixed(3)), source.linear(f"{block}_gate", mixed(4))
    r, w, k, v = (x.reshape(len(h), -1, dim) for x in (r, w, k, v))
    if source.facts.dense_second:
        return gated_attention(source, block, (r, w, k, v), gates, onto)
    u, out = source.vector(f"{block}_first.weight").reshape(-1, dim), np.empty_like(v)
    memory = np.zeros((dim, *v.shape[1:]), F32)
    for t in range(len(h)):
        y = np.zeros_like(v[t])
        for i in range(dim):
            kv = k[t, :, i, None] * v[t]
            y = fma(r[t, :, i, None], fma(u[:, i, None], kv, memory[i]), y)
            memory[i] = fma(w[t, :, i, None], memory[i], kv)
        out[t] = y
    y = normed(source, block, out) * ACTIVATIONS["silu"](gates)
    return source.linear(f"{block}_output", y, onto=onto)


def gated_attention(
    source: Source,
    block: str,
    parts: tuple[np.ndarray, ...],
    gates: np.ndarray,
    onto: np.ndarray | None,
) -> np.ndarray:
    """Version 6 in place of Qwen's attention: S = w S + (1 - w) k v; y = r S / sqrt(dim); sigmoid gates."""
    r, w, k, v = parts
    n, heads, dim = r.shape
    k, v = (x.repeat(heads // x.shape[1], axis=1) for x in (k, v))
    k, r = k * (F32(1) - w), r * F32(1 / math.sqrt(dim))
    out, memory = np.empty_like(v), np.zeros((dim, heads, dim), F32)
    for t in range(n):
        y = np.zeros_like(v[t])
        for i in range(dim):
            memory[i] = fma(k[t, :, i, None], v[t], w[t, :, i, None] * memory[i])
            y = fma(r[t, :, i, None], memory[i], y)
        out[t] = y
    y = out.reshape(n, -1) * ACTIVATIONS["sigmoid"](gates)
    return source.linear(f"{block}_output", y, onto=onto)


def head_sums(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sums of x y over the last axis, one fused product for each element."""
    sums = np.zeros((*x.shape[:-1], 16), F32)
    for a, b in zip(in_lanes(x), in_lanes(y)):
        sums = fma(a, b, sums)
    return tree(sums)


def time_mix_7(
    source: Source, block: str, h: np.ndarray, first: np.ndarray | None, onto: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Version 7 (Peng et al., "RWKV-7 Goose", 2025): S = w S + k v + b (a S); y = r S.

    Returns the output and the values. Later layers mix their values with ``first``, the values of the
    first layer.
    """
    dim, sigmoid = head_size(source), ACTIVATIONS["sigmoid"]
    for key in ("decay", "iclr", "value_residual_mix", "gate"):
        source.key(f"attention.{key}_lora_rank")
    block, more = f"{block}.time_mix", change(h)
    lerps = source.vector(f"{block}_lerp_fused.weight").reshape(-1, h.shape[1])
    x = [more * lerp + h for lerp in lerps]

    def made(name: str, x: np.ndarray, activation: str = "") -> np.ndarray:
        found: np.ndarray = low_rank(source, f"{block}_{name}", x, activation) + source.vector(
            f"{block}_{name}0.weight"
        )
        return found

    r, k, v = (
        source.linear(f"{block}_{name}", x[i]) for name, i in (("receptance", 0), ("key", 2), ("value", 3))
    )
    w = exp(sigmoid(made("w", x[1], "tanh")) * F32(DECAY))
    if source.has(f"{block}_v1.weight"):
        share = sigmoid(made("v", x[3]))  # the first layer has these tensors, but does not use them
        v = v if first is None else v + (first - v) * share
    values, a = v, sigmoid(made("a", x[4]))
    unit = (k * source.vector(f"{block}_k_k.weight")).reshape(len(h), -1, dim)
    length = np.maximum(np.sqrt(head_sums(unit, unit).astype(np.float64)), float(F32(1e-12)))
    unit = (unit * (1.0 / length).astype(F32)[..., None]).reshape(h.shape)
    ka = k * source.vector(f"{block}_k_a.weight")
    k = k + (a * ka - ka)
    gone, added = (part.reshape(len(h), -1, dim) for part in (-unit, unit * a))
    r, w, k, v = (part.reshape(len(h), -1, dim) for part in (r, w, k, v))
    out, memory = np.empty_like(v), np.zeros((dim, *v.shape[1:]), F32)
    for t in range(len(h)):
        lost, y = np.zeros_like(v[t]), np.zeros_like(v[t])
        for i in range(dim):
            lost = fma(gone[t, :, i, None], memory[i], lost)
        for i in range(dim):
            memory[i] = fma(k[t, :, i, None], v[t], w[t, :, i, None] * memory[i])
            memory[i] = fma(added[t, :, i, None], lost, memory[i])
            y = fma(r[t, :, i, None], memory[i], y)
        out[t] = y
    is_normed = not source.facts.dense_second or source.has(f"{block}_ln.weight")
    y = normed(source, block, out).reshape(v.shape) if is_normed else out
    bonus = head_sums(k, r * source.vector(f"{block}_r_k.weight").reshape(-1, dim))
    y = fma(v, bonus[..., None], y).reshape(h.shape)
    if source.has(f"{block}_g1.weight"):
        y = y * low_rank(source, f"{block}_g", x[5], "sigmoid")
    return source.linear(f"{block}_output", y, onto=onto), values


def channel_mix(source: Source, block: str, h: np.ndarray, onto: np.ndarray | None = None) -> np.ndarray:
    """value(max(0, key x)^2), in version 6 times the sigmoid of a receptance."""
    block, more = f"{block}.channel_mix", change(h)
    keys = source.linear(f"{block}_key", h + more * source.vector(f"{block}_lerp_k.weight").reshape(-1))
    keys = ACTIVATIONS["relu_squared"](keys)
    if not source.has(f"{block}_receptance.weight"):
        return source.linear(f"{block}_value", keys, onto=onto)
    y, lerp = source.linear(f"{block}_value", keys), source.vector(f"{block}_lerp_r.weight").reshape(-1)
    y *= ACTIVATIONS["sigmoid"](source.linear(f"{block}_receptance", h + more * lerp))
    return y if onto is None else onto + y
