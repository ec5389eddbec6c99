"""Products in the tile registers of AMX: tests their bits, finds from how many tokens on they are faster."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from oxillama._kernels.tuning import Product, examples, is_faster

if TYPE_CHECKING:
    from oxillama._kernels.linear.linear import LinearModule

NEVER = 1 << 30
"""More tokens than a product has."""

DEFAULTS = (16, 32, 32)
"""Tokens of the smallest products in tiles, as `use_tiles` takes them: of rounded rows, of formats with
integer scales, of formats with blocks of 32 columns."""

EXAMPLES = {"W8A8": 0, "Q4_K": 2, "Q8_0": 1}
"""A format of each kind, with the number of float16 scales at the beginning of its blocks."""

COUNTS = (16, 32, 64), (32, 64, 128), (32, 64, 128)
"""Numbers of tokens that are tried for each."""

NOWHERE = (NEVER,) * 3


@functools.cache
def tiles_are_right(module: LinearModule) -> bool:
    """Whether products in tiles have the bits of products in vectors."""
    for linear in examples(module, EXAMPLES):
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
        for i, linear in enumerate(examples(module, EXAMPLES)):
            ways = partial(module.use_tiles, *DEFAULTS), partial(module.use_tiles, *NOWHERE)
            found[i] = next((n for n in COUNTS[i] if is_faster(*ways, Product(linear, n), clock)), NEVER)
    module.use_tiles(*found)
    return tuple(found)
