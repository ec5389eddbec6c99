"""Splits the blocks of every GGUF format into integers and scales.

The structures are defined in ggml-common.h (https://github.com/ggml-org/ggml). Bytes are (blocks, bytes of a
block); integers are in the order of the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from oxillama.base.formats import FORMATS, LAYOUTS, Format
from oxillama.reference.floats import F32, as_float


@dataclass(frozen=True)
class Blocks:
    """Blocks of quantized weights: weight = scale * sub-scale * integer - minimum.

    Attributes:
        integers: int64 (blocks, block_len).
        scale: float32 (blocks,); or (blocks, sub-blocks) if only sub-blocks have scales ("n4").
        minimum: float32 (blocks,): added ("m4", "m5"), or the factor of the minima; None without minima.
        scales, minima: int64 (blocks, sub-blocks), or None.
    """

    integers: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray | None = None
    scales: np.ndarray | None = None
    minima: np.ndarray | None = None


def half(data: np.ndarray, at: int) -> np.ndarray:
    """The IEEE half at byte ``at`` of each block, float32 (blocks,)."""
    return np.ascontiguousarray(data[:, at : at + 2]).view("<f2")[:, 0].astype(F32)


def words(data: np.ndarray, kind: str) -> np.ndarray:
    """Bytes as little-endian words, int64."""
    return np.ascontiguousarray(data).view(kind).astype(np.int64)


def nibbles(data: np.ndarray) -> np.ndarray:
    """Nibbles of bytes (blocks, n): the low halves of all bytes, then the high halves."""
    return np.hstack([data & 15, data >> 4]).astype(np.int64)


def nibble_pairs(data: np.ndarray) -> np.ndarray:
    """Nibbles of bytes (blocks, n): the low and the high half of each byte in turn."""
    return np.stack([data & 15, data >> 4], axis=2).reshape(len(data), -1).astype(np.int64)


def bits(data: np.ndarray) -> np.ndarray:
    """Bits of bytes (blocks, n), the lowest bit of the first byte first."""
    return np.unpackbits(np.ascontiguousarray(data), axis=1, bitorder="little").astype(np.int64)


def bit_pairs(data: np.ndarray) -> np.ndarray:
    """2-bit values of 64 bytes: 32 bytes hold 128 values, the first 32 of them in the lowest bits."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (data.reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 256).astype(np.int64)


