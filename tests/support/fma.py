"""Reference of a float32 fma: exact rational arithmetic, rounded once, to nearest even (IEEE 754)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

LARGEST = Fraction(float(np.finfo(np.float32).max))


def nearest_float32(exact: Fraction) -> np.float32:
    """The float32 next to a rational number that is not zero."""
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size  # now 2^exponent <= size < 2^(exponent + 1)
    ulp = Fraction(2) ** max(exponent - 23, -149)
    steps = round(size / ulp)  # Python rounds a Fraction half to even
    value = np.float32(np.inf) if steps * ulp > LARGEST else np.float32(float(steps * ulp))
    return -value if exact < 0 else value


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """a * b + c of finite numbers, rounded once. The sign of an exact zero is not told: it is +0."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    return nearest_float32(exact) if exact else np.float32(0)
