"""Reference of `pack.dequantize`: block formats taken apart in float64.

Written from the struct comments of ggml-common.h (https://github.com/ggml-org/ggml). Every format is
``weight = scale * code - least``; the parts are returned apart so that a product's rounding can be judged by
the size of what was added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gguf
import numpy as np

from oxillama.formats import FORMATS


class Parts(NamedTuple):
    """Blocks taken apart: float64 arrays of (blocks, block_len)."""

    scale: np.ndarray
    code: np.ndarray
    least: np.ndarray


Put = Callable[[np.ndarray, np.ndarray], None]
"""Writes f16 bits, uint16 (blocks,), as a scale of blocks, uint8 (blocks, bytes)."""


def _put_half(at: int) -> Put:
    def put(blocks: np.ndarray, halves: np.ndarray) -> None:
        blocks[:, at : at + 2] = halves.astype("<u2")[:, None].view(np.uint8)

    return put


def _put_float(blocks: np.ndarray, halves: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them, which Arm tells
        blocks[:, :4] = halves.view(np.float16).astype("<f4")[:, None].view(np.uint8)


def _put_spread(blocks: np.ndarray, halves: np.ndarray) -> None:
    """IQ1_M: four bits each in the upper ends of four words."""
    for i in range(4):
        blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (halves >> 4 * i & 15).astype(np.uint8) << 4


def _put_power(blocks: np.ndarray, halves: np.ndarray) -> None:
    """MXFP4 has powers of two only: the one below; a denormal one for a denormal half."""
    exponent = halves >> 10 & 31
    blocks[:, 0] = np.where(exponent == 0, 0, exponent + 113)


def _put_bytes(blocks: np.ndarray, halves: np.ndarray) -> None:
    """NVFP4 has scales of 4 bits of exponent and 3 of fraction: the one below, or the largest or least."""
    exponent, fraction = (halves >> 10 & 31).astype(int) - 8, halves >> 7 & 7
    scale = np.clip(8 * exponent + fraction, 0, 0x7E)
    blocks[:, :4] = np.where(exponent < 1, halves & 0x7FFF > 0, scale)[:, None]  # 2^-9 for a small one


PUT_SCALE: dict[str, tuple[Put, ...]] = {
    **{name: (_put_half(0),) for name in ("Q4_0", "Q5_0", "Q8_0", "Q8_1", "Q1_0", "IQ4_NL", "IQ4_XS")},
    **{name: (_put_half(0),) for name in ("Q2_0", "Q2_0_G128")},
    **{name: (_put_half(0),) for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S")},
    **{name: (_put_half(0), _put_half(2)) for name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")},
    "Q2_K": (_put_half(80), _put_half(82)),
    "Q3_K": (_put_half(108),),
    "Q6_K": (_put_half(208),),
    "Q8_K": (_put_float,),
    "IQ1_M": (_put_spread,),
    "TQ1_0": (_put_half(52),),
    "TQ2_0": (_put_half(64),),
    "MXFP4": (_put_power,),
    "NVFP4": (_put_bytes,),
}
"""How a block's scale, and its minimum where it has one, are set."""


def put_scale(name: str, blocks: np.ndarray, halves: np.ndarray | int) -> None:
    """Sets every scale and minimum of blocks (blocks, bytes) to f16 bits."""
    for put in PUT_SCALE[name]:
        put(blocks, np.broadcast_to(np.asarray(halves, np.uint16), len(blocks)).copy())


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


def _spread(d: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """A block's scale (blocks, 1) for each of its codes; adding 0 * codes would lose the sign of -0."""
    return np.broadcast_to(d, codes.shape).copy()


def _q8_1(blocks: np.ndarray) -> Parts:
    codes = np.ascontiguousarray(blocks[:, 4:]).view(np.int8).astype(np.float64)
    return Parts(_spread(_half(blocks, 0), codes), codes, 0 * codes)


def _q8_k(blocks: np.ndarray) -> Parts:
    codes = np.ascontiguousarray(blocks[:, 4:260]).view(np.int8).astype(np.float64)
    d = np.ascontiguousarray(blocks[:, :4]).view("<f4").astype(np.float64)
    return Parts(_spread(d, codes), codes, 0 * codes)


def _q1_0(blocks: np.ndarray) -> Parts:
    codes = 2 * _bits(blocks[:, 2:]) - 1
    return Parts(_spread(_half(blocks, 0), codes), codes, 0 * codes)


def _q2_0(blocks: np.ndarray) -> Parts:
    pairs = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    codes = pairs.reshape(len(blocks), -1).astype(np.float64) - 1
    return Parts(_spread(_half(blocks, 0), codes), codes, 0 * codes)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])
