"""The grid entries that are nearest to each point of a search, for the IQ1, IQ2 and IQ3 formats.

A group of values, each rounded to its nearest level, is a *point*. Most points are no entry of the grid. For
such a point the search compares the `KEPT` entries nearest to the point.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from oxillama.base.formats import FORMAT_BY_ID, LAYOUTS

KEPT = 16
"""Entries per point: the lanes of one vector."""

GRIDS = {"IQ2_XXS": (0, 256), "IQ2_XS": (256, 512), "IQ2_S": (768, 1024), "IQ1_S": (1792, 2048)}
GRIDS |= {"IQ1_M": GRIDS["IQ1_S"], "IQ3_XXS": (0, 256), "IQ3_S": (256, 512)}
"""First entry and number of entries, within the entries of 8 x 2 bits (IQ1, IQ2) or of 4 x 4 bits (IQ3)."""

WORDS_OF_2_BITS = 2 * 3840
"""Bytes of grids.bin with four codes of 2 bits each; bytes with two codes of 4 bits follow."""


class Neighbours(NamedTuple):
    """The tables that the search reads.

    Attributes:
        values: int8 (shifts, points, group, KEPT), the values of the entries around each point.
        entries: uint16 (points, KEPT), the numbers of these entries in the grid, the nearest first.
        exact: uint8 (points,), whether the nearest entry is the point itself.
    """

    values: np.ndarray
    entries: np.ndarray
    exact: np.ndarray


def grid_codes(name: str) -> np.ndarray:
    """The grid of a format: uint8 (entries, group) of codes (see tools/make_grids.py)."""
    path = Path(__file__).parents[1] / "packing" / "grids.bin"
    data = np.frombuffer(path.read_bytes(), np.uint8)
    first, count = GRIDS[name]
    if name.startswith("IQ3"):
        codes = data[WORDS_OF_2_BITS:, None] >> np.array([0, 4], np.uint8) & 15
        return codes.reshape(-1, 4)[first : first + count]
    codes = data[:WORDS_OF_2_BITS, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return codes.reshape(-1, 8)[first : first + count]


@cache
def neighbours(format_id: int) -> Neighbours:
    """The tables of a format. The digits of a point's number are its codes, the first value's code last."""
    fmt = FORMAT_BY_ID[format_id]
    codes = grid_codes(fmt.name)
    count, group = codes.shape
    table = LAYOUTS[fmt.layout or ""].values
    n_levels = 8 if group == 4 else 3
    # codes 4 to 6 of IQ1 are the same levels with the opposite shift
    shifts = [table[:n_levels], table[4 : 4 + n_levels]] if fmt.name.startswith("IQ1") else [table[:n_levels]]
    levels = np.array(shifts, np.float32)
    points = np.array([p[::-1] for p in product(range(n_levels), repeat=group)], np.uint8)
    at, to = levels[0][points], levels[0][codes]
    # squared distances are integers below 2^17: exact in float32 in any order of the sums
    distances = (at**2).sum(1)[:, None] - 2 * at @ to.T + (to**2).sum(1)
    keys = distances.astype(np.int32) * np.int32(count) + np.arange(count, dtype=np.int32)
    nearest = np.sort(np.partition(keys, KEPT, axis=1)[:, :KEPT], axis=1)
    entries = (nearest % count).astype(np.uint16)
    values = levels.astype(np.int8)[:, codes[entries]].transpose(0, 1, 3, 2)
    return Neighbours(np.ascontiguousarray(values), entries, (nearest[:, 0] < count).astype(np.uint8))
