"""References of the recurrent mixers: float64, a token and a head at a time, from the papers' formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Model = Any
"""`tests.references.transformer.Reference`: weights ``w``, ``get`` for metadata, ``linear``, ``norm``."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def conv(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x (n, channels), weight (channels, taps)."""
    taps = weight.shape[1]
    wide = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return np.array([(wide[t : t + taps] * weight.T).sum(axis=0) for t in range(len(x))])


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)


def eps_of(m: Model) -> float:
    return float(m.get("attention.layer_norm_rms_epsilon", m.get("attention.layer_norm_epsilon", 0.0)))


def mamba(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    inner, n, rank = (m.get(f"ssm.{key}", 0) for key in ("inner_size", "state_size", "time_step_rank"))
    x, z = np.split(h @ m.w[f"{block}.ssm_in.weight"].T, 2, axis=1)
    x = silu(conv(x, m.w[f"{block}.ssm_conv1d.weight"]) + m.w[f"{block}.ssm_conv1d.bias"])
    parts = np.split(x @ m.w[f"{block}.ssm_x.weight"].T, [rank, rank + n], axis=1)
    if m.name == "jamba" or m.get("ssm.dt_b_c_rms", False):
        weights = [m.w.get(f"{block}.ssm_{name}_norm.weight", 1.0) for name in ("dt", "b", "c")]
        parts = [rms(part, eps_of(m)) * weight for part, weight in zip(parts, weights)]
    low, b, c = parts
    dt = np.logaddexp(0, m.linear(f"{block}.ssm_dt", low))
    state, out = np.zeros((inner, n)), []
    for t in range(len(h)):
        decay = np.exp(dt[t][:, None] * m.w[f"{block}.ssm_a"])
        state = state * decay + (dt[t] * x[t])[:, None] * b[t]
        out.append(state @ c[t] + m.w[f"{block}.ssm_d"] * x[t])
    return (np.array(out) * silu(z)) @ m.w[f"{block}.ssm_out.weight"].T


def mamba2(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    inner, n, heads = (m.get(f"ssm.{key}", 0) for key in ("inner_size", "state_size", "time_step_rank"))
    groups, dim, rows = m.get("ssm.group_count", 1), inner // heads, len(h)
    channels = inner + 2 * groups * n
    z, xbc, dt = np.split(h @ m.w[f"{block}.ssm_in.weight"].T, [inner, inner + channels], axis=1)
    xbc = silu(conv(xbc, m.w[f"{block}.ssm_conv1d.weight"]) + m.w.get(f"{block}.ssm_conv1d.bias", 0.0))
    x, b, c = np.split(xbc, [inner, inner + groups * n], axis=1)
    b, c = b.reshape(rows, groups, n), c.reshape(rows, groups, n)
    dt = np.logaddexp(0, dt + m.w[f"{block}.ssm_dt.bias"])
    out = np.zeros((rows, heads, dim))
    for head in range(heads):
        state, g = np.zeros((dim, n)), head // (heads // groups)
        for t in range(rows):
            now = x[t, head * dim : (head + 1) * dim]
            state = state * np.exp(dt[t, head] * m.w[f"{block}.ssm_a"][head])
            state = state + dt[t, head] * np.outer(now, b[t, g])
            out[t, head] = state @ c[t, g] + m.w[f"{block}.ssm_d"][head] * now
    y = (out.reshape(rows, inner) * silu(z)).reshape(rows, groups, -1)
    if f"{block}.ssm_norm.weight" in m.w:
        y = rms(y, eps_of(m)) * m.w[f"{block}.ssm_norm.weight"].reshape(groups, -1)
    return y.reshape(rows, inner) @ m.w[f"{block}.ssm_out.weight"].T


def plamo2(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    """PLaMo 2's: Mamba's projections, Mamba-2's memory, a head at a time."""
    inner, n, heads = (m.get(f"ssm.{key}", 0) for key in ("inner_size", "state_size", "time_step_rank"))
    w, rows, dim = m.w, len(h), inner // heads
    by_head = m.linear(f"{block}.ssm_in", h).reshape(rows, heads, 2, dim)
    z, x = (
        by_head[:, :, 0],
        silu(conv(by_head[:, :, 1].reshape(rows, inner), w[f"{block}.ssm_conv1d.weight"])),
    )
    parts = np.split(m.linear(f"{block}.ssm_x", x), [n, 2 * n], axis=1)
    b, c, low = (
        rms(part, eps_of(m)) * w[f"{block}.ssm_{name}_norm"] for part, name in zip(parts, ("b", "c", "dt"))
    )
    dt, out = np.logaddexp(0, m.linear(f"{block}.ssm_dt", low)), np.zeros((rows, heads, dim))
    for head in range(heads):
        state, now = np.zeros((dim, n)), x.reshape(rows, heads, dim)[:, head]
        for t in range(rows):
            state = state * np.exp(dt[t, head] * w[f"{block}.ssm_a"][head])
            state = state + dt[t, head] * np.outer(now[t], b[t])
            out[t, head] = state @ c[t] + w[f"{block}.ssm_d"][head] * now[t]
    return m.linear(f"{block}.ssm_out", (out * silu(z)).reshape(rows, inner))


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    """(n, values): one head of the gated delta rule.

    q, k (n, keys), v (n, values), decay (n, 1 or keys), beta (n,).
    """
    state, out = np.zeros((k.shape[1], v.shape[1])), []
    for t in range(len(q)):
        state = decay[t][:, None] * state
        state = state + np.outer(k[t], beta[t] * (v[t] - k[t] @ state))
        out.append(q[t] @ state)
    return np.array(out)


def unit(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)


def delta(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    """Gated delta net, a head at a time."""
    w, rows = m.w, len(h)
    dim, keys, heads = (m.get(f"ssm.{key}", 0) for key in ("state_size", "group_count", "time_step_rank"))
    shared = heads // keys
    if f"{block}.ssm_in.weight" in w:
        parts = m.linear(f"{block}.ssm_in", h).reshape(rows, keys, -1)
        q, k, v, z = np.split(parts, np.cumsum([dim, dim, shared * dim]), axis=2)
        qkv = np.concatenate([part.reshape(rows, -1) for part in (q, k, v)], axis=1)
        z = z.reshape(rows, -1)
    else:
        qkv, z = m.linear(f"{block}.attn_qkv", h), m.linear(f"{block}.attn_gate", h)
    if f"{block}.ssm_ba.weight" in w:
        both = m.linear(f"{block}.ssm_ba", h).reshape(rows, keys, 2, shared)
        beta, alpha = both[:, :, 0].reshape(rows, -1), both[:, :, 1].reshape(rows, -1)
    else:
        beta, alpha = m.linear(f"{block}.ssm_beta", h), m.linear(f"{block}.ssm_alpha", h)
    qkv = silu(conv(qkv, w[f"{block}.ssm_conv1d.weight"]))
    q, k, v = np.split(qkv.reshape(rows, -1, dim), [keys, 2 * keys], axis=1)
    q, k = unit(q, eps_of(m)), unit(k, eps_of(m))
    decay = np.exp(np.logaddexp(0, alpha + w[f"{block}.ssm_dt.bias"]) * w[f"{block}.ssm_a"])
    out = []
    for j in range(heads):
        key = j // shared if m.name == "qwen3next" else j % keys
        o = delta_rule(q[:, key], k[:, key], v[:, j], decay[:, j, None], sigmoid(beta[:, j])) / np.sqrt(dim)
        out.append(rms(o, eps_of(m)) * w[f"{block}.ssm_norm.weight"])
    return m.linear(f"{block}.ssm_out", np.concatenate(out, axis=1) * silu(z))


def kda(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    """Kimi's delta attention, a head at a time."""
    w, heads, dim = m.w, m.model.n_heads, m.get("kda.head_dim", 0)

    def mixed(part: str) -> np.ndarray:
        taps = w[f"{block}.ssm_conv1d_{part}.weight"].reshape(heads * dim, -1)
        return silu(conv(m.linear(f"{block}.attn_{part}", h), taps)).reshape(len(h), heads, dim)

    q, k, v = unit(mixed("q"), eps_of(m)), unit(mixed("k"), eps_of(m)), mixed("v")
    steps = m.linear(f"{block}.ssm_f_b", m.linear(f"{block}.ssm_f_a", h)) + w[f"{block}.ssm_dt.bias"]
    a = w[f"{block}.ssm_a"].reshape(heads, 1)
    decay = np.exp(np.logaddexp(0, steps).reshape(len(h), heads, dim) * a)
    beta = sigmoid(m.linear(f"{block}.ssm_beta", h))
    gate = sigmoid(m.linear(f"{block}.ssm_g_b", m.linear(f"{block}.ssm_g_a", h)))
    out = []
    for j in range(heads):
        o = delta_rule(q[:, j], k[:, j], v[:, j], decay[:, j], beta[:, j]) / np.sqrt(dim)
        out.append(rms(o, eps_of(m)) * w[f"{block}.ssm_norm.weight"])
    return m.linear(f"{block}.attn_output", np.concatenate(out, axis=1) * gate)


def shortconv(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    b, c, x = np.split(h @ m.w[f"{block}.shortconv.in_proj.weight"].T, 3, axis=1)
    weight = m.w[f"{block}.shortconv.conv.weight"]
    ahead = 0 if m.get("attention.causal", True) else weight.shape[1] // 2
    seen = np.concatenate([b * x, np.zeros((ahead, x.shape[1]))])
    y = c * conv(seen, weight)[ahead:]
    return y @ m.w[f"{block}.shortconv.out_proj.weight"].T


def before(h: np.ndarray) -> np.ndarray:
    """Each row's predecessor less the row."""
    return np.concatenate([np.zeros((1, h.shape[1])), h[:-1]]) - h


def group_norm(m: Model, block: str, y: np.ndarray, heads: int) -> np.ndarray:
    y = y.reshape(len(y), heads, -1)
    y = (y - y.mean(axis=2, keepdims=True)) / np.sqrt(y.var(axis=2, keepdims=True) + 64e-5)
    return y.reshape(len(y), -1) * m.w[f"{block}.time_mix_ln.weight"] + m.w[f"{block}.time_mix_ln.bias"]


def rwkv6(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    w, name = m.w, f"{block}.time_mix"
    dim, rows, more = m.get("wkv.head_size", 1), len(h), before(h)
    heads = h.shape[1] // dim
    low = np.tanh((h + more * w[f"{name}_lerp_x.weight"].reshape(-1)) @ w[f"{name}_w1.weight"].T)
    mixed = []
    for i, part in enumerate(np.split(low, 5, axis=1)):
        share = part @ w[f"{name}_w2.weight"][i].T + w[f"{name}_lerp_fused.weight"][i].reshape(-1)
        mixed.append(h + more * share)
    decay = m.linear(f"{name}_decay_w2", np.tanh(m.linear(f"{name}_decay_w1", mixed[0])))
    decay = np.exp(-np.exp(decay + w[f"{name}_decay.weight"]))
    k, v = m.linear(f"{name}_key", mixed[1]), m.linear(f"{name}_value", mixed[2])
    r, gate = m.linear(f"{name}_receptance", mixed[3]), silu(m.linear(f"{name}_gate", mixed[4]))
    out, u = np.zeros_like(h), w[f"{name}_first.weight"].reshape(-1)
    for head in range(heads):
        at, state = slice(head * dim, (head + 1) * dim), np.zeros((dim, dim))
        for t in range(rows):
            now = np.outer(k[t, at], v[t, at])
            out[t, at] = r[t, at] @ (state + u[at][:, None] * now)
            state = decay[t, at][:, None] * state + now
    return m.linear(f"{name}_output", group_norm(m, block, out, heads) * gate)


def rwkv7(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    w, name = m.w, f"{block}.time_mix"
    dim, rows, more = m.get("wkv.head_size", 1), len(h), before(h)
    heads = h.shape[1] // dim
    xr, xw, xk, xv, xa, xg = (h + more * share.reshape(-1) for share in w[f"{name}_lerp_fused.weight"])

    def low(c: str, x: np.ndarray, curve: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return m.linear(f"{name}_{c}2", curve(m.linear(f"{name}_{c}1", x))) + w.get(
            f"{name}_{c}0.weight", 0.0
        )

    def plain(x: np.ndarray) -> np.ndarray:
        return x

    decay = np.exp(-0.606531 * sigmoid(low("w", xw, np.tanh)))
    r, k, v = m.linear(f"{name}_receptance", xr), m.linear(f"{name}_key", xk), m.linear(f"{name}_value", xv)
    if block == "blk.0":
        m.first_value = v
    else:
        v = v + (m.first_value - v) * sigmoid(low("v", xv, plain))
    a = sigmoid(low("a", xa, plain))
    unit = (k * w[f"{name}_k_k.weight"]).reshape(rows, heads, dim)
    unit = (unit / np.linalg.norm(unit, axis=2, keepdims=True)).reshape(rows, -1)
    k = k * (1 + (a - 1) * w[f"{name}_k_a.weight"])
    out, bonus = np.zeros_like(h), np.zeros_like(h)
    for head in range(heads):
        at, state = slice(head * dim, (head + 1) * dim), np.zeros((dim, dim))
        for t in range(rows):
            gone = -unit[t, at] @ state
            state = decay[t, at][:, None] * state + np.outer(k[t, at], v[t, at])
            state = state + np.outer(unit[t, at] * a[t, at], gone)
            out[t, at] = r[t, at] @ state
            bonus[t, at] = (r[t, at] * k[t, at] * w[f"{name}_r_k.weight"][at]).sum() * v[t, at]
    y = (group_norm(m, block, out, heads) + bonus) * low("g", xg, sigmoid)
    return m.linear(f"{name}_output", y)


def channel_mix(m: Model, block: str, h: np.ndarray) -> np.ndarray:
    name, more = f"{block}.channel_mix", before(h)
    k = m.linear(f"{name}_key", h + more * m.w[f"{name}_lerp_k.weight"].reshape(-1))
    y = m.linear(f"{name}_value", np.maximum(k, 0) ** 2)
    if f"{name}_receptance.weight" in m.w:
        y = y * sigmoid(m.linear(f"{name}_receptance", h + more * m.w[f"{name}_lerp_r.weight"].reshape(-1)))
    return y


MIXERS = {"mamba": mamba, "mamba2": mamba2, "shortconv": shortconv, "rwkv6": rwkv6, "rwkv7": rwkv7}
MIXERS |= {"delta": delta, "kda": kda, "plamo2": plamo2}
