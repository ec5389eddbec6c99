"""Hyper-connections (Zhu et al., 2024): streams of hidden states that all blocks read and write.

Streams are float32 (n, streams, d). The numbers c = W norm(all streams) * scale + base of a block are the
weights of its input, the factors of its output, and perhaps a matrix by which the streams mix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.reference.floats import F32, exp, fma, total
from oxillama.reference.rows import ACTIVATIONS, norm
from oxillama.reference.source import Source


def begin(source: Source, x: np.ndarray) -> np.ndarray:
    """Copies of the embeddings x (n, d)."""
    return np.repeat(x[:, None], source.key("hyper_connection.count"), axis=1)


def mixed(
    streams: np.ndarray,
    weights: np.ndarray,
    added: np.ndarray | None = None,
    factors: np.ndarray | None = None,
) -> np.ndarray:
    """float32 (n, outputs, d): sum over s in order of weights (n, outputs, s) * stream s, then + factors (n,
    outputs) * added (n, d); all fused."""
    out = np.zeros((len(streams), weights.shape[1], streams.shape[2]), F32)
    for s in range(streams.shape[1]):
        out = fma(streams[:, None, s], weights[:, :, s, None], out)
    if added is not None and factors is not None:
        out = fma(added[:, None], factors[:, :, None], out)
    return out


def numbers(source: Source, name: str, streams: np.ndarray, eps: float) -> np.ndarray:
    """c, float32 (n, numbers)."""
    n = streams.shape[1]
    c = source.linear(f"{name}_fn", norm(streams.reshape(len(streams), -1), eps))
    scale = source.vector(f"{name}_scale.weight")
    scale = np.repeat(scale, [n, n, n * n][: len(scale)])
    shifted: np.ndarray = c * scale + source.vector(f"{name}_base.weight")
    return shifted


def read(source: Source, c: np.ndarray, streams: np.ndarray) -> np.ndarray:
    """float32 (n, d): the sum of the streams, weighted by sigmoid(c) + epsilon."""
    epsilon = F32(source.key("hyper_connection.epsilon"))
    weights = ACTIVATIONS["sigmoid"](c[:, : streams.shape[1]]) + epsilon
    return mixed(streams, weights[:, None])[:, 0]


def divided(x: np.ndarray, axis: int, least: float) -> np.ndarray:
    """x divided by its sums over an axis, in order, plus ``least``."""
    found: np.ndarray = x / np.expand_dims(total(np.moveaxis(x, axis, 0)) + F32(least), axis)
    return found


def balanced(c: np.ndarray, epsilon: float, rounds: int) -> np.ndarray:
    """Matrices (n, from, to) whose rows and columns almost sum to 1 (Sinkhorn and Knopp, 1967)."""
    x = divided(exp(c - c.max(axis=2, keepdims=True)), 2, 0.0) + F32(epsilon)
    for i in range(rounds):
        x = divided(x, 2, epsilon) if i else x
        x = divided(x, 1, epsilon)
    return x


def write(source: Source, c: np.ndarray, streams: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The streams after a block's output y (n, d)."""
    n, epsilon = streams.shape[1], source.key("hyper_connection.epsilon")
    rounds = source.key("hyper_connection.sinkhorn_iterations", 0)
    factors = ACTIVATIONS["sigmoid"](c[:, n : 2 * n])
    if not rounds:
        magnitude = source.key("hyper_connection.magnitude")
        mix = np.broadcast_to(np.eye(n, dtype=F32), (len(y), n, n))
        return mixed(streams, mix, y, factors * F32(magnitude) + F32(epsilon))
    mix = balanced(c[:, 2 * n :].reshape(-1, n, n), epsilon, rounds).swapaxes(1, 2)
    return mixed(streams, mix, y, factors * F32(2))


def connected_layer(
    source: Source,
    block: str,
    streams: np.ndarray,
    eps: float,
    mixer: Callable[[np.ndarray], np.ndarray],
    feed_forward: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """The streams after a layer."""
    for name, run in (("attn", mixer), ("ffn", feed_forward)):
        c = numbers(source, f"{block}.hc_{name}", streams, eps)
        h = norm(read(source, c, streams), eps, source.vector(f"{block}.{name}_norm.weight"))
        streams = write(source, c, streams, run(h))
    return streams


def end(source: Source, streams: np.ndarray, eps: float) -> np.ndarray:
    """float32 (n, d): a weighted sum of the streams, or their mean."""
    if source.has("output_hc_fn.weight"):
        return read(source, numbers(source, "output_hc", streams, eps), streams)
    n = streams.shape[1]
    return mixed(streams, np.full((len(streams), 1, n), 1 / n, F32))[:, 0]
