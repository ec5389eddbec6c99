"""The entries of a grid around every point that a search can ask for: facts of the IQ1, IQ2 and IQ3 formats.

The nearest levels of a group of values, each alone, are a *point*. Most points are no entry of the grid. For
them the search weighs up the `KEPT` entries that are closest to the point.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from oxillama.formats import FORMAT_BY_ID, LAYOUTS

KEPT = 16
"""Entries for each point: one vector."""

GRIDS = {"IQ2_XXS": (0, 256), "IQ2_XS": (256, 512), "IQ2_S": (768, 1024), "IQ1_S": (1792, 2048)}
GRIDS |= {"IQ1_M": GRIDS["IQ1_S"], "IQ3_XXS": (0, 256), "IQ3_S": (256, 512)}
"""First entry and number of entries, among those of 8 values and 2 bits, or of 4 values and 4 bits."""

WORDS_OF_2_BITS = 2 * 3840
"""Where the entries of 4 bits begin in the file, which has 4 codes of 2 bits in a byte before."""


class Neighbours(NamedTuple):
    """What the search reads.

    Attributes
    ----------
    values : int8 (shifts, points, group, KEPT), the values of the entries around a point.
    entries : uint16 (points, KEPT), their numbers, the closest first.
    exact : uint8 (points,), whether the closest entry is the point itself.
    """

    values: np.ndarray
    entries: np.ndarray
    exact: np.ndarray


def grid_codes(name: str) -> np.ndarray:
    """uint8 (entries, group): the grid of a format in codes (see tools/make_grids.py)."""
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
    """The tables of a format. A point is a number whose digits are codes, the first value's in the lowest."""
    fmt = FORMAT_BY_ID[format_id]
    codes = grid_codes(fmt.name)
    count, group = codes.shape
    table = LAYOUTS[fmt.layout or ""].values
    n_levels = 8 if group == 4 else 3
    # codes 4 to 6 of IQ1 are the same levels, shifted the other way
    shifts = [table[:n_levels], table[4 : 4 + n_levels]] if fmt.name.startswith("IQ1") else [table[:n_levels]]
    levels = np.array(shifts, np.float32)
    points = np.array([p[::-1] for p in product(range(n_levels), repeat=group)], np.uint8)
    at, to = levels[0][points], levels[0][codes]
    # squared distances are integers below 2^17: exact in float32, whatever the order of the sums
    distances = (at**2).sum(1)[:, None] - 2 * at @ to.T + (to**2).sum(1)
    keys = distances.astype(np.int32) * np.int32(count) + np.arange(count, dtype=np.int32)
    nearest = np.sort(np.partition(keys, KEPT, axis=1)[:, :KEPT], axis=1)
    entries = (nearest % count).astype(np.uint16)
    values = levels.astype(np.int8)[:, codes[entries]].transpose(0, 1, 3, 2)
    return Neighbours(np.ascontiguousarray(values), entries, (nearest[:, 0] < count).astype(np.uint8))