def planes(data: np.ndarray) -> np.ndarray:
    """Bits of 32 bytes: bit s of byte l belongs to value 32 s + l."""
    return (data[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256).astype(np.int64)


def table(layout: str, codes: np.ndarray) -> np.ndarray:
    """The values of codes in a layout's table."""
    found: np.ndarray = np.array(LAYOUTS[layout].values, np.int64)[codes]
    return found


# --- blocks of 32, 64 and 128 -------------------------------------------------------------------------


def _q4_0(b: np.ndarray) -> Blocks:
    return Blocks(nibbles(b[:, 2:]) - 8, half(b, 0))


def _q4_1(b: np.ndarray) -> Blocks:
    return Blocks(nibbles(b[:, 4:]), half(b, 0), half(b, 2))


def _q5_0(b: np.ndarray) -> Blocks:
    return Blocks(nibbles(b[:, 6:]) + 16 * bits(b[:, 2:6]) - 16, half(b, 0))


def _q5_1(b: np.ndarray) -> Blocks:
    return Blocks(nibbles(b[:, 8:]) + 16 * bits(b[:, 4:8]), half(b, 0), half(b, 2))


def _q8_0(b: np.ndarray) -> Blocks:
    return Blocks(words(b[:, 2:], "i1"), half(b, 0))


def _q8_1(b: np.ndarray) -> Blocks:
    return Blocks(words(b[:, 4:], "i1"), half(b, 0))


def _iq4_nl(b: np.ndarray) -> Blocks:
    return Blocks(table("t4", nibbles(b[:, 2:])), half(b, 0))


def _mxfp4(b: np.ndarray) -> Blocks:
    """The scale is 2^(e - 128), because the values of the table are doubled."""
    exponent = b[:, 0].astype(np.uint32)
    scale = np.where(exponent < 2, np.uint32(0x20) << exponent, (exponent - np.uint32(1)) << np.uint32(7))
    return Blocks(table("e4", nibbles(b[:, 1:])), as_float(scale.astype(np.uint32) << np.uint32(16)))


def _q1_0(b: np.ndarray) -> Blocks:
    return Blocks(2 * bits(b[:, 2:]) - 1, half(b, 0))


def _q2_0(b: np.ndarray) -> Blocks:
    pairs = bits(b[:, 2:]).reshape(len(b), -1, 2)
    return Blocks(pairs[:, :, 0] + 2 * pairs[:, :, 1] - 1, half(b, 0))


def _nvfp4(b: np.ndarray) -> Blocks:
    """Scales are half of numbers with 4 bits of exponent and 3 of fraction: table values are doubled."""
    exponent, fraction = (b[:, :4] >> 3 & 15).astype(np.int32), (b[:, :4] & 7).astype(F32)
    normal = np.ldexp(F32(8) + fraction, exponent - 11)
    scale = np.where(exponent == 0, fraction * F32(2**-10), normal)
    codes = nibbles(b[:, 4:].reshape(-1, 8)).reshape(-1, 64)
    return Blocks(table("n4", codes), np.where(b[:, :4] == 127, F32(0), scale).astype(F32))


# --- blocks of 256 ------------------------------------------------------------------------------------


def _q2_k(b: np.ndarray) -> Blocks:
    scales, minima = (b[:, :16] & 15).astype(np.int64), (b[:, :16] >> 4).astype(np.int64)
    return Blocks(bit_pairs(b[:, 16:80]), half(b, 80), half(b, 82), scales, minima)


def _q3_k(b: np.ndarray) -> Blocks:
    high = (b[:, None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    codes = bit_pairs(b[:, 32:96]) + 4 * planes(b[:, :32]) - 4
    return Blocks(codes, half(b, 108), scales=nibbles(b[:, 96:104]) + 16 * high.astype(np.int64) - 32)


def _sub_blocks(b: np.ndarray, codes: np.ndarray) -> Blocks:
    """Q4_K and Q5_K: scales and minima of 6 bits in 12 bytes."""
    first, second, third = (b[:, 4 + 4 * i : 8 + 4 * i].astype(np.int64) for i in range(3))
    scales = np.hstack([first % 64, third % 16 + 16 * (first // 64)])
    minima = np.hstack([second % 64, third // 16 + 16 * (second // 64)])
    return Blocks(codes, half(b, 0), half(b, 2), scales, minima)


def wide_nibbles(data: np.ndarray) -> np.ndarray:
    """Nibbles of 128 bytes: 32 bytes hold 64 values, the first 32 of them in the low halves."""
    pairs = data.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 256).astype(np.int64)


def _q4_k(b: np.ndarray) -> Blocks:
    return _sub_blocks(b, wide_nibbles(b[:, 16:]))


def _q5_k(b: np.ndarray) -> Blocks:
    return _sub_blocks(b, wide_nibbles(b[:, 48:]) + 16 * planes(b[:, 16:48]))


def _q6_k(b: np.ndarray) -> Blocks:
    pairs = b[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 256).astype(np.int64)
    return Blocks(low + 16 * bit_pairs(b[:, 128:192]) - 32, half(b, 208), scales=words(b[:, 192:208], "i1"))


def _iq4_xs(b: np.ndarray) -> Blocks:
    upper = words(b[:, 2:4], "<u2") >> np.arange(0, 16, 2) & 3
    codes = nibbles(b[:, 8:].reshape(-1, 16)).reshape(-1, 256)
    return Blocks(table("kt", codes), half(b, 0), scales=nibble_pairs(b[:, 4:8]) + 16 * upper - 32)


def _tq1_0(b: np.ndarray) -> Blocks:
    def digits(data: np.ndarray, n: int) -> np.ndarray:
        """The first n base-3 digits of bytes, which are numerators over 256: first digits first."""
        return np.hstack([data.astype(np.int64) * 3**i % 256 * 3 // 256 for i in range(n)])

    parts = digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)
    return Blocks(np.hstack(parts) - 1, half(b, 52))


def _tq2_0(b: np.ndarray) -> Blocks:
    return Blocks(bit_pairs(b[:, :64]) - 1, half(b, 64))


def _q8_k(b: np.ndarray) -> Blocks:
    return Blocks(words(b[:, 4:260], "i1"), np.ascontiguousarray(b[:, :4]).view("<f4")[:, 0])


# --- blocks of 256 with grids -------------------------------------------------------------------------

GRIDS = {"2xxs": (0, 2), "2xs": (512, 2), "2s": (1536, 2), "1": (3584, 2), "3xxs": (7680, 1), "3s": (7936, 1)}
"""For each grid, the index of its first word (4 codes each), and the number of words of an entry."""
WIDE_GRIDS = 7680
"""The index of the first word with 4-bit codes; earlier words have 2-bit codes."""


@cache
def grid_codes() -> np.ndarray:
    """uint8 (words, 4): the codes of all grids, from the data file that the kernels' packing reads, too."""
    path = Path(__file__).parents[1] / "_kernels" / "packing" / "grids.bin"
    data = np.frombuffer(path.read_bytes(), np.uint8)
    pairs, halves = data[:WIDE_GRIDS, None], data[WIDE_GRIDS:, None]
    narrow = pairs >> np.array([0, 2, 4, 6], np.uint8) & 3
    wide = halves >> np.array([0, 4], np.uint8) & 15
    return np.concatenate([narrow.reshape(-1), wide.reshape(-1)]).reshape(-1, 4)


def entries(grid: str, numbers: np.ndarray) -> np.ndarray:
    """Codes of a grid's entries by their numbers (blocks, n): int64 (blocks, 256)."""
    first, size = GRIDS[grid]
    at = first + size * numbers[..., None] + np.arange(size)
    return grid_codes()[at].reshape(len(numbers), -1).astype(np.int64)


def eight_signs(seven: np.ndarray) -> np.ndarray:
    """7 sign bits extended to 8, so that the number of ones is even."""
    ones = sum(seven >> i & 1 for i in range(7))
    return seven | (ones % 2) << 7


def signed(layout: str, codes: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Values of codes with signs; signs are bytes (blocks, 32), one bit for each value."""
    negative = bits(signs.astype(np.uint8))
    return table(layout, codes | negative << (3 if layout.startswith("g3") else 2))


SEVENS = np.array([0, 7, 14, 21])


def _iq2_xxs(b: np.ndarray) -> Blocks:
    pairs = words(b[:, 2:], "<u4").reshape(-1, 8, 2)
    numbers = b[:, 2:].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32).astype(np.int64)
    signs = eight_signs((pairs[:, :, 1:] >> SEVENS & 127).reshape(-1, 32))
    scales = np.repeat(2 * (pairs[:, :, 1] >> 28) + 1, 2, axis=1)
    return Blocks(signed("g2", entries("2xxs", numbers), signs), half(b, 0), scales=scales)


def _iq2_xs(b: np.ndarray) -> Blocks:
    found = words(b[:, 2:66], "<u2")
    codes = signed("g2", entries("2xs", found % 512), eight_signs(found >> 9))
    return Blocks(codes, half(b, 0), scales=2 * nibble_pairs(b[:, 66:]) + 1)


def _iq2_s(b: np.ndarray) -> Blocks:
    upper = (b[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 32).astype(np.int64)
    codes = signed("g2", entries("2s", b[:, 2:34] + 256 * upper), b[:, 34:66])
    return Blocks(codes, half(b, 0), scales=2 * nibble_pairs(b[:, 74:]) + 1)


def _iq3_xxs(b: np.ndarray) -> Blocks:
    found = words(b[:, 66:], "<u4")
    signs = eight_signs((found[:, :, None] >> SEVENS & 127).reshape(-1, 32))
    codes = signed("g3", entries("3xxs", b[:, 2:66].astype(np.int64)), signs)
    return Blocks(codes, half(b, 0), scales=2 * (found >> 28) + 1)


def _iq3_s(b: np.ndarray) -> Blocks:
    numbers = b[:, 2:66] + 256 * bits(b[:, 66:74])
    codes = signed("g3s", entries("3s", numbers), b[:, 74:106])
    return Blocks(codes, half(b, 0), scales=2 * nibble_pairs(b[:, 106:]) + 1)


def shifted(numbers: np.ndarray, down: np.ndarray) -> np.ndarray:
    """IQ1: 8 times the entries, plus or minus 1 for all 8 values of an entry."""
    return table("g1", entries("1", numbers) + 4 * np.repeat(down, 8, axis=1))


def _iq1_s(b: np.ndarray) -> Blocks:
    found = words(b[:, 34:], "<u2")
    upper = (found[:, :, None] >> np.array([0, 3, 6, 9]) & 7).reshape(-1, 32)
    codes = shifted(b[:, 2:34] + 256 * upper, np.repeat(found >> 15, 4, axis=1))
    return Blocks(codes, half(b, 0), scales=np.repeat(2 * (found >> 12 & 7) + 1, 2, axis=1))


def _iq1_m(b: np.ndarray) -> Blocks:
    high, found = nibble_pairs(b[:, 32:48]), words(b[:, 48:], "<u2")
    quarters = (found >> 12) << np.array([0, 4, 8, 12])
    scale = quarters.sum(axis=1).astype("<u2").view("<f2").astype(F32)
    codes = shifted(b[:, :32] + 256 * (high % 8), high // 8)
    scales = 2 * (found[:, :, None] >> np.array([0, 3, 6, 9]) & 7).reshape(-1, 16) + 1
    return Blocks(codes, scale, scales=scales)


TAKE_APART: dict[str, Callable[[np.ndarray], Blocks]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q8_1": _q8_1,
    "IQ4_NL": _iq4_nl, "MXFP4": _mxfp4, "NVFP4": _nvfp4, "Q1_0": _q1_0, "Q2_0": _q2_0, "Q2_0_G128": _q2_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_K": _q8_k,
    "IQ4_XS": _iq4_xs, "TQ1_0": _tq1_0, "TQ2_0": _tq2_0, "IQ1_S": _iq1_s, "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s,
}  # fmt: skip
"""Functions that split blocks, by format name."""


def take_apart(fmt: Format, data: np.ndarray) -> Blocks:
    """Split blocks of a quantized format, uint8 (blocks, block_bytes)."""
    return TAKE_APART[fmt.name](data)


def dequantize(fmt: Format, data: np.ndarray) -> np.ndarray:
    """Dequantize whole blocks to float32, in order; each product is rounded, then each sum."""
    data = np.ascontiguousarray(data, np.uint8).reshape(-1, fmt.block_bytes)
    if fmt.name == "F32":
        return data.reshape(-1).view("<f4").astype(F32)
    if fmt.name == "F16":
        return data.reshape(-1).view("<f2").astype(F32)
    if fmt.name == "BF16":
        return as_float(data.reshape(-1).view("<u2").astype(np.uint32) << np.uint32(16))
    layout, b = LAYOUTS[FORMATS[fmt.name].layout or ""], take_apart(fmt, data)
    n, scale = b.integers.shape[1], b.scale.reshape(len(data), -1) * F32(layout.unit)
    values = b.integers.astype(F32)
    with np.errstate(invalid="ignore", over="ignore"):
        if b.scale.ndim == 2:
            scale = np.repeat(scale, n // scale.shape[1], axis=1)
        if b.scales is not None:
            scale = np.repeat(scale * b.scales.astype(F32), n // b.scales.shape[1], axis=1)
        out = scale * values
        if b.minima is not None and b.minimum is not None:
            minima = b.minimum[:, None] * b.minima.astype(F32)
            out = out - np.repeat(minima, n // b.minima.shape[1], axis=1)
        elif b.minimum is not None:
            out = out + b.minimum[:, None]
    return out.reshape(-1)
