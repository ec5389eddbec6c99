"""Resizing gives the bytes that its definition gives, computed here value by value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oxillama.models.media.resize import KERNELS, pad, resize, sinc
from oxillama.models.media.sizes import best_pins, longer_to, nearest_grid, slice_grid, smart, up_to_multiples

FUNCTIONS = {
    "bilinear": lambda x: max(0.0, 1 - abs(x)),
    "bicubic": lambda x: (
        (1.5 * abs(x) - 2.5) * x * x + 1
        if abs(x) < 1
        else (((abs(x) - 5) * abs(x) + 8) * abs(x) - 4) * -0.5
        if abs(x) < 2
        else 0.0
    ),
    "lanczos": lambda x: float(np.sinc(x) * np.sinc(x / 3)) if -3 <= x < 3 else 0.0,
}


def line(values: list[int], n_out: int, kernel: str) -> list[int]:
    """One row by the definition."""
    n_in, support = len(values), KERNELS[kernel][0]
    scale = n_in / n_out
    f, found = max(scale, 1.0), []
    for i in range(n_out):
        centre = (i + 0.5) * scale
        first = max(0, int(centre - support * f + 0.5))
        end = min(n_in, int(centre + support * f + 0.5))
        weights = [FUNCTIONS[kernel]((j - centre + 0.5) / f) for j in range(first, end)]
        total = sum(weights)
        whole = [int(w / total * 2**22 + math.copysign(0.5, w)) for w in weights]
        at = (2**21 + sum(w * v for w, v in zip(whole, values[first:end], strict=True))) >> 22
        found.append(min(255, max(0, at)))
    return found


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("n_in", "n_out"), [(1, 5), (4, 2), (7, 7), (5, 13), (100, 3), (200, 131)])
def test_rows_are_those_of_the_definition(kernel: str, n_in: int, n_out: int) -> None:
    values = np.random.default_rng(n_in).integers(0, 256, n_in).astype(np.uint8)
    row = np.stack([values] * 3, axis=1)[None]
    wanted = line(values.tolist(), n_out, kernel) if n_in != n_out else values.tolist()
    assert resize(row, n_out, 1, kernel)[0, :, 0].tolist() == wanted
    assert resize(row.transpose(1, 0, 2), 1, n_out, kernel)[:, 0, 2].tolist() == wanted


def test_values_computed_by_hand() -> None:
    row = np.array([0, 100, 200, 255], np.uint8)[None, :, None].repeat(3, axis=2)
    # taps of the first output: 3/4, 3/4, 1/4 over 7/4
    assert resize(row, 2, 1, "bilinear")[0, :, 1].tolist() == [71, 209]
    assert resize(row[:, :1], 3, 2, "lanczos").tolist() == [[[0] * 3] * 3] * 2


def test_sines_are_exact_where_they_vanish() -> None:
    assert sinc(np.arange(-3.0, 4.0)).tolist() == [0, 0, 0, 1, 0, 0, 0]
    x = np.linspace(-3, 3, 1001)
    assert np.abs(sinc(x) - np.sinc(x)).max() < 1e-15


def test_padding_keeps_proportions() -> None:
    white = np.full((10, 30, 3), 255, np.uint8)
    found = pad(white, 60, 60, "bilinear", (1, 2, 3))
    assert (found[20:40] == 255).all() and (found[:20] == (1, 2, 3)).all() and (found[40:] == (1, 2, 3)).all()
    assert pad(white, 30, 10, "bilinear") is white


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((84, 140), (84, 140)), ((56, 56), (84, 84)), ((37, 101), (56, 140)), ((5000, 5000), (1792, 1792))],
)
def test_smart_sizes(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert smart(size, 28, 8 * 28 * 28, 4096 * 28 * 28) == wanted


def test_smart_sizes_with_a_longest_edge() -> None:
    assert smart((50, 100), 28, 1, 1, 140, always_between=False) == (84, 140)
    assert smart((100, 50), 28, 0, 0, always_between=False) == (112, 56)


def test_grids_of_tiles() -> None:
    assert best_pins((168, 56), [(112, 112), (168, 56), (56, 168)]) == (168, 56)
    assert best_pins((10, 10), [(20, 20), (40, 40)]) == (20, 20)
    assert longer_to((300, 100), 90) == (90, 30) and longer_to((100, 301), 90) == (30, 90)
    assert up_to_multiples((57, 112), 56) == (112, 112)
    assert slice_grid((168, 56), 56, 9) == (3, 1)
    assert nearest_grid((2000, 1000), 2, 10, 512) == (4, 2)
