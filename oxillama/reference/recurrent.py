"""Recurrent token mixers: a causal convolution, and the scans of Mamba and Mamba-2, token by token."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from oxillama.reference.floats import F32, exp, fma, over_logistic, softplus
from oxillama.reference.rows import ACTIVATIONS, norm
from oxillama.reference.source import Source


def causal_conv(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, silu: bool) -> np.ndarray:
    """float32 (n, channels): bias, then one fused product for each tap, oldest first.

    Args:
        x: (n, channels); rows before the first are 0.
        weight: (channels, taps), newest tap last.
    """
    taps = weight.shape[1]
    wide = np.pad(x, ((taps - 1, 0), (0, 0)))
    out = np.zeros_like(x) if bias is None else np.broadcast_to(bias, x.shape)
    for t in range(taps):
        out = fma(weight[:, t], wide[t : t + len(x)], out)
    return over_logistic(out, out) if silu else out


def selective_scan(
    x: np.ndarray, dt: np.ndarray, a: np.ndarray, d: np.ndarray, b: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """h = h exp(dt A) + dt x B, y = C h + D x, with a step dt = softplus(dt) for each channel.

    Args:
        x, dt: (tokens, channels).
        a: (channels, n).
        d: (channels,).
        b, c: (tokens, n).
    """
    memory, out = np.zeros(a.shape[::-1], F32), np.empty_like(x)
    for t, steps in enumerate(softplus(dt)):
        dx, y = steps * x[t], d * x[t]
        for i in range(len(memory)):
            memory[i] = fma(dx, b[t, i], memory[i] * exp(steps * a[:, i]))
            y = fma(memory[i], c[t, i], y)
        out[t] = y
    return out


def head_scan(
    x: np.ndarray, dt: np.ndarray, decay: np.ndarray, d: np.ndarray, b: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """`selective_scan` with one step and decay per head. Four partial sums over the state, added in pairs.

    Args:
        x: (tokens, heads, dim).
        dt, decay: (tokens, heads).
        d: (heads,).
        b, c: (tokens, heads, n).
    """
    n, out = b.shape[2], np.empty_like(x)
    memory = np.zeros((n, *x.shape[1:]), F32)
    for t in range(len(x)):
        dx, keep = dt[t, :, None] * x[t], decay[t, :, None]
        sums = [d[:, None] * x[t], *(np.zeros_like(x[t]) for _ in range(3))]
        for i in range(n):
            at = i % 4 if i < n // 4 * 4 else 0
            memory[i] = fma(dx, b[t, :, i, None], memory[i] * keep)
            sums[at] = fma(memory[i], c[t, :, i, None], sums[at])
        out[t] = (sums[0] + sums[1]) + (sums[2] + sums[3])
    return out


def mamba(
    source: Source, block: str, h: np.ndarray, eps: float, onto: np.ndarray | None = None
) -> np.ndarray:
    """Mamba (Gu and Dao, 2023); dt, B and C are normed with the file's weights, or without weights."""
    inner, n, rank = (source.key(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank"))
    is_normed, _ = source.key("ssm.dt_b_c_rms", False), source.key("ssm.conv_kernel")
    xz = source.linear(f"{block}.ssm_in", h)
    bias = source.vector(f"{block}.ssm_conv1d.bias")
    x = causal_conv(xz[:, :inner], source.vector(f"{block}.ssm_conv1d.weight"), bias, True)
    parts = np.split(source.linear(f"{block}.ssm_x", x), [rank, rank + n], axis=1)
    for i, name in enumerate(("dt", "b", "c")):
        weight = source.optional(f"{block}.ssm_{name}_norm.weight")
        if is_normed or weight is not None:
            parts[i] = norm(parts[i], eps, weight)
    low, b, c = parts
    dt = source.linear(f"{block}.ssm_dt", np.ascontiguousarray(low))
    y = selective_scan(x, dt, source.vector(f"{block}.ssm_a"), source.vector(f"{block}.ssm_d"), b, c)
    z = xz[:, inner:]
    return source.linear(f"{block}.ssm_out", y * over_logistic(z, z), onto=onto)


def mamba2(
    source: Source, block: str, h: np.ndarray, eps: float, onto: np.ndarray | None = None
) -> np.ndarray:
    """Mamba-2 (Dao and Gu, 2024), with a norm of each group's gated outputs."""
    names = ("inner_size", "state_size", "time_step_rank", "group_count", "conv_kernel")
    inner, n, heads, groups, _ = (source.key(f"ssm.{name}") for name in names)
    zxbcdt = source.linear(f"{block}.ssm_in", h)
    z, xbc, dt = np.split(zxbcdt, [inner, 2 * inner + 2 * groups * n], axis=1)
    name = f"{block}.ssm_conv1d.bias"
    bias = source.optional(name) if source.facts.attends else source.vector(name)
    xbc = causal_conv(xbc, source.vector(f"{block}.ssm_conv1d.weight"), bias, True)
    x, b, c = np.split(xbc, [inner, inner + groups * n], axis=1)
    b, c = (np.repeat(part.reshape(len(h), groups, n), heads // groups, axis=1) for part in (b, c))
    dt = softplus(dt + source.vector(f"{block}.ssm_dt.bias"))
    decay = exp(dt * source.vector(f"{block}.ssm_a").reshape(-1))
    d = source.vector(f"{block}.ssm_d").reshape(-1)
    y = head_scan(x.reshape(len(h), heads, -1), dt, decay, d, b, c).reshape(len(h), inner)
    gated = (y * over_logistic(z, z)).reshape(len(h), groups, -1)
    if source.has(f"{block}.ssm_norm.weight") or not source.facts.beside:
        gated = norm(gated, eps, source.vector(f"{block}.ssm_norm.weight").reshape(groups, -1))
    return source.linear(f"{block}.ssm_out", gated.reshape(len(h), -1), onto=onto)


def plamo(
    source: Source, block: str, h: np.ndarray, eps: float, onto: np.ndarray | None = None
) -> np.ndarray:
    """PLaMo 2's mixer: Mamba-2's scan; steps, B and C come from the convolved input, normed."""
    names = ("inner_size", "state_size", "time_step_rank", "group_count", "conv_kernel")
    inner, n, heads, _, _ = (source.key(f"ssm.{name}") for name in names)
    zx = source.linear(f"{block}.ssm_in", h).reshape(len(h), heads, 2, -1)
    z, x = (np.ascontiguousarray(zx[:, :, part]).reshape(len(h), inner) for part in (0, 1))
    x = causal_conv(x, source.vector(f"{block}.ssm_conv1d.weight"), None, True)
    parts = np.split(source.linear(f"{block}.ssm_x", x), [n, 2 * n], axis=1)
    b, c, low = (
        norm(part, eps, source.vector(f"{block}.ssm_{name}_norm"))
        for part, name in zip(parts, ("b", "c", "dt"))
    )
    dt = softplus(source.linear(f"{block}.ssm_dt", low))
    decay, d = exp(dt * source.vector(f"{block}.ssm_a")), source.vector(f"{block}.ssm_d")
    b, c = (np.repeat(part[:, None], heads, axis=1) for part in (b, c))
    y = head_scan(x.reshape(len(h), heads, -1), dt, decay, d, b, c).reshape(len(h), inner)
    return source.linear(f"{block}.ssm_out", y * over_logistic(z, z), onto=onto)


def short_conv(
    source: Source, block: str, h: np.ndarray, eps: float, onto: np.ndarray | None = None
) -> np.ndarray:
    """LFM2's mixer c * conv(b * x), with b, c and x from one matrix. Encoders centre the convolution."""
    source.key("shortconv.l_cache")
    b, c, x = np.split(source.linear(f"{block}.shortconv.in_proj", h), 3, axis=1)
    weight = source.vector(f"{block}.shortconv.conv.weight")
    if source.key("attention.causal", True):
        y = causal_conv(b * x, weight, None, False)
    else:  # a centred convolution, whose products are rounded
        reach = weight.shape[1] // 2
        wide, y = np.pad(b * x, ((reach, reach), (0, 0))), np.zeros_like(x)
        for t in range(weight.shape[1]):
            y = y + weight[:, t] * wide[t : t + len(x)]
    return source.linear(f"{block}.shortconv.out_proj", y * c, onto=onto)


def lightning(
    source: Source, block: str, h: np.ndarray, eps: float, onto: np.ndarray | None = None
) -> np.ndarray:
    """Lightning attention (MiniMax-01, 2025): S = exp(-s) S + k v, y = q S, with a constant s for each
    head."""
    qkv = source.linear(f"{block}.attn_qkv", h)
    i, heads = int(block.split(".")[1]), source.per_layer("attention.head_count", source.n_layers)
    n_heads = heads[i]
    by_head = over_logistic(qkv, qkv).reshape(len(h), n_heads, 3, -1)
    q, k, v = by_head[:, :, 0], by_head[:, :, 1], by_head[:, :, 2]
    falls = 1 - Decimal(i) / max(1, source.n_layers - 1) + Decimal("0.00001")
    slopes = [Decimal(2) ** (Decimal(-8 * (head + 1)) / n_heads) for head in range(n_heads)]
    decay = np.array([float((-slope * falls).exp()) for slope in slopes], F32)[:, None]
    memory, out = np.zeros((q.shape[2], *v.shape[1:]), F32), np.empty_like(v)
    for t in range(len(h)):
        y = np.zeros_like(v[t])
        for j in range(len(memory)):
            memory[j] = fma(k[t, :, j, None], v[t], memory[j] * decay)
            y = fma(q[t, :, j, None], memory[j], y)
        out[t] = y
    y = norm(out.reshape(len(h), -1), eps, source.vector(f"{block}.attn_norm_2.weight"))
    gates = ACTIVATIONS["sigmoid"](source.linear(f"{block}.attn_gate", h))
    return source.linear(f"{block}.attn_output", y * gates, onto=onto)
