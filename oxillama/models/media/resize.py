"""Resizing of 8-bit pictures, in exact arithmetic: the bytes of Pillow's `Image.resize` on every machine.

A resize is separable: rows first, then columns, with 8-bit values between. Weights are computed in doubles,
in a fixed order, and rounded to multiples of 2^-22; sums are of integers. An axis of equal size is left
as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

BITS = 22
"""Fractional bits of the weights."""

STRIP = 64
"""Outputs of a row that are computed together; fewer where each takes many inputs."""

ALONE = 1 << 18
"""Most products of a call: OpenBLAS wakes threads for more, which spin for 0.1 s on the encoders' cores."""

Kernel = Callable[[np.ndarray], np.ndarray]


def bilinear(x: np.ndarray) -> np.ndarray:
    """1 - |x| within 1."""
    found: np.ndarray = np.maximum(0.0, 1.0 - np.abs(x))
    return found


def bicubic(x: np.ndarray) -> np.ndarray:
    """The cubic convolution (Keys, 1981) with a = -0.5, within 2."""
    return cubic(x, -0.5)


def cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution (Keys, 1981), within 2; float64 as ``x``."""
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def lanczos(x: np.ndarray) -> np.ndarray:
    """sinc(x) sinc(x / 3), within 3."""
    return np.where((x >= -3.0) & (x < 3.0), sinc(x) * sinc(x / 3.0), 0.0)


def sinc(x: np.ndarray) -> np.ndarray:
    """sin(pi x) / (pi x); 1 at 0."""
    angle = np.where(x == 0.0, 1.0, x * np.pi)
    return np.where(x == 0.0, 1.0, sine_of_half_turns(x) / angle)


def sine_of_half_turns(x: np.ndarray) -> np.ndarray:
    """sin(pi x), float64, by additions and products alone: the same bits on every machine."""
    whole = np.rint(x)
    r = (x - whole) * np.pi
    z = r * r
    term, total = r, r.copy()
    for i in range(2, 26, 2):
        term = term * z / -float(i * (i + 1))
        total += term
    found: np.ndarray = np.where(whole % 2 == 0, total, -total)
    return found


KERNELS: dict[str, tuple[float, Kernel]] = {
    "bilinear": (1.0, bilinear),
    "bicubic": (2.0, bicubic),
    "lanczos": (3.0, lanczos),
}
"""By name: the support, and the function."""


def taps(n_in: int, n_out: int, kernel: str) -> tuple[np.ndarray, np.ndarray]:
    """The inputs of each output, and their weights.

    Returns:
        first: int64 (n_out,), the first input of each output.
        weights: float64 (n_out, taps), which sum to 1; 0 behind the last input.
    """
    support, function = KERNELS[kernel]
    scale = n_in / n_out
    stretch = max(scale, 1.0)
    centre = (np.arange(n_out) + 0.5) * scale
    first = np.maximum(0, (centre - support * stretch + 0.5).astype(np.int64))
    end = np.minimum(n_in, (centre + support * stretch + 0.5).astype(np.int64))
    places = np.arange(int((end - first).max()))
    weights = function((places + (first - centre + 0.5)[:, None]) * (1.0 / stretch))
    weights = np.where(places < (end - first)[:, None], weights, 0.0)
    total = np.zeros(n_out)
    for column in weights.T:  # in order
        total += column
    return first, np.where(total != 0.0, 1.0 / np.where(total == 0.0, 1.0, total), 1.0)[:, None] * weights


def resize_rows(rows: np.ndarray, width: int, kernel: str) -> np.ndarray:
    """uint8 (n, width) of uint8 (n, w).

    The sums are products of matrices of doubles: they are whole numbers below 2^53, so that every order of
    the additions gives the same.
    """
    n, n_in = rows.shape
    if width == n_in:
        return rows
    first, weights = taps(n_in, width, kernel)
    scaled = weights * (1 << BITS)
    rounded = np.where(scaled < 0, scaled - 0.5, scaled + 0.5).astype(
        np.int64
    )  # towards 0: half away from it
    out = np.empty((n, width), np.uint8)
    strip = max(8, STRIP * width // max(width, n_in))
    for x in range(0, width, strip):
        firsts, band = first[x : x + strip], rounded[x : x + strip]
        start = int(firsts[0])
        end = min(n_in, int(firsts[-1]) + band.shape[1])
        matrix = np.zeros((end - start + band.shape[1], len(band)))  # weights behind the last input are 0
        for k in range(band.shape[1]):
            matrix[firsts - start + k, np.arange(len(band))] = band[:, k]
        step = max(1, ALONE // ((end - start) * len(band)))
        for y in range(0, n, step):
            total = rows[y : y + step, start:end].astype(np.float64) @ matrix[: end - start]
            whole = total.astype(np.int64) + (1 << (BITS - 1)) >> BITS
            out[y : y + step, x : x + strip] = np.clip(whole, 0, 255)
    return out


def resize(picture: np.ndarray, width: int, height: int, kernel: str) -> np.ndarray:
    """uint8 (height, width, 3) of uint8 (h, w, 3) by "bilinear", "bicubic" or "lanczos"."""
    if (width, height) == (picture.shape[1], picture.shape[0]):
        return picture
    h = len(picture)
    planes = np.ascontiguousarray(picture.transpose(2, 0, 1)).reshape(3 * h, -1)
    wide = resize_rows(planes, width, kernel).reshape(3, h, width)
    columns = np.ascontiguousarray(wide.transpose(0, 2, 1)).reshape(3 * width, h)
    tall = resize_rows(columns, height, kernel).reshape(3, width, height)
    return np.ascontiguousarray(tall.transpose(2, 1, 0))


BLACK = (0, 0, 0)


def pad(
    picture: np.ndarray, width: int, height: int, kernel: str, colour: tuple[int, int, int] = BLACK
) -> np.ndarray:
    """uint8 (height, width, 3): the picture in its own proportions in the middle of a colour."""
    h, w = picture.shape[:2]
    if (w, h) == (width, height):
        return picture
    scale = min(np.float32(width) / np.float32(w), np.float32(height) / np.float32(h))
    inner_w = min(int(np.ceil(np.float32(w) * scale)), width)
    inner_h = min(int(np.ceil(np.float32(h) * scale)), height)
    out = np.empty((height, width, 3), np.uint8)
    out[:] = colour
    x, y = (width - inner_w) // 2, (height - inner_h) // 2
    out[y : y + inner_h, x : x + inner_w] = resize(picture, inner_w, inner_h, kernel)
    return out
