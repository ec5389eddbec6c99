"""Measures which ways to multiply are faster, and tests the bits of products in the tile registers of AMX.

No bit of a product depends on what is measured. `load` measures once in a process, in some milliseconds.
``OXILLAMA_TUNE=0`` keeps the defaults.
"""

from __future__ import annotations

import functools
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

NEVER = 1 << 30
"""More tokens than a product has."""

DEFAULTS = (16, 32, 32)
"""Tokens of the smallest products in tiles, as `use_tiles` takes them: of rounded rows, of formats with
integer scales, of formats with blocks of 32 columns."""

EXAMPLES = {"W8A8": 0, "Q4_K": 2, "Q8_0": 1}
"""A format of each kind, with the number of float16 scales at the beginning of its blocks."""

QUICK = {"IQ3_S": 1}
"""The same for the codes of `use_unpacked`."""

MANY = 128
"""Tokens that share unpacked codes, on every target."""

COUNTS = (16, 32, 64), (32, 64, 128), (32, 64, 128)
"""Numbers of tokens that are tried for each."""

NOWHERE = (NEVER,) * 3

GAIN = 1.03
"""Another way than the default is used where it is at least so many times as fast."""

TURNS = 5

LATE_SECONDS = 2e-3
"""A product that takes longer is not measured: its target has no vectors, or the machine is too busy."""


def bytes_of(n: int) -> np.ndarray:
    """uint8 (n,) without a pattern, the same each time."""
    return (np.arange(n, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(13)).astype(np.uint8)


def examples(
    module: LinearModule, formats: Mapping[str, int] = EXAMPLES, rows: int = 128, cols: int = 1024
) -> list[Linear]:
    """A matrix of each of some formats, with values that do not matter."""
    found = []
    for name, n_scales in formats.items():
        fmt = IN_MEMORY[name]
        if n_scales:
            values = bytes_of(rows * fmt.nbytes(cols))
            values.reshape(-1, fmt.block_bytes)[:, 1 : 2 * n_scales : 2] &= (
                0x3B  # finite: upper bytes of scales
            )
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


@functools.cache
def tiles_are_right(module: LinearModule) -> bool:
    """Whether products in tiles have the bits of products in vectors."""
    for linear in examples(module):
        product = Product(linear, 51)  # 32 tokens, 16, and the rest
        module.use_tiles(*DEFAULTS)
        in_tiles = product().copy()
        module.use_tiles(*NOWHERE)
        same = in_tiles.tobytes() == product().tobytes()
        module.use_tiles(*DEFAULTS)
        if not same:
            return False
    return True


def tune(module: LinearModule, clock: Callable[[], float] = time.perf_counter) -> tuple[int, ...]:
    """Has the module use tiles from the numbers of tokens from which on they are faster; returns the numbers.

    ``clock`` gives seconds. A number is `NEVER` where tiles were not faster for any of `COUNTS`.
    """
    found = list(DEFAULTS)
    if os.environ.get("OXILLAMA_TUNE") != "0":
        for i, linear in enumerate(examples(module)):
            ways = partial(module.use_tiles, *DEFAULTS), partial(module.use_tiles, *NOWHERE)
            found[i] = next((n for n in COUNTS[i] if is_faster(*ways, Product(linear, n), clock)), NEVER)
    module.use_tiles(*found)
    return tuple(found)


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
