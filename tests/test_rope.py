"""Rotary frequencies against extended precision."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama.models.rope import rope_frequencies
from tests.twins.vector import frequencies


@pytest.mark.parametrize("base", [1.5, 100.0, 10000.0, 500000.0, 1e7])
@pytest.mark.parametrize("n_rot", [2, 16, 80, 128])
def test_powers_are_rounded_to_the_nearest_double(n_rot: int, base: float) -> None:
    found = rope_frequencies(n_rot, base)
    assert found.dtype == np.float64
    assert found.shape == (n_rot // 2,)
    assert found[0] == 1
    error = np.abs(found - frequencies(n_rot, base))
    assert (error <= 0.6 * np.spacing(found)).all()  # 0.1 of it for the extended precision's own


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


def test_the_first_double_of_a_known_value() -> None:
    """10000^(-2/128), from an arbitrary-precision calculator: 0.86596432336006535..."""
    assert rope_frequencies(128, 10000.0)[1] == 0.8659643233600653
