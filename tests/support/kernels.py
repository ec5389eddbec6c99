"""What the kernel tests share: targets that can run here, formats that have kernels, packed matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.random_blocks import random_rows
from oxillama._kernels import Kernels, load, pack, targets
from oxillama._kernels.memory import aligned_empty
from oxillama.base.formats import FORMATS, IN_MEMORY, LAYOUTS, ROUNDED, Format
from oxillama.reference.blocks import dequantize
from oxillama.reference.products import load_matrix
from oxillama.reference.vectors import HALVES, WITH_MINIMUM

PRESENT: list[str] = [name for name, reason in targets().items() if reason is None]
"""Targets that can run here, best first; portable, which always can, is the last."""

RUNNABLE: list[Format] = [fmt for fmt in FORMATS.values() if fmt.layout]
"""Formats that have kernels."""

NAMES: list[str] = [fmt.name for fmt in RUNNABLE]

COMPUTE: dict[str, str] = {fmt.name: compute for compute, fmt in ROUNDED.items()}
"""Formats of rows that packing rounds, with the ``compute`` that chooses them."""

MULTIPLIED: list[str] = [*NAMES, *COMPUTE]
"""Formats that matrices in memory can have."""


on_targets = pytest.mark.parametrize("target", PRESENT)


def refuses(
    text: str,
    call: Callable[..., object],
    *arguments: Any,
    error: type[Exception] = ValueError,
    **options: Any,
) -> None:
    """Asserts that a call raises an error whose text has a match of ``text``."""
    with pytest.raises(error, match=text):
        call(*arguments, **options)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays hold the same bits. Any NaN equals any other: IEEE 754 leaves their bits open."""
    assert a.dtype == b.dtype, (a.dtype, b.dtype)
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool(((a.view(unsigned) == b.view(unsigned)) | nan).all())


def activation_of(name: str) -> str:
    """The activations that a format's layout is multiplied with."""
    layout = IN_MEMORY[name].layout
    assert layout is not None
    return LAYOUTS[layout].activation


def matrix(name: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Random weights of deviation 1 / sqrt(cols): uint8 (rows, bytes of a row)."""
    name = "F32" if name in COMPUTE else name
    return random_rows(name, rows, cols, cols**-0.5, np.random.default_rng(seed))


def scale_places(name: str) -> tuple[int, ...]:
    """Where a block's scale begins, and its minimum if it has one."""
    return HALVES.get(name, (0, 2) if name in WITH_MINIMUM else (0,))


def put_scale(name: str, blocks: np.ndarray, halves: np.ndarray | int, at: int | None = None) -> None:
    """Sets scale and minimum of blocks, uint8 (n, block_bytes), to f16 bits, or the one at byte ``at``.

    Formats with other scales get the nearest one below.
    """
    halves = np.broadcast_to(np.asarray(halves, np.uint16), len(blocks)).copy()
    exponent, fraction = (halves >> 10 & 31).astype(int), halves >> 7 & 7
    if name == "Q8_K":
        with np.errstate(invalid="ignore"):  # Arm reports signalling NaNs
            blocks[:, :4] = halves.view(np.float16).astype("<f4")[:, None].view(np.uint8)
    elif name == "IQ1_M":  # four bits each in the upper ends of four words
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (halves >> 4 * i & 15).astype(np.uint8) << 4
    elif name == "MXFP4":  # powers of two
        blocks[:, 0] = np.where(exponent == 0, 0, exponent + 113)
    elif name == "NVFP4":  # 4 bits of exponent, 3 of fraction; a small scale is 2^-9
        scale = np.clip(8 * (exponent - 8) + fraction, 0, 0x7E)
        blocks[:, :4] = np.where(exponent < 9, halves & 0x7FFF > 0, scale)[:, None]
    else:
        for place in scale_places(name) if at is None else (at,):
            blocks[:, place : place + 2] = halves.astype("<u2")[:, None].view(np.uint8)


def dequantized(name: str, rows: np.ndarray) -> np.ndarray:
    """The reference's values of rows, uint8 (n, bytes of a row), as float64 (n, cols)."""
    return dequantize(FORMATS[name], rows).reshape(len(rows), -1).astype(np.float64)


def product(name: str, rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The reference's float32 (len(x), len(rows)): x times the transposed matrix of rows."""
    fmt = FORMATS["F32" if name in COMPUTE else name]
    with np.errstate(all="ignore"):
        return load_matrix(fmt, rows, len(rows), x.shape[1], COMPUTE.get(name, "int8")).times(x)


def packed(name: str, rows: np.ndarray, cols: int, n_threads: int = 1) -> tuple[int, int, np.ndarray]:
    """A matrix as `Linear` takes it."""
    fmt = IN_MEMORY[name]
    assert fmt.layout is not None
    data = aligned_empty(pack.packed_bytes(fmt.id, len(rows), cols))
    data[:] = 0xA5  # what was in the memory before must not matter
    pack.pack(fmt.id, np.ascontiguousarray(rows).reshape(-1), len(rows), cols, data, n_threads)
    return LAYOUTS[fmt.layout].id, len(rows), data


def linear(
    target: str | Kernels, parts: Sequence[tuple[str, np.ndarray]], cols: int, bias: np.ndarray | None = None
) -> Any:
    """A `Linear` of matrices (format name, rows)."""
    kernels = load(target) if isinstance(target, str) else target
    return kernels.linear.Linear([packed(name, rows, cols) for name, rows in parts], cols, bias)


def apply(layer: Any, x: np.ndarray, n_threads: int = 1, onto: np.ndarray | None = None) -> np.ndarray:
    """What a `Linear` makes of x, or of x added to ``onto``."""
    out = np.full((len(x), layer.rows), np.nan, np.float32) if onto is None else onto.copy()
    scratch = np.full(layer.scratch_bytes(len(x)), 0x5A, np.uint8)
    layer.apply(np.ascontiguousarray(x), out, scratch, n_threads, onto is not None)
    return out


def normal(*shape: int, seed: int = 0, std: float = 1.0) -> np.ndarray:
    """float32 of mean 0."""
    return (np.random.default_rng(seed).standard_normal(shape) * std).astype(np.float32)
