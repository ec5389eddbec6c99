"""Streams of hidden states with gates of low rank, and embeddings of n-grams (Qwen 3.8).

Streams are float32 (n, streams, d).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.reference.connections import mixed
from oxillama.reference.floats import F32, fma
from oxillama.reference.rows import ACTIVATIONS, norm
from oxillama.reference.source import Source


def read(source: Source, name: str, streams: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray | None]:
    """The input of a block (n, d), and the factors (n, streams) of its output, or None."""
    rows, n, _ = streams.shape
    source.key("hyper_connection.low_rank")
    z = norm(streams, eps, source.vector(f"{name}_norm.weight").reshape(n, -1)).reshape(rows, -1)
    low = source.linear(f"{name}_down", z) * F32(1 / n)
    gates = source.linear(f"{name}_up", ACTIVATIONS["silu"](low))
    factors = None
    if source.has(f"{name}_inject.weight"):
        factors = ACTIVATIONS["sigmoid"](source.linear(f"{name}_inject", z) * F32(1 / n)) * F32(2)
    gated = (ACTIVATIONS["sigmoid"](gates) * z).reshape(streams.shape)
    return mixed(gated, np.full((rows, 1, n), 1 / n, F32))[:, 0], factors


def gated_layer(
    source: Source,
    block: str,
    streams: np.ndarray,
    eps: float,
    tokens: np.ndarray,
    mixer: Callable[[np.ndarray], np.ndarray],
    feed_forward: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """The streams after a layer."""
    if int(block.split(".")[1]) in list(source.key("ple.layers", ())):
        streams = streams + ngram_terms(source, block, streams, tokens, eps)
    for name, run in (("attn", mixer), ("ffn", feed_forward)):
        h, factors = read(source, f"{block}.hc_{name}", streams, eps)
        assert factors is not None
        streams = fma(run(h)[:, None], factors[:, :, None], streams)
    return streams


def ngram_rows(source: Source, tokens: np.ndarray) -> np.ndarray:
    """int64 (n, heads): rows of the table for each token's n-grams."""
    n, heads, eos = (source.key(f"ple.{name}") for name in ("ngram_size", "heads_per_ngram", "eos_token_id"))
    multipliers, sizes, offsets = (
        [int(value) for value in source.key(f"ple.{name}")]
        for name in ("layer_multipliers", "head_vocab_sizes", "head_offsets")
    )
    found = []
    for at in range(len(tokens)):
        context = [int(tokens[at])]
        for back in range(1, n):
            ended = back > at or (back > 1 and context[-1] == eos) or int(tokens[at - back]) == eos
            context.append(eos if ended else int(tokens[at - back]))
        row, mixed_bits = [], context[0] * multipliers[0] % 2**64
        for length in range(2, n + 1):
            mixed_bits ^= context[length - 1] * multipliers[length - 1] % 2**64
            for k in range(heads):
                head = (length - 2) * heads + k
                row.append(mixed_bits % sizes[head] + offsets[head])
        found.append(row)
    return np.array(found)


def ngram_terms(
    source: Source, block: str, streams: np.ndarray, tokens: np.ndarray, eps: float
) -> np.ndarray:
    """float32 (n, streams, d): what the embeddings of n-grams add."""
    rows, n, d = streams.shape
    numbers = ngram_rows(source, tokens)
    e = source.embeddings("per_layer_token_embd.weight", numbers.reshape(-1)).reshape(rows, -1)
    of_key, of_query, of_conv = (
        source.vector(f"{block}.ple_norm_{name}.weight").reshape(n, d) for name in ("key", "query", "conv")
    )
    key = norm(source.linear(f"{block}.ple_key", e).reshape(streams.shape), eps, of_key)
    products = key.astype(np.float64) * norm(streams, eps, of_query)
    scores = (np.cumsum(products, axis=2)[:, :, -1] / np.sqrt(d)).astype(F32)
    shares = ACTIVATIONS["sigmoid"](np.sign(scores) * np.sqrt(np.maximum(np.abs(scores), F32(1e-6))))
    values = shares[:, :, None] * source.linear(f"{block}.ple_value", e)[:, None]
    normed = norm(values, eps, of_conv).reshape(rows, -1)
    taps, apart = source.vector(f"{block}.ple_conv1d.weight"), source.key("ple.ngram_size")
    source.key("ple.conv_kernel")
    total = np.zeros_like(normed)
    for k in range(taps.shape[1]):
        back = (taps.shape[1] - 1 - k) * apart
        total = total + taps[:, k] * np.pad(normed, ((back, 0), (0, 0)))[:rows]
    found: np.ndarray = values + ACTIVATIONS["silu"](total).reshape(streams.shape)
    return found
