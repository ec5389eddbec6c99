"""What the kernel tests share: targets that can run here, formats that have kernels, packed matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.random_blocks import random_rows
from oxillama._kernels import Kernels, load, pack, targets
from oxillama._kernels.memory import aligned_empty
from oxillama.formats import FORMATS, IN_MEMORY, LAYOUTS, W8A8, Format

PRESENT: list[str] = [name for name, reason in targets().items() if reason is None]
"""Targets that can run here, best first; portable, which always can, is the last."""

RUNNABLE: list[Format] = [fmt for fmt in FORMATS.values() if fmt.layout]
"""Formats that have kernels."""

NAMES: list[str] = [fmt.name for fmt in RUNNABLE]

MULTIPLIED: list[str] = [*NAMES, W8A8.name]
"""Formats that matrices in memory can have."""


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
    name = "F32" if name == W8A8.name else name
    return random_rows(name, rows, cols, cols**-0.5, np.random.default_rng(seed))


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
