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


HALVES = {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
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


def _q4_k(blocks: np.ndarray) -> Parts:
    first, second, third = (blocks[:, 4 + 4 * i : 8 + 4 * i].astype(np.float64) for i in range(3))
    scale = np.hstack([first % 64, third % 16 + 16 * (first // 64)])  # 6 bits each
    least = np.hstack([second % 64, third // 16 + 16 * (second // 64)])
    pairs = blocks[:, 16:].reshape(-1, 4, 1, 32)  # 32 bytes hold two sub-blocks of 32
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 256).astype(np.float64)
    return Parts(
        _half(blocks, 0) * np.repeat(scale, 32, axis=1),
        codes,
        _half(blocks, 2) * np.repeat(least, 32, axis=1),
    )


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
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}


def decode(name: str, rows: np.ndarray) -> Parts:
    """Rows (n, bytes) uint8 of a matrix: parts of (n, cols)."""
    parts = DECODE[name](rows.reshape(-1, FORMATS[name].block_bytes))
    return Parts(*(part.reshape(len(rows), -1) for part in parts))


def weights(name: str, rows: np.ndarray) -> np.ndarray:
    """Rows (n, bytes) uint8 of a matrix as float64 (n, cols)."""
    scale, code, least = decode(name, rows)
    return scale * code - least
