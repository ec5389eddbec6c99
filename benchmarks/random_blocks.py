"""Random tensor data in every GGUF block format, made directly as blocks: no quantizer runs.

A block is random bytes with its scale written over them. The scale is chosen so that the dequantized
weights have a wanted standard deviation: the codes' own deviation is measured once per format on a
sample dequantized at scale one, by the `gguf` package or, where it does not know the format, by the
kernel. Where a format's byte strings include codes that its quantizer never writes, they are mapped to
ones that it does. A scale is taken to be an f16 at the beginning of a block unless `BLOCKS` says otherwise.

Block layouts are those of ggml (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from oxillama._kernels import pack
from oxillama.base.formats import FORMATS

Bytes = NDArray[np.uint8]
Scales = NDArray[np.float32]
WriteScale = Callable[[Bytes, Scales], None]
"""Completes random blocks (n, block_bytes) in place, given their scales (n,)."""


def random_rows(name: str, n_rows: int, n_in: int, std: float, rng: np.random.Generator) -> Bytes:
    """Rows of a weight matrix in the format ``name``, uint8 of shape (n_rows, bytes of a row).

    The weights are of mean 0 and standard deviation ``std`` (within a factor of 1.5 where scales are
    powers of two).

    Raises:
        ValueError: The format is not one of `RANDOM_FORMATS`, or ``n_in`` is not a multiple of its block
            length.
    """
    if name not in RANDOM_FORMATS:
        raise ValueError(f"format {name!r}: expected one of {', '.join(RANDOM_FORMATS)}")
    fmt = FORMATS[name]
    if n_in % fmt.block_len:
        raise ValueError(f"format {name}: rows must be a multiple of {fmt.block_len} long, not {n_in}")
    if name in FLOATS:
        weights = rng.standard_normal((n_rows, n_in), dtype=np.float32)
        weights *= np.float32(std)
        return FLOATS[name](weights).view(np.uint8)
    n_blocks = n_rows * n_in // fmt.block_len
    # Real scales differ from block to block; a quarter up or down keeps the deviation as asked (to 1%).
    scales = rng.random(n_blocks, dtype=np.float32)
    scales *= np.float32(0.5)
    scales += np.float32(0.75)
    scales *= np.float32(std / code_std(name))
    blocks = _random_bytes(n_blocks, fmt.block_bytes, rng)
    BLOCKS[name](blocks, scales)
    return blocks.reshape(n_rows, -1)


@cache
def code_std(name: str) -> float:
    """Standard deviation of a block format's random weights when every scale is 1."""
    if name in STD:
        return STD[name]
    import gguf

    fmt = FORMATS[name]
    rng = np.random.default_rng(0)
    blocks = _random_bytes(2048, fmt.block_bytes, rng)
    BLOCKS[name](blocks, np.ones(len(blocks), np.float32))
    if name in gguf.GGMLQuantizationType.__members__:
        return float(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).std())
    weights = np.empty(len(blocks) * fmt.block_len, np.float32)
    pack.dequantize(fmt.id, blocks.reshape(-1), weights)
    return float(weights.std())


