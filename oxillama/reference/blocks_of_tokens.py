"""Keys of blocks of tokens, and the choice of blocks that a row sees beside the newest positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.reference.floats import F32, exp, total
from oxillama.reference.kv import store
from oxillama.reference.rotation import Rotation
from oxillama.reference.rows import best, norm, rotate, rotation_table
from oxillama.reference.selector import position_scores
from oxillama.reference.source import Source


def split(x: np.ndarray, size: int) -> np.ndarray:
    """(blocks, size, width): the complete blocks of tokens x (n, width)."""
    return x[: len(x) // size * size].reshape(-1, size, x.shape[1])


def pooled(values: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """(blocks, width): sums over tokens in order of values (blocks, tokens, width), weighted by a softmax of
    logits, channel by channel; a product is rounded before it is added."""
    powers = exp(logits - logits.max(axis=1, keepdims=True))
    found: np.ndarray = total((powers * values).swapaxes(0, 1)) / total(powers.swapaxes(0, 1))
    return found


def normed(x: np.ndarray, eps: float, weight: np.ndarray) -> np.ndarray:
    """The norms of the keys of blocks (blocks, width), of which there may be none."""
    return norm(x, eps, weight) if len(x) else x


def turned(
    x: np.ndarray, positions: np.ndarray, rotation: Rotation, last: bool = False, back: bool = False
) -> np.ndarray:
    """Heads (n, heads, dim) rotated by positions (n,): their first or ``last`` dimensions, forth or
    ``back``."""
    table = rotation_table(positions, rotation.turns, rotation.magnitude)
    if back:
        table[:, 1] = -table[:, 1]
    still = x.shape[2] - 2 * len(rotation.turns) if last else 0
    return np.concatenate([x[..., :still], rotate(x[..., still:], table, rotation.neox)], axis=-1)


def chosen_blocks(
    queries: np.ndarray, weights: np.ndarray, keys: np.ndarray, size: int, most: int, kv_type: str
) -> list[np.ndarray]:
    """The blocks that each row chooses, ascending: the complete blocks with the highest scores."""
    found = []
    if len(keys):
        scores = position_scores(queries, weights, store(keys[:, None], keys[:, None], kv_type))
    for row in range(len(queries)):
        complete = (row + 1) // size
        chosen = np.arange(complete)
        found.append(np.flatnonzero(best(scores[row, :complete], most)) if complete > most else chosen)
    return found


def with_newest(blocks: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """The positions of each row's blocks, and the positions behind its complete blocks."""
    return [
        np.concatenate(
            [
                (chosen[:, None] * size + np.arange(size)).reshape(-1),
                np.arange((row + 1) // size * size, row + 1),
            ]
        )
        for row, chosen in enumerate(blocks)
    ]


def pooled_lists(
    source: Source, block: str, h: np.ndarray, short: np.ndarray, kv_type: str
) -> list[np.ndarray]:
    """The positions that each row sees in GLM-5.3's latent attention; ``short``: the compressed queries."""
    names = ("head_count", "key_length", "kpool", "top_k")
    heads, width, size, most = (source.key(f"attention.indexer.{name}") for name in names)
    source.key("attention.indexer.kpool_select_tail")
    scale, shift = (source.vector(f"{block}.indexer.k_norm.{part}") for part in ("weight", "bias"))
    eps = source.key("attention.layer_norm_epsilon", 0.0)
    keys = norm(source.linear(f"{block}.indexer.attn_k", h), eps, scale, shift, centred=True)
    logits = source.linear(f"{block}.indexer_compressor_gate", h)
    logits = logits + source.vector(f"{block}.indexer_compressor_ape.weight")[np.arange(len(h)) % size]
    weights = source.linear(f"{block}.indexer.proj", h) * F32((width * heads) ** -0.5)
    queries = source.linear(f"{block}.indexer.attn_q_b", short).reshape(len(h), heads, width)
    of_blocks = pooled(split(keys, size), split(logits, size))
    return with_newest(chosen_blocks(queries, weights, of_blocks, size, most // size, kv_type), size)


def mean_lists(
    source: Source, block: str, h: np.ndarray, size: int, rotation: Rotation | None, eps: float, kv_type: str
) -> list[np.ndarray]:
    """The positions that each row sees in Qwen 3.8's attention: a block's key is the mean of its tokens'."""
    heads, width, most = (
        source.key(f"attention.indexer.{name}") for name in ("head_count", "key_length", "top_k")
    )
    raw = split(source.linear(f"{block}.indexer.k_proj", h), size)
    queries = source.linear(f"{block}.indexer.q_proj", h).reshape(len(h), heads, width)
    of_q, of_k = (source.vector(f"{block}.indexer.{part}_norm.weight") for part in "qk")
    means = total(raw.swapaxes(0, 1)) * F32(1 / size)
    keys, queries = normed(means, eps, of_k)[:, None], norm(queries, eps, of_q)
    if rotation is not None:
        keys = turned(keys, np.arange(len(keys)) * size, rotation)
        queries = turned(queries, np.arange(len(h)), rotation)
    ones = np.ones((len(h), heads), F32)
    return with_newest(chosen_blocks(queries, ones, keys[:, 0], size, most // size, kv_type), size)
