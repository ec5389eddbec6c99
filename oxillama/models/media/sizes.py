"""Sizes to which pictures are resized, by the rules of the models' preprocessors, which compute in float32.

All sizes are (width, height) in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsFloat

import numpy as np

from oxillama.models.rope import log_of

F32 = np.float32
Size = tuple[int, int]


def half_away(x: SupportsFloat) -> int:
    """A number rounded to the nearest whole one, halves away from 0; for x >= 0."""
    return math.floor(float(x) + 0.5)


def smart(size: Size, unit: int, low: int, high: int, longest: int = 0, always_between: bool = True) -> Size:
    """Multiples of ``unit`` near a size, with ``low`` to ``high`` pixels.

    Args:
        longest: if above 0, the edge that the longer side is brought to first.
        always_between: False for no limits of the number of pixels.
    """
    w, h = size
    if longest:
        scale = min(F32(longest) / F32(w), F32(longest) / F32(h))
        width, height = (_up(F32(n) * scale, unit) for n in size)
    else:
        width, height = (max(unit, half_away(F32(n) / F32(unit)) * unit) for n in size)
    if not always_between:
        return width, height
    if width * height > high:
        shrink = np.sqrt(F32(w * h) / F32(high))
        width, height = (max(unit, math.floor(float(F32(n) / shrink / F32(unit))) * unit) for n in size)
    elif width * height < low:
        grow = np.sqrt(F32(low) / F32(w * h))
        width, height = (_up(F32(n) * grow, unit) for n in size)
    return width, height


def _up(x: np.float32, unit: int) -> int:
    """The next multiple of a unit."""
    return math.ceil(float(x / F32(unit))) * unit


def best_pins(size: Size, candidates: Sequence[Size]) -> Size:
    """The size that keeps the most pixels of a picture; among equal ones, the size with the least waste."""
    w, h = size

    def rank(candidate: Size) -> tuple[int, int]:
        width, height = candidate
        scale = min(F32(width) / F32(w), F32(height) / F32(h))
        kept = min(int(F32(w) * scale) * int(F32(h) * scale), w * h)
        return kept, kept - width * height

    return max(candidates, key=rank)  # the first of the best ones


def longer_to(size: Size, longest: int) -> Size:
    """The longer side brought to ``longest``; the other in proportion, even."""
    w, h = size
    if w >= h:
        other = int(longest / (w / h))
        return longest, other + other % 2
    other = int(longest * (w / h))
    return other + other % 2, longest


def up_to_multiples(size: Size, unit: int) -> Size:
    """Both sides brought to the next multiple of a unit."""
    return -(-size[0] // unit) * unit, -(-size[1] // unit) * unit


def fit_area(size: Size, side: int, unit: int, enlarges: bool) -> Size:
    """About ``side``^2 pixels in the proportions of a size, in multiples of ``unit`` (MiniCPM-V).

    Smaller sizes are only brought to multiples, unless ``enlarges``.
    """
    width, height = size
    if width * height > side * side or enlarges:
        ratio = F32(width) / F32(height)
        height = int(F32(side) / np.sqrt(ratio))
        width = int(F32(height) * ratio)
    width, height = (max(unit, half_away(F32(n) / F32(unit)) * unit) for n in (width, height))
    return width, height


def slice_grid(size: Size, side: int, most: int) -> Size:
    """(columns, rows) of the tiles of ``side``^2 pixels into which MiniCPM-V cuts a picture."""
    w, h = size
    wanted = min(math.ceil(float(F32(w * h) / F32(side * side))), most)
    grids = [
        (columns, n // columns)
        for n in (wanted - 1, wanted, wanted + 1)
        if n != 1 and n <= most
        for columns in range(1, n + 1)
        if n % columns == 0
    ]
    return min(grids or [(1, 1)], key=lambda grid: abs(log_of(w / h) - log_of(grid[0] / grid[1])))


def nearest_grid(size: Size, low: int, high: int, side: int) -> Size:
    """(columns, rows) of ``low`` to ``high`` tiles in proportions as near to a picture's as can be (LFM2)."""
    w, h = size
    found: dict[Size, None] = {}
    for n in range(low, high + 1):
        for columns in range(1, n + 1):
            for rows in range(1, n + 1):
                if low <= columns * rows <= high:
                    found.setdefault((columns, rows))
    ratio, best, least = F32(w) / F32(h), (1, 1), math.inf
    for columns, rows in sorted(found, key=lambda grid: grid[0] * grid[1]):
        difference = float(abs(ratio - F32(columns) / F32(rows)))
        is_tie = difference == least and w * h > 0.5 * side * side * columns * rows
        if difference < least or is_tie:
            best, least = (columns, rows), difference
    return best
