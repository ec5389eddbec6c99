"""Rotary frequencies against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from oxillama.models.rope import rope_frequencies
from tests.twins.vector import frequencies


@pytest.mark.parametrize("base", [1.5, 100.0, 10000.0, 500000.0, 1e7])
@pytest.mark.parametrize("n_rot", [2, 16, 80, 128])
def test_powers_are_rounded_to_the_nearest_double(n_rot: int, base: float) -> None:
    """f is nearest to base^(-2i/n) if base^(-2i) lies between the n-th powers of f -+ half an ulp."""
    found = rope_frequencies(n_rot, base)
    assert found.dtype == np.float64
    assert found.shape == (n_rot // 2,)
    assert found[0] == 1
    for i in range(1, n_rot // 2):
        f, half = Fraction(float(found[i])), Fraction(float(np.spacing(found[i]))) / 2
        assert (f - half) ** n_rot <= Fraction(base) ** (-2 * i) <= (f + half) ** n_rot


def test_scaling_and_factors() -> None:
    factors = np.linspace(0.5, 8, 8).astype(np.float32)
    plain = rope_frequencies(16, 10000.0)
    assert np.array_equal(rope_frequencies(16, 10000.0, 0.25), plain / 4)
    assert np.array_equal(rope_frequencies(16, 10000.0, 1.0, factors), plain / factors.astype(np.float64))
    assert np.allclose(
        rope_frequencies(16, 10000.0, 0.3, factors),
        frequencies(16, 10000.0, 0.3, factors).astype(float),
        rtol=1e-15,
    )
