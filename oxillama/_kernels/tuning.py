"""Measures which of two ways to multiply is faster on this machine.

No bit of a product depends on that. `load` measures once in a process, in some milliseconds.
``OXILLAMA_TUNE=0`` keeps the defaults.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama._kernels.packing import pack
from oxillama.base.formats import IN_MEMORY, LAYOUTS

if TYPE_CHECKING:
    from oxillama._kernels.linear.linear import Linear, LinearModule

QUICK = {"IQ3_S": 1}
"""A format with the codes of `use_unpacked`, and the float16 scales at the beginning of its blocks."""

MANY = 128
"""Tokens that share unpacked codes, on every target."""

GAIN = 1.03
"""Another way than the default is used where it is at least so many times as fast."""

TURNS = 5

LATE_SECONDS = 2e-3
"""A product that takes longer is not measured: its target has no vectors, or the machine is too busy."""


def bytes_of(n: int) -> np.ndarray:
    """uint8 (n,) without a pattern, the same each time."""
    return (np.arange(n, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(13)).astype(np.uint8)


def examples(
    module: LinearModule, formats: Mapping[str, int], rows: int = 128, cols: int = 1024
) -> list[Linear]:
    """A matrix of each format, with the same values each time."""
    found = []
    for name, n_scales in formats.items():
        fmt = IN_MEMORY[name]
        if n_scales:
            values = bytes_of(rows * fmt.nbytes(cols))
            values.reshape(-1, fmt.block_bytes)[:, 1 : 2 * n_scales : 2] &= 0x3B  # scales become finite
        else:
            values = bytes_of(rows * cols).astype("<f4").view(np.uint8)
        panels = aligned_empty(pack.packed_bytes(fmt.id, rows, cols))
        pack.pack(fmt.id, values, rows, cols, panels)
        found.append(module.Linear([(LAYOUTS[fmt.layout or ""].id, rows, panels)], cols))
    return found


class Product:
    """A product of ``n`` tokens, which can be repeated."""

    def __init__(self, linear: Linear, n: int) -> None:
        self._linear = linear
        self._x = (bytes_of(n * linear.cols).astype(np.float32) - 128).reshape(n, -1)
        self._scratch = np.empty(linear.scratch_bytes(n), np.uint8)
        self.out = np.empty((n, linear.rows), np.float32)

    def __call__(self) -> np.ndarray:
        self._linear.apply(self._x, self.out, self._scratch, 1)
        return self.out


def tune_unpacking(module: LinearModule, clock: Callable[[], float] = time.perf_counter) -> bool:
    """Has the module unpack `QUICK` codes once for many tokens if that is faster; returns whether it is."""
    found = True
    if os.environ.get("OXILLAMA_TUNE") != "0":
        (linear,) = examples(module, QUICK, rows=64, cols=2048)
        ways = partial(module.use_unpacked, True), partial(module.use_unpacked, False)
        found = is_faster(*ways, Product(linear, MANY), clock)
    module.use_unpacked(found)
    return found


def is_faster(
    use: Callable[[], None],
    other: Callable[[], None],
    product: Callable[[], object],
    clock: Callable[[], float],
) -> bool:
    """Whether a product is `GAIN` times as fast after ``use()`` as after ``other()``.

    The shortest of `TURNS` turns counts; a first turn does not.
    """
    shortest = [np.inf, np.inf]
    for turn in range(TURNS + 1):
        for i, way in enumerate((use, other)):
            way()
            begin = clock()
            product()
            seconds = clock() - begin
            if turn:
                shortest[i] = min(shortest[i], seconds)
            elif seconds > LATE_SECONDS:
                return False
    return shortest[0] * GAIN < shortest[1]
