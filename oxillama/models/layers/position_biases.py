"""Biases of attention scores by the distance of positions: learned ones from a table, and ALiBi's."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from oxillama.models.rope import log_of

FARTHEST = 128
"""The distance from which on T5's biases are the same."""


def distance_biases(table: np.ndarray) -> np.ndarray:
    """float32 (heads, 2 * 128 + 1): biases by the distance of a key from the query, from -128 to 128.

    Args:
        table: float32 (buckets, heads). Half of the buckets are for keys behind the query. Half of those are
            for one distance each, the others for ranges that grow (Raffel et al., T5, 2020).
    """
    half = len(table) // 2
    near = half // 2
    buckets = []
    for distance in range(-FARTHEST, FARTHEST + 1):
        d = abs(distance)
        steps = 0.0 if d < near else log_of(d / near) / log_of(FARTHEST / near) * (half - near)
        bucket = d if d < near else min(half - 1, near + int(steps + 1e-9))
        buckets.append(bucket + (half if distance > 0 else 0))
    return np.ascontiguousarray(table[buckets].T)


def alibi_slopes(n_heads: int, max_bias: float) -> np.ndarray:
    """float32 (heads,): decrease of a score per position of distance (Press et al., 2022); for heads that are
    not a power of two as in llama.cpp."""
    n = 1 << (n_heads.bit_length() - 1)
    exponents = [
        -max_bias * (h + 1) / n if h < n else -max_bias * (2 * (h - n) + 1) / (2 * n) for h in range(n_heads)
    ]
    return np.array([exp2(e) for e in exponents], np.float32)


def exp2(x: float) -> float:
    """2^x, correctly rounded: the same bits on every machine."""
    return float(Decimal(2) ** Decimal(x))
