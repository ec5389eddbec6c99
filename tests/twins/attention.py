"""Twin of `PagedBatch`: softmax(scale q k^T) v over the positions up to each row's own, in float64."""

from __future__ import annotations

import numpy as np


def rounded(x: np.ndarray, kv_type: str) -> np.ndarray:
    """float32 as a page of this type holds it, float64."""
    if kv_type == "f32":
        return x.astype(np.float64)
    if kv_type == "f16":
        return x.astype(np.float16).astype(np.float64)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # to the nearest, ties to even
    return up.astype(np.uint32).view(np.float32).astype(np.float64)


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    first: int = 0,
    window: int | None = None,
    chunk: int | None = None,
) -> np.ndarray:
    """One sequence.

    Parameters
    ----------
    q : (rows, heads, key_dim), the rows at positions first, first + 1, ...
    k, v : (positions, kv_heads, key_dim / value_dim)
    window : position j is seen from i only if i - j < window
    chunk : position j is seen from i only if both lie in one chunk: i // chunk = j // chunk

    Returns
    -------
    float64 (rows, heads, value_dim)
    """
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.asarray(a, np.float64), group, axis=1) for a in (k, v))
    out = np.empty((*q.shape[:2], v.shape[2]))
    for row in range(len(q)):
        i, j = first + row, np.arange(first + row + 1)
        seen = (i - j < (window or i + 1)) & ((i // chunk == j // chunk) if chunk else True)
        scores = np.einsum("hd,phd->hp", q[row].astype(np.float64), k[: i + 1][seen]) * scale
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out[row] = np.einsum("hp,phd->hd", weights, v[: i + 1][seen])
    return out
