"""Numbers: the fused product, sums in a fixed order, and elementary functions made of basic operations.

Arrays are float32 unless stated otherwise. Every operation is rounded once, to nearest even (IEEE 754).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

import numpy as np

F32 = np.float32
Numbers = np.ndarray | np.floating
LANES = 16
"""The number of accumulators of a sum over a row."""


def fma(a: Numbers, b: Numbers, c: Numbers) -> np.ndarray:
    """a * b + c, rounded once.

    The product is exact in float64, and the sum is rounded to float64. Rounding it to float32 is a second
    rounding, which can be wrong only if the sum is halfway between two float32: its last 28 bits are 0. Such
    sums are first rounded to odd, which makes the result right (Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums", 2008).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product = np.asarray(np.multiply(np.asarray(a, F32), np.asarray(b, F32), dtype=np.float64))
        z = np.asarray(c, np.float64)
        total = np.asarray(product + z)
        middle = (total.view(np.int64) & 0xFFFFFFF) == 0
        if middle.any():
            terms = (_chosen(x, middle) for x in (product, z))
            total[middle] = to_odd(total[middle], *terms)
        return total.astype(F32)


def _chosen(x: np.ndarray, where: np.ndarray) -> np.ndarray:
    """``x`` of the shape of ``where``, at its true places; a number stays a number."""
    if x.shape == where.shape:
        return np.asarray(x[where])
    return np.asarray(np.broadcast_to(x, where.shape)[where]) if x.ndim else x


def to_odd(total: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64 sums a + b rounded to odd: if inexact, the neighbour whose last bit is 1.

    ``total`` is a + b rounded to nearest.
    """
    part = total - a
    lost = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    inexact = (lost != 0) & (bits & 1 == 0) & (lost == lost)
    return (bits + np.where(inexact, np.where((lost > 0) == (total > 0), 1, -1), 0)).view(np.float64)


RUN = 1 << 15
"""Numbers of the steps that `fused_sum` computes before it looks at their rounding."""


def fused_sum(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out + a[0] * b[0] + a[1] * b[1] + ..., one `fma` after another; a and b are (steps, ...).

    A run of steps is computed without rounding to odd. If that would have changed a sum, which is rare, the
    run is done again step by step.
    """
    shape = np.broadcast_shapes(a.shape[1:], b.shape[1:], out.shape)
    n = max(1, RUN // max(1, int(np.prod(shape))))
    for first in range(0, len(a), n):
        steps = [np.asarray(x[first : first + n], F32) for x in (a, b)]
        with np.errstate(invalid="ignore", over="ignore"):
            products = np.multiply(*steps, dtype=np.float64)
            totals, sums = (np.empty((len(products) + i, *shape), t) for i, t in ((0, np.float64), (1, F32)))
            sums[0] = out
            for i, product in enumerate(products):
                np.add(product, sums[i], out=totals[i])
                sums[i + 1] = totals[i]
            last_bits, odd = totals.view(np.int64) & 0xFFFFFFF, totals
            if not last_bits.all():
                middle = last_bits == 0
                totals, product = totals[middle], np.broadcast_to(products, totals.shape)[middle]
                odd = to_odd(totals, product, sums[:-1][middle].astype(np.float64))
        if odd is totals or np.array_equal(odd, totals, equal_nan=True):
            out = sums[-1]
        else:
            for x, y in zip(*steps):
                out = fma(x, y, out)
    return out


def in_pairs(n: int) -> list[int]:
    """0 to n - 1 in the order 1, 0, 3, 2, ...; a last one without a partner stays last."""
    return [i ^ 1 for i in range((n + 1) // 2 * 2) if i ^ 1 < n]


def select_max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a where a > b, else b; so b where a is NaN."""
    return np.where(a > b, a, b)


def total(terms: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of arrays, added in order."""
    return reduce(add, terms)


def tree(lanes: np.ndarray) -> np.ndarray:
    """The sum over the last axis of 16 lanes: adds lanes 8 apart, then 4, 2, 1."""
    for n in (8, 4, 2, 1):
        lanes = lanes[..., :n] + lanes[..., n : 2 * n]
    return lanes[..., 0]


def tree_max(lanes: np.ndarray) -> np.ndarray:
    """The maximum over the last axis of 16 lanes."""
    for n in (8, 4, 2, 1):
        lanes = select_max(lanes[..., :n], lanes[..., n : 2 * n])
    return lanes[..., 0]


def in_lanes(x: np.ndarray, fill: float = 0.0) -> np.ndarray:
    """Rows (..., d) as (steps, ..., 16): element i is in lane i % 16 of step i // 16; pads with ``fill``."""
    missing = -x.shape[-1] % LANES
    widths = [(0, 0)] * (x.ndim - 1) + [(0, missing)]
    whole = np.pad(x, widths, constant_values=F32(fill)) if missing else x
    return np.moveaxis(whole.reshape(*x.shape[:-1], -1, LANES), -2, 0)


def strided_sum(x: np.ndarray) -> np.ndarray:
    """Sums over the last axis: lane i adds elements i, i + 16, ..., then `tree`."""
    sums = np.zeros((*x.shape[:-1], LANES), F32)
    for step in in_lanes(x):
        sums = step + sums
    return tree(sums)


def as_float(bits: np.ndarray) -> np.ndarray:
    """uint32 bits as float32."""
    return np.ascontiguousarray(bits, np.uint32).view(F32).reshape(np.shape(bits))


def as_bits(x: np.ndarray) -> np.ndarray:
    """float32 as uint32 bits."""
    return np.ascontiguousarray(x, F32).view(np.uint32).reshape(np.shape(x))


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16, to nearest even, as float32; NaN stays NaN."""
    bits = as_bits(x).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    nan = ((bits >> 16) | 0x40) << 16
    return as_float(np.where(bits & 0x7FFFFFFF > 0x7F800000, nan, rounded).astype(np.uint32))


def flush(x: np.ndarray) -> np.ndarray:
    """x, with 0 where |x| < 2^-56: then all products, and their sums, are multiples of 2^-126."""
    return np.where(np.abs(x) < F32(2**-56), F32(0), x)


def to_pair_bf16(x: np.ndarray) -> np.ndarray:
    """float32 for pair products: flushed, then rounded to bfloat16."""
    return to_bf16(flush(x))


def to_f16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to IEEE half, as float32."""
    with np.errstate(over="ignore"):
        return np.asarray(x, F32).astype(np.float16).astype(F32)


# --- elementary functions -----------------------------------------------------------------------------

MAGIC = F32(12582912.0)
"""1.5 * 2^23: adding it rounds to an integer."""


def polynomial(x: np.ndarray, *coefficients: float) -> np.ndarray:
    """Horner's rule, highest power first, with one fma per coefficient."""
    p = np.full(np.shape(x), F32(coefficients[0]), F32)
    for coefficient in coefficients[1:]:
        p = fma(p, x, F32(coefficient))
    return p


def exp(x: np.ndarray) -> np.ndarray:
    """e^x: 2^n e^r with r = x - n ln 2; 0 below -87.3, e^88 above 88."""
    x = np.asarray(x, F32)
    low, top = F32(-87.3), F32(88.0)
    y = np.where(x < low, low, np.where(top < x, top, x))
    n = fma(y, F32(1.44269504), MAGIC)
    power = as_float((as_bits(n) << np.uint32(23)) + np.uint32(127 << 23))
    n = n - MAGIC
    r = fma(n, F32(-0.693359375), y)
    r = fma(n, F32(2.12194440e-4), r)
    p = polynomial(
        r, 1.39262131e-3, 8.36320315e-3, 4.16665561e-2, 1.66665763e-1, 0.5, 1.0, 1.0
    )  # coefficients of degree 6, for e^r
    return np.where(x < low, F32(0), p * power)


def exp_to_bf16(x: np.ndarray) -> np.ndarray:
    """e^x for weights of bf16: 2^n 2^r with r = x log2(e) - n; 0 below -38.8."""
    x = np.asarray(x, F32)
    low, magic = F32(-38.8), F32(12583039.0)  # 1.5 * 2^23 + 127
    y = np.where(x < low, low, x) * F32(1.44269504)
    n = y + magic
    power = as_float(as_bits(n) << np.uint32(23))
    p = polynomial(y - (n - magic), 5.58382832e-2, 0.242639482, 0.693136752, 0.999924541)
    return np.where(x < low, F32(0), p * power)


def over_logistic(numerator: np.ndarray, x: np.ndarray) -> np.ndarray:
    """numerator / (1 + e^-x)."""
    found: np.ndarray = numerator / (F32(1) + exp(F32(0) - x))
    return found


def tanh(x: np.ndarray) -> np.ndarray:
    """tanh x: below 0.5625 an odd polynomial, above it 1 - 2 / (e^2|x| + 1)."""
    x = np.asarray(x, F32)
    a, z = np.abs(x), x * x
    p = polynomial(z, -6.52557239e-3, 2.12633535e-2, -5.39017543e-2, 1.33330733e-1, -3.33333313e-1)
    p = fma(x * z, p, x)
    far = F32(1) - F32(2) / (exp(a + a) + F32(1))
    far = np.where(x < 0, F32(0) - far, far)
    return np.where(a < F32(0.5625), p, far)


def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf x: e^-x^2 times a polynomial in (|x| - 2) / (|x| + 2), divided by 1 + 2|x|."""
    x = np.asarray(x, F32)
    top, two = F32(10), F32(2)
    a = np.where(top < np.abs(x), top, np.abs(x))
    w = (a - two) / (a + two)
    square = a * a
    lost = fma(a, a, F32(0) - square)
    power = exp(F32(0) - square)
    power = fma(power, F32(0) - lost, power)
    p = polynomial(
        w, -4.28746309e-4, -1.27448223e-3, 1.32424431e-3, 8.67044553e-3, -8.05695262e-3, -5.42151853e-2,
        1.64054111e-1, -1.66030407e-1, -9.27639082e-2, 1.27697837,
    )  # fmt: skip
    p = power * (p / fma(two, a, F32(1)))
    found: np.ndarray = np.where(x < 0, two - p, p)
    return found


def softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + e^x) = max(x, 0) + 2 artanh(u / (2 + u)) with u = e^-|x|."""
    x = np.asarray(x, F32)
    u = exp(F32(0) - np.abs(x))
    s = u / (u + F32(2))
    z = s * s
    p = polynomial(z, 1.16121642e-1, 1.08532883e-1, 1.42961785e-1, 1.99998528e-1, 3.33333343e-1)
    p = fma(s * z, p, s)
    found: np.ndarray = select_max(np.zeros_like(x), x) + (p + p)
    return found


LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 as the sum of two doubles."""


def exp_double(x: float) -> float:
    """e^x of a double: Taylor's series to r^13 / 13!, times 2^n; 0 below -700, infinite above 709."""
    if x != x:
        return x
    if x < -700.0:
        return 0.0
    if x > 709.0:
        return float("inf")
    n = (x * 1.44269504088896340736 + 6755399441055744.0) - 6755399441055744.0
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = 1.0
    for i in range(13, 0, -1):
        p = 1.0 + r * p / i
    return p * 2.0**n if n < 1024.0 else p * 2.0**1023 * 2.0


def log_double(x: float) -> float:
    """ln x of a double: x = 2^n m, ln m = 2 artanh((m - 1) / (m + 1)) by the series to s^23 / 23."""
    if not x > 0.0:
        return -float("inf") if x == 0.0 else float("nan")
    if x > 1.7976931348623157e308:
        return x
    n = 0.0
    if x < 2.2250738585072014e-308:
        x, n = x * 18014398509481984.0, -54.0
    bits = int(np.float64(x).view(np.uint64))
    n = n + float((bits >> 52) - 1023)
    m = float(np.uint64(bits & (1 << 52) - 1 | 0x3FF << 52).view(np.float64))
    if m > 1.4142135623730951:
        m, n = m * 0.5, n + 1
    s = (m - 1.0) / (m + 1.0)
    z, p = s * s, 0.0
    for i in range(23, 1, -2):
        p = z * (p + 1.0 / i)
    return n * LN2_HIGH + (2.0 * s + (2.0 * s * p + n * LN2_LOW))


def sine_cosine(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sin and cos of float64 angles: reduction by pi / 2 in three parts, Taylor series; NaN beyond 1e15."""
    with np.errstate(invalid="ignore"):
        k = (a * 0.63661977236758134308 + 6755399441055744.0) - 6755399441055744.0
        r = (
            (a - k * 1.57079632673412561417e00) - k * 6.07710050630396597660e-11
        ) - k * 2.02226624879595063154e-21
        z = r * r
        sine = 1.0 / 362880 - z / 39916800
        cosine = -1.0 / 3628800 + z / 479001600
        sine = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * sine)))
        cosine = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * cosine))))
        inside = np.abs(a) <= 1e15
        quadrant = np.where(inside, k, 0).astype(np.int64) & 3
    s = np.choose(quadrant, (sine, cosine, -sine, -cosine))
    c = np.choose(quadrant, (cosine, -sine, -cosine, sine))
    return np.where(inside, s, np.nan), np.where(inside, c, np.nan)