"""The values of four bits, of which the upper is the sign."""


def _nvfp4(blocks: np.ndarray) -> Parts:
    exponent, fraction = (blocks[:, :4] >> 3 & 15).astype(np.float64), blocks[:, :4] & 7
    scale = np.where(exponent > 0, 2.0 ** (exponent - 7) * (1 + fraction / 8), fraction * 2.0**-9)
    scale[blocks[:, :4] == 127] = 0  # would be NaN
    codes = E2M1[_nibbles(blocks[:, 4:].reshape(-1, 8)).astype(int)].reshape(-1, 64)
    return Parts(np.repeat(scale, 16, axis=1), codes, 0 * codes)


def _mxfp4(blocks: np.ndarray) -> Parts:
    codes = E2M1[_nibbles(blocks[:, 1:]).astype(int)]
    return Parts(2.0 ** (blocks[:, :1].astype(np.float64) - 127) + 0 * codes, codes, 0 * codes)


def _tq1_0(blocks: np.ndarray) -> Parts:
    def digits(data: np.ndarray, n: int) -> np.ndarray:
        """The first n base-3 digits of bytes, which are numerators over 256: all first, then all second."""
        return np.hstack([data.astype(int) * 3**i % 256 * 3 // 256 for i in range(n)])

    parts = digits(blocks[:, :32], 5), digits(blocks[:, 32:48], 5), digits(blocks[:, 48:52], 4)
    codes = np.hstack(parts) - 1.0
    return Parts(_half(blocks, 52) + 0 * codes, codes, 0 * codes)


def _tq2_0(blocks: np.ndarray) -> Parts:
    codes = _pairs_of_bits(blocks[:, :64]) - 1
    return Parts(_half(blocks, 64) + 0 * codes, codes, 0 * codes)


def _entries(name: str, numbers: np.ndarray) -> np.ndarray:
    """Rows of a grid, as the `gguf` package has it, by their numbers: (blocks, 256)."""
    grid = getattr(gguf.quants, name)
    grid.init_grid()
    return grid.grid[0, 0][numbers].astype(np.float64).reshape(len(numbers), -1)


def _signs(bits: np.ndarray) -> np.ndarray:
    """Bytes (blocks, 32), a bit per value: 1 or -1, (blocks, 256)."""
    return 1 - 2 * _bits(bits.astype(np.uint8))


def _eighth_sign(seven: np.ndarray) -> np.ndarray:
    """7 bits completed to 8 with an even number of ones."""
    ones = sum(seven >> i & 1 for i in range(7))
    return seven | (ones % 2) << 7


def _words(data: np.ndarray, dtype: str) -> np.ndarray:
    return np.ascontiguousarray(data).view(dtype).astype(int)


def _four_bits(data: np.ndarray) -> np.ndarray:
    """Bytes (blocks, n): the nibbles in order."""
    return np.stack([data & 15, data >> 4], axis=2).reshape(len(data), -1)


def _i_quant(d: np.ndarray, scale: np.ndarray, values: np.ndarray) -> Parts:
    """Scales (blocks, 8 or 16) of as many values each."""
    return Parts(d * np.repeat(scale.astype(np.float64), 256 // scale.shape[1], axis=1), values, 0 * values)


def _iq2_xxs(blocks: np.ndarray) -> Parts:
    words = _words(blocks[:, 2:], "<u4").reshape(-1, 8, 2)
    numbers = _words(words[:, :, :1].astype("<u4"), "u1").reshape(-1, 32)
    signs = (words[:, :, 1:] >> np.array([0, 7, 14, 21]) & 127).reshape(-1, 32)
    values = _entries("IQ2_XXS", numbers) * _signs(_eighth_sign(signs))
    return _i_quant(_half(blocks, 0), (0.5 + (words[:, :, 1] >> 28)) / 4, values)


def _iq2_xs(blocks: np.ndarray) -> Parts:
    words = _words(blocks[:, 2:66], "<u2")
    values = _entries("IQ2_XS", words % 512) * _signs(_eighth_sign(words >> 9))
    return _i_quant(_half(blocks, 0), (0.5 + _four_bits(blocks[:, 66:])) / 4, values)


def _iq2_s(blocks: np.ndarray) -> Parts:
    upper = (blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 32)
    values = _entries("IQ2_S", blocks[:, 2:34] + 256 * upper.astype(int)) * _signs(blocks[:, 34:66])
    return _i_quant(_half(blocks, 0), (0.5 + _four_bits(blocks[:, 74:])) / 4, values)


def _iq3_xxs(blocks: np.ndarray) -> Parts:
    words = _words(blocks[:, 66:], "<u4")
    signs = (words[:, :, None] >> np.array([0, 7, 14, 21]) & 127).reshape(-1, 32)
    values = _entries("IQ3_XXS", blocks[:, 2:66]) * _signs(_eighth_sign(signs))
    return _i_quant(_half(blocks, 0), (0.5 + (words >> 28)) / 2, values)


def _iq3_s(blocks: np.ndarray) -> Parts:
    numbers = blocks[:, 2:66] + 256 * _bits(blocks[:, 66:74]).astype(int)
    values = _entries("IQ3_S", numbers) * _signs(blocks[:, 74:106])
    return _i_quant(_half(blocks, 0), 1.0 + 2 * _four_bits(blocks[:, 106:]), values)


def _shifted(numbers: np.ndarray, down: np.ndarray) -> np.ndarray:
    """IQ1: the entries, all 8 values an eighth up or down."""
    return _entries("IQ1_S", numbers) + np.repeat(np.where(down, -0.125, 0.125), 8, axis=1)


def _iq1_s(blocks: np.ndarray) -> Parts:
    words = _words(blocks[:, 34:], "<u2")
    upper = (words[:, :, None] >> np.array([0, 3, 6, 9]) & 7).reshape(-1, 32)
    values = _shifted(blocks[:, 2:34] + 256 * upper, np.repeat(words >> 15, 4, axis=1))
    return _i_quant(_half(blocks, 0), 2 * (words >> 12 & 7) + 1, values)


def _iq1_m(blocks: np.ndarray) -> Parts:
    nibbles, words = _four_bits(blocks[:, 32:48]).astype(int), _words(blocks[:, 48:], "<u2")
    d = sum((words[:, i] >> 12) << 4 * i for i in range(4)).astype("<u2")
    values = _shifted(blocks[:, :32] + 256 * (nibbles % 8), nibbles // 8)
    scale = 2 * (words[:, :, None] >> np.array([0, 3, 6, 9]) & 7).reshape(-1, 16) + 1
    return _i_quant(d.view("<f2").astype(np.float64)[:, None], scale, values)


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
    "Q8_1": _q8_1,
    "Q8_K": _q8_k,
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
    "Q2_0_G128": _q2_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
}


def _rounded_rows(w: np.ndarray) -> Parts:
    """float32 rows, rounded to int8 with one scale each."""
    most = np.abs(w).max(axis=1, keepdims=True)
    inverse = np.float32(127) / np.where(most > np.float32(1e-36), most, np.float32(np.inf))
    codes = np.rint(w * inverse).astype(np.float64)
    scale = np.broadcast_to((most / np.float32(127)).astype(np.float64), codes.shape)
    return Parts(scale, codes, np.zeros_like(codes))


def decode(name: str, rows: np.ndarray) -> Parts:
    """Rows (n, bytes) uint8 of a matrix: parts of (n, cols)."""
    if name == "W8A8":
        return _rounded_rows(rows.view("<f4"))
    parts = DECODE[name](rows.reshape(-1, FORMATS[name].block_bytes))
    return Parts(*(part.reshape(len(rows), -1) for part in parts))


def weights(name: str, rows: np.ndarray) -> np.ndarray:
    """Rows (n, bytes) uint8 of a matrix as float64 (n, cols)."""
    scale, code, least = decode(name, rows)
    return scale * code - least
