"""Reference of `Linear`: y = W x in float64, over activations quantized the way a layout asks for.

Activations: symmetric int8 per block, scale = max|x| / 127 in float32, codes round(x * (127 / max|x|)) with
ties to even (the scheme of ggml's Q8_0 and Q8_K). Blocks below 1e-36 count as zero. For BF16:
rounded to bf16, ties to even; what is below 2^-56 counts as zero.
"""

from __future__ import annotations

import numpy as np

from tests.references.formats import decode

BLOCK = {"q8_32": 32, "q8_256": 256}
TINY = np.float32(1e-36)


def quantize(x: np.ndarray, block: int) -> np.ndarray:
    """float32 (n, cols) to what its codes and scales stand for, float64 (n, cols)."""
    blocks = x.reshape(len(x), -1, block)
    most = np.abs(blocks).max(axis=2, keepdims=True)
    scale = most / np.float32(127)
    inverse = np.float32(127) / np.where(most > TINY, most, np.float32(np.inf))
    codes = np.rint(blocks * inverse)
    return (codes.astype(np.float64) * scale).reshape(x.shape)


def activations(x: np.ndarray, kind: str) -> np.ndarray:
    """What a layout with activations of this kind sees of x, float64."""
    if kind == "bf16":
        fraction, exponent = np.frexp(x.astype(np.float64))
        rounded: np.ndarray = np.ldexp(np.rint(fraction * 256) / 256, exponent)
        return np.where(np.abs(x) < 2.0**-56, 0, rounded)
    return x.astype(np.float64) if kind == "f32" else quantize(x, BLOCK.get(kind, x.shape[1]))


def product(name: str, rows: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``seen`` W^T and the sum of the sizes of its terms, both float64 (n, rows)."""
    scale, code, least = decode(name, rows)
    sizes = np.abs(scale * code) + np.abs(least)
    return seen @ (scale * code - least).T, np.abs(seen) @ sizes.T
