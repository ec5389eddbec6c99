"""DeepSeek-V4's attention: one key head, whose keys are its values; a window, and compressed blocks of
tokens."""

from __future__ import annotations

import math

import numpy as np

from oxillama.reference.attention import View, attend
from oxillama.reference.blocks_of_tokens import chosen_blocks, normed, pooled, split, turned
from oxillama.reference.floats import F32
from oxillama.reference.kv import store
from oxillama.reference.rotation import Rotation
from oxillama.reference.rows import norm
from oxillama.reference.source import Source
from oxillama.reference.sparse import attend_to_lists


def block_keys(
    source: Source, name: str, h: np.ndarray, size: int, rotation: Rotation, eps: float
) -> np.ndarray:
    """float32 (blocks, width): pooled, normed and rotated by the first position; blocks of 4 overlap."""
    values, logits = source.linear(f"{name}_kv", h), source.linear(f"{name}_gate", h)
    logits = logits + source.vector(f"{name}_ape.weight")[np.arange(len(h)) % size]
    weight = source.vector(f"{name}_norm.weight")
    values, logits = split(values, size), split(logits, size)
    if size == 4:
        width = len(weight)
        before, low = np.zeros_like(values[:1, :, :width]), np.full_like(values[:1, :, :width], -3e38)
        parts = []
        for x, first in ((values, before), (logits, low)):
            earlier = np.concatenate([first, x[:-1, :, :width]]) if len(x) else x[:, :, :width]
            parts.append(np.concatenate([earlier, x[:, :, width:]], axis=1))
        values, logits = parts
    keys = normed(pooled(values, logits), eps, weight)[:, None]
    return turned(keys, np.arange(len(keys)) * size, rotation, last=True)[:, 0]


def attention(
    source: Source,
    block: str,
    h: np.ndarray,
    rotations: list[Rotation],
    eps: float,
    kv_type: str,
    onto: np.ndarray | None = None,
) -> np.ndarray:
    """The attention block for h (n, n_embd)."""
    n, i = len(h), int(block.split(".")[1])
    heads, dim = (
        source.per_layer("attention.head_count", source.n_layers)[i],
        source.shape(f"{block}.attn_kv.weight")[1],
    )
    for key in (
        "attention.key_length",
        "attention.q_lora_rank",
        "attention.output_lora_rank",
        "attention.value_length",
    ):
        source.key(key)
    size, window = source.key("attention.compress_ratios")[i], source.key("attention.sliding_window")
    rotation, places = rotations[1 if size else 0], np.arange(n)
    short = norm(source.linear(f"{block}.attn_q_a", h), eps, source.vector(f"{block}.attn_q_a_norm.weight"))
    q = norm(source.linear(f"{block}.attn_q_b", short).reshape(n, heads, dim), eps)
    raw = norm(source.linear(f"{block}.attn_kv", h), eps, source.vector(f"{block}.attn_kv_a_norm.weight"))
    q, raw = (turned(x, places, rotation, last=True) for x in (q, raw[:, None]))
    sinks, scale = source.vector(f"{block}.attn_sinks.weight"), 1 / math.sqrt(dim)
    if not size:
        attended = attend(q, store(raw, raw, kv_type), scale, View(window=window, sinks=sinks))
    else:
        keys = block_keys(source, f"{block}.attn_compressor", h, size, rotation, eps)
        blocks = [np.arange((row + 1) // size) for row in range(n)]
        if size == 4:
            blocks = choice(source, block, h, short, rotation, eps, kv_type)
        both = np.concatenate([raw, keys[:, None]])
        lists = [
            np.concatenate([n + chosen, np.arange(max(0, row + 1 - window), row + 1)])
            for row, chosen in enumerate(blocks)
        ]
        attended = attend_to_lists(q, store(both, both, kv_type), scale, lists, View(sinks=sinks))
    attended = turned(attended, places, rotation, last=True, back=True)
    groups = source.key("attention.output_group_count")
    parts = np.ascontiguousarray(attended.reshape(n, groups, -1).swapaxes(0, 1))
    narrow = source.row_groups(f"{block}.attn_output_a", parts)
    return source.linear(f"{block}.attn_output_b", narrow, onto=onto)


def choice(
    source: Source, block: str, h: np.ndarray, short: np.ndarray, rotation: Rotation, eps: float, kv_type: str
) -> list[np.ndarray]:
    """The blocks of 4 that each row sees, chosen by keys of their own."""
    heads, width, most = (
        source.key(f"attention.indexer.{name}") for name in ("head_count", "key_length", "top_k")
    )
    keys = block_keys(source, f"{block}.indexer_compressor", h, 4, rotation, eps)
    queries = source.linear(f"{block}.indexer.attn_q_b", short).reshape(len(h), heads, width)
    queries = turned(queries, np.arange(len(h)), rotation, last=True)
    weights = source.linear(f"{block}.indexer.proj", h) * F32((width * heads) ** -0.5)
    return chosen_blocks(queries, weights, keys, 4, most, kv_type)
