"""Four streams of hidden states, one of which passes the blocks (AltUp: Baykal et al., 2023; Gemma 3n).

A layer predicts all streams from all, runs its blocks on the first, and corrects each stream by the change.
Streams are float32 (4, n, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from oxillama.reference.floats import F32, tanh, total
from oxillama.reference.rows import norm
from oxillama.reference.source import Source, Unsupported

STREAMS = 4


def lengths(x: np.ndarray) -> np.ndarray:
    """float32 (n, 1): Euclidean norms of rows; squares are added one by one in double."""
    return np.sqrt(np.cumsum(x.astype(np.float64) ** 2, axis=1)[:, -1:]).astype(F32)


def projected(source: Source, name: str, i: int, x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """x times matrix ``i`` of a tensor, each row scaled to the norm in ``target`` (n, 1)."""
    y = source.linear(name, x, i)
    found = lengths(y)
    factors = np.where(found > 0, target / np.where(found > 0, found, F32(1)), F32(0))
    scaled: np.ndarray = y * factors
    return scaled


def begin(source: Source, x: np.ndarray) -> np.ndarray:
    """The streams of embeddings x (n, d): x itself, and three projections with the same norms.

    Raises Unsupported for another number of streams, or another active stream.
    """
    if (source.key("altup.num_inputs", STREAMS), source.key("altup.active_idx", 0)) != (STREAMS, 0):
        raise Unsupported(f"reference: {source.name}: no statement of its altup.num_inputs or active_idx")
    target = lengths(x)
    return np.stack([x, *(projected(source, "altup_proj", i, x, target) for i in range(STREAMS - 1))])


def end(source: Source, streams: np.ndarray) -> np.ndarray:
    """float32 (n, d): the mean of the first stream and projections of the others with the same norms."""
    target, names = lengths(streams[0]), "altup_unembd_proj"
    others = (projected(source, names, i, streams[i + 1], target) for i in range(STREAMS - 1))
    mean: np.ndarray = total((streams[0], *others)) * F32(1 / STREAMS)
    return mean


def modes(source: Source, block: str, x: np.ndarray, eps: float) -> np.ndarray:
    """float32 (n, 4): tanh(W norm(x) / d)."""
    h = norm(x, eps, source.vector(f"{block}.altup_router_norm.weight")) * F32(1 / x.shape[1])
    return tanh(source.linear(f"{block}.altup_router", h))


def predict(source: Source, block: str, streams: np.ndarray, eps: float) -> np.ndarray:
    """Stream o + sum over i of c[o, i] * stream i, in order; c is a product of the first stream's modes."""
    c = source.linear(f"{block}.altup_predict_coef", modes(source, block, streams[0], eps))
    return np.stack(
        [
            streams[o] + total(c[:, STREAMS * o + i, None] * streams[i] for i in range(STREAMS))
            for o in range(STREAMS)
        ]
    )


def correct(source: Source, block: str, predicted: np.ndarray, x: np.ndarray, eps: float) -> np.ndarray:
    """Each predicted stream + (1 + c[i]) * (x - predicted first stream); x (n, d): the blocks' output."""
    c = source.linear(f"{block}.altup_correct_coef", modes(source, block, x, eps))
    change = x - predicted[0]
    return np.stack([predicted[i] + (F32(1) + c[:, i, None]) * change for i in range(STREAMS)])


def low_rank_map(source: Source, block: str, h: np.ndarray, eps: float) -> np.ndarray:
    """LAuReL (Menghani et al., 2024): norm(W2 W1 h) + h."""
    y = source.linear(f"{block}.laurel_r", source.linear(f"{block}.laurel_l", h))
    found: np.ndarray = norm(y, eps, source.vector(f"{block}.laurel_post_norm.weight")) + h
    return found


def streamed_layer(
    source: Source,
    block: str,
    streams: np.ndarray,
    eps: float,
    mixer: Callable[[np.ndarray], np.ndarray],
    feed_forward: Callable[[np.ndarray], np.ndarray],
    from_input: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """The streams after a layer.

    Args:
        mixer, feed_forward, from_input: attention, the dense block, and the term of the layer's own
            embeddings.
    """

    def normed(name: str, x: np.ndarray) -> np.ndarray:
        return norm(x, eps, source.vector(f"{block}.{name}.weight"))

    predicted = predict(source, block, streams, eps)
    h = normed("attn_norm", predicted[0])
    x = predicted[0] + normed("post_attention_norm", mixer(h))
    x = (x + low_rank_map(source, block, h, eps)) * F32(math.sqrt(0.5))
    x = x + normed("post_ffw_norm", feed_forward(normed("ffn_norm", x)))
    found = correct(source, block, predicted, x, eps)
    y = from_input(found[0] * source.vector(f"{block}.altup_correct_scale.weight"))
    found[1:] += normed("post_norm", y)
    return found
