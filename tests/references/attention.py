"""Reference of `PagedBatch`: softmax attention with all its options, in float64 and without blocks."""

from __future__ import annotations

from functools import partial

import numpy as np

from oxillama.formats import IQ4_VALUES


def rounded(x: np.ndarray, kv_type: str) -> np.ndarray:
    """float32 as a page of this type holds it, float64. The last axis is one vector."""
    if kv_type == "f32":
        return x.astype(np.float64)
    if kv_type == "f16":
        return x.astype(np.float16).astype(np.float64)
    if kv_type != "bf16":
        round_block = {"q8_0": q8_block, "iq4_nl": table_block}.get(kv_type, partial(linear_block, kv_type))
        blocks = [round_block(x[..., d : d + 32]) for d in range(0, x.shape[-1], 32)]
        return np.concatenate(blocks, axis=-1)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # to the nearest, ties to even
    return up.astype(np.uint32).view(np.float32).astype(np.float64)


def q8_block(x: np.ndarray) -> np.ndarray:
    """Blocks of up to 32 values along the last axis: codes of -127 .. 127 times a scale in half precision."""
    most = np.abs(x).max(axis=-1, keepdims=True)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = (most / np.float32(127)).astype(np.float16).astype(np.float64)
        codes = np.rint(x * (np.float32(127) / most)).astype(np.float64)
        return np.where(scale == 0, 0.0, np.where(np.isfinite(scale), codes * scale, np.nan))


def linear_block(kv_type: str, x: np.ndarray) -> np.ndarray:
    """Blocks of up to 32 values along the last axis as Q4_0, Q4_1, Q5_0 or Q5_1 hold them."""
    n_codes = 32 if kv_type[1] == "5" else 16
    low = x.min(axis=-1, keepdims=True)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if kv_type.endswith("_1"):
            scale, start, offset = (x.max(axis=-1, keepdims=True) - low) / np.float32(n_codes - 1), low, 0
        else:
            at = np.abs(x).argmax(axis=-1)[..., None]
            scale, start, offset = np.take_along_axis(x, at, -1) / np.float32(-n_codes // 2), 0, n_codes // 2
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        codes = np.clip(np.trunc((x - start) * inverse + np.float32(offset + 0.5)), 0, n_codes - 1) - offset
        halves = scale.astype(np.float16).astype(np.float64)
        least = low.astype(np.float16).astype(np.float64) if kv_type.endswith("_1") else 0.0
        found = (codes * halves + least).astype(np.float32).astype(np.float64)
        finite = np.isfinite(halves) & np.isfinite(least) & np.isfinite(x).all(-1, keepdims=True)
        return np.where(finite, found, np.nan)


def table_block(x: np.ndarray) -> np.ndarray:
    """Blocks of up to 32 values along the last axis as IQ4_NL holds them.

    The nearest values first, then the scale of the least squared error, weighted by the squares.
    """
    table = np.array(IQ4_VALUES, np.float32)
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        scale = row[np.abs(row).argmax()] / table[0]
        inverse = np.float32(1) / scale if scale else np.float32(0)
        values = table[(2 * (row * inverse)[:, None] >= table[:-1] + table[1:]).sum(axis=-1)]
        products = squares = np.float32(0)
        for number, value in zip(row, values):
            products += number * number * value * number
            squares += number * number * value * value
        half = np.float16(products / squares if squares > 0 else 0).astype(np.float64)
        rows.append(values * half)
    return np.array(rows).reshape(x.shape)


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    first: int = 0,
    *,
    window: int = 0,
    chunk: int = 0,
    causal: bool = True,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    biases: np.ndarray | None = None,
) -> np.ndarray:
    """One sequence.

    Parameters
    ----------
    q : (rows, heads, key_dim), the rows at positions first, first + 1, ...
    k, v : (positions, kv_heads, key_dim / value_dim)
    window : position j is seen from i only if |i - j| < window
    chunk : position j is seen from i only if both lie in one chunk: i // chunk = j // chunk
    causal : position j is seen from i only if j <= i
    softcap : scores become softcap * tanh(score / softcap)
    sinks : (heads,), one more score, without a value
    slopes : (heads,), scores lose slope * |i - j|
    biases : (heads, 2 reach + 1), scores gain that of j - i, or of the nearest distance that has one

    Returns
    -------
    float64 (rows, heads, value_dim)
    """
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.asarray(a, np.float64), group, axis=1) for a in (k, v))
    out = np.empty((*q.shape[:2], v.shape[2]))
    for row in range(len(q)):
        i, j = first + row, np.arange(len(k))
        seen = (j <= i) | (not causal)
        if window:
            seen &= np.abs(i - j) < window
        if chunk:
            seen &= i // chunk == j // chunk
        j = j[seen]
        scores = np.einsum("hd,phd->hp", q[row].astype(np.float64), k[seen]) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if slopes is not None:
            scores -= np.asarray(slopes, np.float64)[:, None] * np.abs(i - j)
        if biases is not None:
            reach = biases.shape[1] // 2
            scores += np.asarray(biases, np.float64)[:, reach + np.clip(j - i, -reach, reach)]
        most = scores.max(axis=1, keepdims=True)
        if sinks is not None:
            most = np.maximum(most, np.asarray(sinks, np.float64)[:, None])
        weights = np.exp(scores - most)
        total = weights.sum(axis=1, keepdims=True)
        if sinks is not None:
            total += np.exp(np.asarray(sinks, np.float64)[:, None] - most)
        out[row] = np.einsum("hp,phd->hd", weights / total, v[seen])
    return out