def _random_bytes(n_blocks: int, block_bytes: int, rng: np.random.Generator) -> Bytes:
    n_bytes = n_blocks * block_bytes
    words = rng.integers(0, 2**64, -(-n_bytes // 8), dtype=np.uint64)
    return words.view(np.uint8)[:n_bytes].reshape(n_blocks, block_bytes)


def _put_f16(blocks: Bytes, offset: int, values: Scales) -> None:
    blocks[:, offset : offset + 2] = values.astype("<f2")[:, None].view(np.uint8)


def _scale_at(offset: int) -> WriteScale:
    """Blocks with one f16 scale, whose codes are centred on zero."""
    return lambda blocks, scales: _put_f16(blocks, offset, scales)


def _signed_scale_at(offset: int) -> WriteScale:
    """Blocks with one f16 scale of either sign, as quantizers write where codes reach further one way.

    The random bytes' own sign bit is kept, so that a matrix has no common offset: that would pass through
    every layer and make all logits alike.
    """

    def write(blocks: Bytes, scales: Scales) -> None:
        negative = blocks[:, offset + 1] & 0x80
        _put_f16(blocks, offset, scales)
        blocks[:, offset + 1] |= negative

    return write


def _scale_min_at(offset: int, min_offset: int, min_ratio: float) -> WriteScale:
    """Blocks with an f16 scale and an f16 minimum, ``min_ratio`` times it, which centres the codes."""

    def write(blocks: Bytes, scales: Scales) -> None:
        _put_f16(blocks, offset, scales)
        _put_f16(blocks, min_offset, scales * np.float32(min_ratio))

    return write


def _q8_0(blocks: Bytes, scales: Scales) -> None:
    codes = blocks[:, 2:].view(np.int8)
    np.maximum(codes, -127, out=codes)
    _put_f16(blocks, 0, scales)


def _q8_1(blocks: Bytes, scales: Scales) -> None:
    codes = blocks[:, 4:].view(np.int8)
    np.maximum(codes, -127, out=codes)
    _put_f16(blocks, 0, scales)
    _put_f16(blocks, 2, scales * codes.sum(axis=1, dtype=np.float32))


def _q8_k(blocks: Bytes, scales: Scales) -> None:
    codes = blocks[:, 4:260].view(np.int8)
    np.maximum(codes, -127, out=codes)
    blocks[:, :4] = scales.astype("<f4")[:, None].view(np.uint8)
    blocks[:, 260:] = codes.reshape(-1, 16, 16).sum(axis=2, dtype="<i2").view(np.uint8)


def _q2_k(blocks: Bytes, scales: Scales) -> None:
    sub = blocks[:, :16]
    sub[...] = (sub & 15) * 17  # each sub-block's 4-bit minimum equals its scale: it centres the codes
    _scale_min_at(80, 82, 1.5)(blocks, scales)


def _k_scale_min(min_ratio: float) -> WriteScale:
    """Q4_K and Q5_K: eight 6-bit scales and minimums in bytes 4 to 15, made pairwise equal."""

    def write(blocks: Bytes, scales: Scales) -> None:
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17
        _scale_min_at(0, 2, min_ratio)(blocks, scales)

    return write


def _iq1_m(blocks: Bytes, scales: Scales) -> None:
    """The f16 scale is spread, lowest nibble first, over the top nibbles of four 16-bit words."""
    half = scales.astype(np.float16).view(np.uint16)
    for word in range(4):
        high = blocks[:, 49 + 2 * word]
        high[...] = (high & 15) | ((half >> (4 * word) & 15) << 4).astype(np.uint8)


def _ternary(codes: slice, offset: int) -> WriteScale:
    """Blocks of two-bit codes, of which quantizers write 0, 1 and 2: a 3 becomes a 1."""

    def write(blocks: Bytes, scales: Scales) -> None:
        found = blocks[:, codes]
        found &= ~(found & (found << 1) & 0xAA)
        _put_f16(blocks, offset, scales)

    return write


def _nvfp4(blocks: Bytes, scales: Scales) -> None:
    """Four E4M3 bytes: the nearest numbers, of small ones the multiples of 2^-9."""
    fraction, exponent = np.frexp(scales)
    normal = np.rint(16 * fraction) - 8 + 8 * (exponent + 6)
    codes = np.where(scales < 2.0**-6, np.maximum(np.rint(512 * scales), 1), normal)
    blocks[:, :4] = codes.astype(np.uint8)[:, None]


def _mxfp4(blocks: Bytes, scales: Scales) -> None:
    """One E8M0 byte: the scale of the (doubled) codes is 2^(byte - 128)."""
    blocks[:, 0] = np.rint(np.log2(scales)).astype(np.int32) + 128


FLOATS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.generic]]] = {
    "F32": lambda weights: weights,
    "F16": lambda weights: weights.astype(np.float16),
    "BF16": lambda weights: (weights.view(np.uint32) >> 16).astype(np.uint16),
}

BLOCKS: dict[str, WriteScale] = {
    **{name: _scale_at(0) for name, fmt in FORMATS.items() if fmt.layout and name not in FLOATS},
    "Q4_0": _signed_scale_at(0),
    "Q4_1": _scale_min_at(0, 2, -7.5),
    "Q5_0": _signed_scale_at(0),
    "Q5_1": _scale_min_at(0, 2, -15.5),
    "Q8_0": _q8_0,
    "Q8_1": _q8_1,
    "Q8_K": _q8_k,
    "Q2_K": _q2_k,
    "Q3_K": _scale_at(108),
    "Q4_K": _k_scale_min(7.5),
    "Q5_K": _k_scale_min(15.5),
    "Q6_K": _scale_at(208),
    "IQ1_M": _iq1_m,
    "IQ4_NL": _signed_scale_at(0),
    "TQ1_0": _scale_at(52),
    "TQ2_0": _ternary(slice(0, 64), 64),
    "Q2_0": _ternary(slice(2, None), 0),
    "Q2_0_G128": _ternary(slice(2, None), 0),
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}

STD = {"Q1_0": 1.0, "Q8_1": 73.6, "Q8_K": 73.6}
"""`code_std` of the formats that the `gguf` package does not dequantize: signs, whole numbers up to 127."""

RANDOM_FORMATS = (*FLOATS, *BLOCKS)
