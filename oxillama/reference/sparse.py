"""Attention to chosen blocks of positions."""

from __future__ import annotations

import numpy as np

from oxillama.reference.attention import EVERYTHING, View, attend
from oxillama.reference.floats import F32
from oxillama.reference.kv import Stored, store
from oxillama.reference.rotation import Rotation
from oxillama.reference.rows import best, norm
from oxillama.reference.source import Source


def head_blocks(
    source: Source, block: str, h: np.ndarray, rotation: Rotation | None, eps: float, kv_type: str
) -> list[list[np.ndarray]]:
    """The positions that each row sees, ascending, for each key head (MiniMax-M3).

    A block's score is the highest product of a key head's query with the keys of its positions; the newest
    blocks are always chosen.
    """
    keys = ("head_count", "key_length", "top_k", "block_size", "local_blocks")
    heads, width, most, size, local = (source.key(f"attention.indexer.{key}") for key in keys)
    q = source.linear(f"{block}.indexer.q_proj", h).reshape(len(h), heads, width)
    k = source.linear(f"{block}.indexer.k_proj", h)[:, None]
    q, k = (norm(x, eps, source.vector(f"{block}.indexer.{n}_norm.weight")) for x, n in ((q, "q"), (k, "k")))
    if rotation is not None:
        q, k = rotation.apply(q, k)
    scores = store(k, k, kv_type).scores(q, np.arange(len(h)), heads)
    found: list[list[np.ndarray]] = [[] for _ in range(heads)]
    for row in range(len(h)):
        n = row // size + 1
        for head in range(heads):
            tops = [scores[row, head, b * size : min((b + 1) * size, row + 1)].max() for b in range(n)]
            tops[max(0, n - local) :] = [F32(np.inf)] * min(n, local)
            chosen = np.flatnonzero(best(np.array(tops, F32), most))
            at = (chosen[:, None] * size + np.arange(size)).reshape(-1)
            found[head].append(at[at <= row])
    return found


def attend_to_lists(
    q: np.ndarray, kv: Stored, scale: float, lists: list[np.ndarray], view: View = EVERYTHING
) -> np.ndarray:
    """`attend` where each row sees the positions of a list, in the order of the list."""
    rows = [attend(q[i : i + 1], kv.at(at), scale, view) for i, at in enumerate(lists)]
    return np.concatenate(rows)


def attend_by_head(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, lists: list[list[np.ndarray]], kv_type: str
) -> np.ndarray:
    """float32 (n, heads, dim): attention where each key head has lists of its own."""
    group, parts = q.shape[1] // k.shape[1], []
    for head, of_head in enumerate(lists):
        kv = store(k[:, head : head + 1], v[:, head : head + 1], kv_type)
        parts.append(attend_to_lists(q[:, head * group : (head + 1) * group], kv, scale, of_head))
    return np.concatenate(parts, axis=1)
