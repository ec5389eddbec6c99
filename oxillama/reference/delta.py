"""The gated delta rule of Qwen3-Next and Qwen 3.5 (Yang et al., "Gated Delta Networks", 2024), and Kimi's."""

from __future__ import annotations

import numpy as np

from oxillama.reference.floats import F32, exp, fma, softplus
from oxillama.reference.recurrent import causal_conv
from oxillama.reference.rows import ACTIVATIONS, gate, norm
from oxillama.reference.source import Source


def delta_scan(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    """S = g S; u = beta (v - S^T k); S = S + k u^T; out = S^T q, for each head.

    A sum over key channels is the sum over even channels plus the sum over odd channels.

    Args:
        q, k, v: (tokens, heads, dim).
        beta: (tokens, heads).
        decay: (tokens, heads); or (tokens, heads, dim), one for each key channel, then k is scaled in S^T k.
    """
    by_channel = decay.ndim == 3
    n, out = k.shape[2], np.empty_like(v)
    memory = np.zeros((n, *v.shape[1:]), F32)
    for t in range(len(v)):
        known = [np.zeros_like(v[t]), np.zeros_like(v[t])]
        for i in range(n):
            key = k[t, :, i, None] * decay[t, :, i, None] if by_channel else k[t, :, i, None]
            known[i % 2] = fma(memory[i], key, known[i % 2])
        was = known[0] + known[1]
        left = v[t] - was if by_channel else fma(-decay[t, :, None], was, v[t])
        u = beta[t, :, None] * left
        found = [np.zeros_like(v[t]), np.zeros_like(v[t])]
        for i in range(n):
            keep = decay[t, :, i, None] if by_channel else decay[t, :, None]
            memory[i] = fma(k[t, :, i, None], u, memory[i] * keep)
            found[i % 2] = fma(memory[i], q[t, :, i, None], found[i % 2])
        out[t] = found[0] + found[1]
    return out


def gated_delta(
    source: Source, block: str, h: np.ndarray, eps: float, onto: np.ndarray | None = None
) -> np.ndarray:
    """The token mixer: convolution, normalized q and k, the delta rule, and a norm gated by SiLU(z)."""
    names = ("state_size", "time_step_rank", "group_count", "inner_size", "conv_kernel")
    dim, heads, keys, _, _ = (source.key(f"ssm.{name}") for name in names)
    if source.has(f"{block}.ssm_in.weight"):  # older files: q, k, v and z of one key head after the other
        by_key = source.linear(f"{block}.ssm_in", h).reshape(len(h), keys, -1)
        width = heads // keys * dim
        parts = np.split(by_key, np.cumsum([dim, dim, width]), axis=2)
        *parts, z = (part.reshape(len(h), -1) for part in parts)
        qkv = np.concatenate(parts, axis=1)
    else:
        qkv, z = source.linear(f"{block}.attn_qkv", h), source.linear(f"{block}.attn_gate", h)
    if source.has(f"{block}.ssm_ba.weight"):
        both = source.linear(f"{block}.ssm_ba", h).reshape(len(h), keys, 2, -1)
        beta, steps = both[:, :, 0].reshape(len(h), -1), both[:, :, 1].reshape(len(h), -1)
    else:
        beta, steps = source.linear(f"{block}.ssm_beta", h), source.linear(f"{block}.ssm_alpha", h)
    qkv = causal_conv(qkv, source.vector(f"{block}.ssm_conv1d.weight"), None, True)
    q, k, v = (part.reshape(len(h), -1, dim) for part in np.split(qkv, [keys * dim, 2 * keys * dim], axis=1))
    q = norm(q, eps / dim, np.full(dim, F32(1 / dim)))
    k = norm(k, eps / dim, np.full(dim, F32(dim**-0.5)))
    at = np.arange(heads) % keys if source.facts.interleaved else np.arange(heads) // (heads // keys)
    decay = exp(softplus(steps + source.vector(f"{block}.ssm_dt.bias")) * source.vector(f"{block}.ssm_a"))
    y = delta_scan(q[:, at], k[:, at], v, decay, ACTIVATIONS["sigmoid"](beta))
    y = norm(y, eps, source.vector(f"{block}.ssm_norm.weight")).reshape(len(h), -1)
    return source.linear(f"{block}.ssm_out", gate(source.facts.delta_gate, z, y), onto=onto)


def low_rank_or_whole(source: Source, name: str, h: np.ndarray) -> np.ndarray:
    """h times a matrix of low rank ("_a", then "_b"), or times a whole one ("_a", or without an ending)."""
    x = source.linear(name if source.has(f"{name}.weight") else f"{name}_a", h)
    return source.linear(f"{name}_b", x) if source.has(f"{name}_b.weight") else x


def kimi_delta(
    source: Source, block: str, h: np.ndarray, eps: float, onto: np.ndarray | None = None
) -> np.ndarray:
    """Kimi's delta attention (Kimi Team, "Kimi Linear", 2025): a decay for each key channel of each head."""
    dim, _ = source.key("kda.head_dim"), source.key("ssm.conv_kernel")
    parts = []
    for name in "qkv":
        x = source.linear(f"{block}.attn_{name}", h)
        taps = source.vector(f"{block}.ssm_conv1d_{name}.weight").reshape(x.shape[1], -1)
        parts.append(causal_conv(x, taps, None, True).reshape(len(h), -1, dim))
    least, bound = source.facts.unit_eps or eps, source.key("kda.gate_lower_bound", 0.0)
    source.key("kda.safe_gate")
    q = norm(parts[0], least / dim, np.full(dim, F32(1 / dim)))
    k = norm(parts[1], least / dim, np.full(dim, F32(dim**-0.5)))
    steps, gates = (low_rank_or_whole(source, f"{block}.ssm_{part}", h) for part in "fg")
    beta = ACTIVATIONS["sigmoid"](source.linear(f"{block}.ssm_beta", h))
    a = np.repeat(source.vector(f"{block}.ssm_a").reshape(-1), dim)
    steps = steps + source.vector(f"{block}.ssm_dt.bias")
    powers = ACTIVATIONS["sigmoid"](steps * np.abs(a)) * F32(bound) if bound else softplus(steps) * a
    decay = exp(powers).reshape(parts[1].shape)
    y = norm(delta_scan(q, k, parts[2], decay, beta), eps, source.vector(f"{block}.ssm_norm.weight"))
    y = gate("sigmoid", gates, y.reshape(len(h), -1))
    return source.linear(f"{block}.attn_output", y, onto=onto)
