"""Rotary frequencies: from metadata to radians per position, to the same bits on every machine."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np


def rope_frequencies(
    n_rot: int, base: float, scale: float = 1.0, factors: np.ndarray | None = None
) -> np.ndarray:
    """float64 (n_rot / 2,): scale * base^(-2i / n_rot) / factors[i] (Su et al., RoFormer, 2021).

    The powers are computed in decimal arithmetic, which rounds the same everywhere; libm's do not.

    Parameters
    ----------
    n_rot : dimensions that rotate, even.
    base : theta of the slowest pair, above 0.
    scale : 1 / the factor of linear scaling (Chen et al., 2023).
    factors : float32 (n_rot / 2,), the file's ``rope_freqs.weight``, or None.
    """
    with localcontext() as context:
        context.prec = 30
        log = Decimal(base).ln()
        powers = [float((log * (-2 * i) / n_rot).exp()) for i in range(n_rot // 2)]
    frequencies = np.array(powers, np.float64) * scale
    return frequencies if factors is None else frequencies / factors.astype(np.float64)
