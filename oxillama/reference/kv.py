"""Keys and values in the cache's representation: rounding to a type, and products with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from oxillama.base.formats import IQ4_VALUES, KV_LAYOUTS, KV_PAIRS
from oxillama.reference.floats import (
    F32,
    MAGIC,
    exp,
    exp_to_bf16,
    fma,
    fused_sum,
    in_pairs,
    to_bf16,
    to_f16,
    to_pair_bf16,
)

KV_BLOCK = 32
"""Dimensions that share a scale."""


@dataclass(frozen=True)
class Stored:
    """The keys and values of a sequence.

    Attributes:
        keys, values: float32 (positions, heads, dim): numbers, or codes if there are scales.
        key_scales, value_scales: float32 (positions, heads, blocks of 32 dimensions) if both types are
            "q8_0"; then codes are multiplied before scales are applied. None: keys and values are numbers.
        paired: both types are "bf16": products take dimensions and positions in pairs, the odd one first, and
            queries and weights are rounded to bf16.
    """

    keys: np.ndarray
    values: np.ndarray
    key_scales: np.ndarray | None = None
    value_scales: np.ndarray | None = None
    paired: bool = False

    def at(self, positions: np.ndarray) -> Stored:
        """The keys and values of some positions (n,)."""
        names = ("keys", "values", "key_scales", "value_scales")
        arrays = {name: array for name in names if (array := getattr(self, name)) is not None}
        return replace(self, **{name: array[positions] for name, array in arrays.items()})

    def scores(self, queries: np.ndarray, at: np.ndarray, group: int) -> np.ndarray:
        """float32 (rows, heads, positions): products of queries with the keys at these positions, one fused
        product for each dimension, in order or in pair order."""
        keys = np.repeat(self.keys[at], group, axis=1).transpose(1, 0, 2)[None]  # (1, heads, positions, dim)
        shape = (*queries.shape[:2], len(at))
        if self.paired:
            return _products(keys, to_pair_bf16(queries), in_pairs(queries.shape[2]), shape)
        if self.key_scales is None:
            return _products(keys, queries, range(queries.shape[2]), shape)
        scales = np.repeat(self.key_scales[at], group, axis=1).transpose(1, 0, 2)[None]
        out = np.zeros(shape, F32)
        for b in range(scales.shape[3]):
            dims = range(KV_BLOCK * b, min(KV_BLOCK * (b + 1), queries.shape[2]))
            out = fma(_products(keys, queries, dims, shape), scales[..., b], out)
        return out

    def weights(self, scores: np.ndarray) -> np.ndarray:
        """e^score, for scores relative to the maximum."""
        return to_bf16(exp_to_bf16(scores)) if self.paired else exp(scores)

    def add_values(
        self, out: np.ndarray, weights: np.ndarray, seen: np.ndarray, at: np.ndarray, group: int
    ) -> np.ndarray:
        """out (rows, heads, dim) + the values at these positions, times ``weights`` (rows, heads, block).

        Each row adds the positions that it sees, by ``seen`` (rows, positions), in order. In pair order, they
        are added to a separate sum that begins with 0.
        """
        found = np.zeros_like(out) if self.paired else out
        for j in in_pairs(len(at)) if self.paired else range(len(at)):
            added = self.add_value(found, weights[:, :, j], at[j], group)
            found = np.where(seen[:, None, j, None], added, found)
        return out + found if self.paired else found

    def add_value(self, out: np.ndarray, weights: np.ndarray, position: int, group: int) -> np.ndarray:
        """out (rows, heads, dim) + weights (rows, heads) * the value at a position, fused."""
        value = np.repeat(self.values[position], group, axis=0)[None]
        shares = weights[..., None]
        if self.value_scales is not None:
            scales = np.repeat(np.repeat(self.value_scales[position], group, axis=0), KV_BLOCK, axis=1)
            shares = shares * scales[None, :, : value.shape[2]]
        return fma(value, shares, out)


def _products(
    keys: np.ndarray, queries: np.ndarray, dims: Iterable[int], shape: tuple[int, ...]
) -> np.ndarray:
    k, q = (np.moveaxis(x[..., list(dims)], -1, 0) for x in (keys, queries))
    return fused_sum(k, q[..., None], np.zeros(shape, F32))


def store(keys: np.ndarray, values: np.ndarray, kv_type: str) -> Stored:
    """Keys and values (positions, heads, dim) rounded to a type of `KV_PAIRS`."""
    key_type, value_type = KV_PAIRS[kv_type]
    if key_type == value_type == "q8_0":
        (k, k_scales), (v, v_scales) = q8_codes(keys), q8_codes(values)
        return Stored(k, v, k_scales, v_scales)
    if key_type == value_type == "bf16":
        return Stored(to_pair_bf16(keys), to_pair_bf16(values), paired=True)
    return Stored(rounded(keys, key_type), rounded(values, value_type))


def rounded(x: np.ndarray, kv_type: str) -> np.ndarray:
    """Numbers after rounding to a cache type."""
    if kv_type == "f32":
        return x
    if kv_type == "f16":
        return to_f16(x)
    if kv_type == "bf16":
        return to_bf16(x)
    if kv_type == "q8_0":
        codes, scales = q8_codes(x)
        found: np.ndarray = codes * np.repeat(scales, KV_BLOCK, axis=2)[..., : x.shape[2]]
        return found
    blocks = [coded(x[..., d : d + KV_BLOCK], kv_type) for d in range(0, x.shape[-1], KV_BLOCK)]
    return np.concatenate(blocks, axis=-1)


def q8_codes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes, float32 like x, and scales (..., blocks): max|x| / 127 as a half.

    A block whose scale is not a finite half becomes NaN.
    """
    codes, scales = [], []
    for d in range(0, x.shape[-1], KV_BLOCK):
        block = x[..., d : d + KV_BLOCK]
        most = np.abs(block).max(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scale = to_f16(most / F32(127))
            found = (block * (F32(127) / most)[..., None] + MAGIC) - MAGIC
        usable = np.isfinite(scale) & (scale != 0)
        codes.append(np.where(usable[..., None], found, F32(0)))
        scales.append(np.where(np.isfinite(scale), scale, F32(np.nan)))
    return np.concatenate(codes, axis=-1), np.stack(scales, axis=-1)


def coded(x: np.ndarray, kv_type: str) -> np.ndarray:
    """Blocks of up to 32 numbers, the last axis, in ggml's Q4_0, Q4_1, Q5_0, Q5_1 or IQ4_NL."""
    layout = KV_LAYOUTS[kv_type]
    low = x.min(axis=-1, keepdims=True)
    at = np.abs(x).argmax(axis=-1)[..., None]
    largest = np.take_along_axis(x, at, -1)
    top = F32((1 << layout.bits) - 1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if layout.values:
            return table_coded(x, largest)
        scale = (
            (x.max(axis=-1, keepdims=True) - low) / top if layout.minima else largest / F32(-layout.excess)
        )
        inverse = np.where(scale == 0, F32(0), F32(1) / scale)
        codes = (x - low if layout.minima else x) * inverse + F32(layout.excess + 0.5)
        codes = np.trunc(np.clip(codes, F32(0), top)) - F32(layout.excess)
        halves = to_f16(scale)
        out = codes * halves
        minimum = to_f16(low) if layout.minima else F32(0)
        out = out + minimum if layout.minima else out
    finite = np.isfinite(halves) & np.isfinite(minimum) & np.isfinite(x).all(axis=-1, keepdims=True)
    return np.where(finite, out, F32(np.nan))


def table_coded(x: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """IQ4_NL: the nearest values of the table, then the scale with the least squared error."""
    values = np.array(IQ4_VALUES, F32)
    scale = largest / values[0]
    inverse = np.where(scale == 0, F32(0), F32(1) / scale)
    near = F32(2) * (x * inverse)[..., None] >= values[:-1] + values[1:]
    found = values[near.sum(axis=-1)]
    products, squares = np.zeros(x.shape[:-1], F32), np.zeros(x.shape[:-1], F32)
    for i in range(x.shape[-1]):
        products = products + x[..., i] * x[..., i] * found[..., i] * x[..., i]
        squares = squares + x[..., i] * x[..., i] * found[..., i] * found[..., i]
    half = to_f16(np.where(squares > 0, products / squares, F32(0)))[..., None]
    finite = np.isfinite(to_f16(scale)) & np.isfinite(x).all(axis=-1, keepdims=True)
    return np.where(finite, found * half, F32(np.nan))
