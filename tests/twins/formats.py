"""Twin of `pack.dequantize`: block formats taken apart in float64.

Written from the struct comments of ggml-common.h (https://github.com/ggml-org/ggml). Every format is
``weight = scale * code - least``; the parts are returned apart so that a product's rounding can be judged by
the size of what was added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from oxillama.formats import FORMATS


class Parts(NamedTuple):
    """Blocks taken apart: float64 arrays of (blocks, block_len)."""

    scale: np.ndarray
    code: np.ndarray
    least: np.ndarray


HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Where the f16 scales lie in a block."""


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float64)  # (blocks, 1)


def _plain(blocks: np.ndarray, dtype: str) -> Parts:
    codes = np.ascontiguousarray(blocks).view(dtype).astype(np.float64)
    return Parts(np.ones_like(codes), codes, np.zeros_like(codes))


def _bf16(blocks: np.ndarray) -> Parts:
    upper = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16
    return _plain(upper.view(np.uint8), "<f4")


def _q4_0(blocks: np.ndarray) -> Parts:
    codes = np.hstack([blocks[:, 2:] & 15, blocks[:, 2:] >> 4]).astype(np.float64) - 8
    return Parts(_half(blocks, 0) + 0 * codes, codes, 0 * codes)


def _q8_0(blocks: np.ndarray) -> Parts:
    codes = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float64)
    return Parts(_half(blocks, 0) + 0 * codes, codes, 0 * codes)


IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)
"""The values of IQ4_NL and IQ4_XS."""


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Bytes (blocks, n): the low halves, then the high ones."""
    return np.hstack([data & 15, data >> 4]).astype(np.float64)


def _bits(data: np.ndarray) -> np.ndarray:
    """Bytes (blocks, n): every bit, the lowest of the first byte first."""
    return np.unpackbits(np.ascontiguousarray(data), axis=1, bitorder="little").astype(np.float64)


def _q4_1(blocks: np.ndarray) -> Parts:
    codes = _nibbles(blocks[:, 4:])
    return Parts(_half(blocks, 0) + 0 * codes, codes, -_half(blocks, 2) + 0 * codes)


def _q5_0(blocks: np.ndarray) -> Parts:
    codes = _nibbles(blocks[:, 6:]) + 16 * _bits(blocks[:, 2:6]) - 16
    return Parts(_half(blocks, 0) + 0 * codes, codes, 0 * codes)


def _q5_1(blocks: np.ndarray) -> Parts:
    codes = _nibbles(blocks[:, 8:]) + 16 * _bits(blocks[:, 4:8])
    return Parts(_half(blocks, 0) + 0 * codes, codes, -_half(blocks, 2) + 0 * codes)


def _iq4_nl(blocks: np.ndarray) -> Parts:
    codes = IQ4[_nibbles(blocks[:, 2:]).astype(int)]
    return Parts(_half(blocks, 0) + 0 * codes, codes, 0 * codes)


def _pairs_of_bits(data: np.ndarray) -> np.ndarray:
    """64 bytes: 32 of them hold 128 values, the first 32 in the lowest bits."""
    halves = data.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return halves.reshape(-1, 256).astype(np.float64)


def _planes_of_bits(data: np.ndarray) -> np.ndarray:
    """32 bytes: bit s of byte l belongs to value 32 s + l."""
    return (data[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256).astype(np.float64)


def _q2_k(blocks: np.ndarray) -> Parts:
    scale, least = (
        np.repeat(x.astype(np.float64), 16, axis=1) for x in (blocks[:, :16] & 15, blocks[:, :16] >> 4)
    )
    return Parts(_half(blocks, 80) * scale, _pairs_of_bits(blocks[:, 16:80]), _half(blocks, 82) * least)


def _q3_k(blocks: np.ndarray) -> Parts:
    high = (blocks[:, None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    scale = _nibbles(blocks[:, 96:104]) + 16 * high - 32
    codes = _pairs_of_bits(blocks[:, 32:96]) + 4 * _planes_of_bits(blocks[:, :32]) - 4
    return Parts(_half(blocks, 108) * np.repeat(scale, 16, axis=1), codes, 0 * codes)


def _sub_blocks(blocks: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What Q4_K and Q5_K share: scales and minima of 32 values each, and the nibbles from ``at`` on."""
    first, second, third = (blocks[:, 4 + 4 * i : 8 + 4 * i].astype(np.float64) for i in range(3))
    scale = np.hstack([first % 64, third % 16 + 16 * (first // 64)])  # 6 bits each
    least = np.hstack([second % 64, third // 16 + 16 * (second // 64)])
    pairs = blocks[:, at:].reshape(-1, 4, 1, 32)  # 32 bytes hold two sub-blocks of 32
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 256).astype(np.float64)
    scale, least = np.repeat(scale, 32, axis=1), np.repeat(least, 32, axis=1)
    return _half(blocks, 0) * scale, codes, _half(blocks, 2) * least


def _q4_k(blocks: np.ndarray) -> Parts:
    return Parts(*_sub_blocks(blocks, 16))


def _q5_k(blocks: np.ndarray) -> Parts:
    scale, codes, least = _sub_blocks(blocks, 48)
    return Parts(scale, codes + 16 * _planes_of_bits(blocks[:, 16:48]), least)


def _iq4_xs(blocks: np.ndarray) -> Parts:
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    upper = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scale = low.astype(np.float64) + 16 * upper - 32
    codes = IQ4[_nibbles(blocks[:, 8:].reshape(-1, 16)).astype(int)].reshape(-1, 256)
    return Parts(_half(blocks, 0) * np.repeat(scale, 32, axis=1), codes, 0 * codes)


def _q6_k(blocks: np.ndarray) -> Parts:
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32)  # (blocks, half, nibble, 32s, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = (low + 16 * high).reshape(-1, 256).astype(np.float64) - 32
    scale = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float64)
    return Parts(_half(blocks, 208) * np.repeat(scale, 16, axis=1), codes, 0 * codes)


DECODE: dict[str, Callable[[np.ndarray], Parts]] = {
    "F32": lambda blocks: _plain(blocks, "<f4"),
    "F16": lambda blocks: _plain(blocks, "<f2"),
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}


def decode(name: str, rows: np.ndarray) -> Parts:
    """Rows (n, bytes) uint8 of a matrix: parts of (n, cols)."""
    parts = DECODE[name](rows.reshape(-1, FORMATS[name].block_bytes))
    return Parts(*(part.reshape(len(rows), -1) for part in parts))


def weights(name: str, rows: np.ndarray) -> np.ndarray:
    """Rows (n, bytes) uint8 of a matrix as float64 (n, cols)."""
    scale, code, least = decode(name, rows)
    return scale * code - least
