"""Measures the errors of the kernels' elementary functions, whose bounds mathfun.pxd states.

Needs NumPy and oxillama built in place:

    python tools/measure_mathfun.py [step]

evaluates each function at every float32 of its range, or at every step-th one, and prints the largest error,
in units of the last place of the exact value, and its argument. All floats take some minutes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from oxillama import _kernels

CHUNK = 1 << 20


def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf(x), float64."""
    return np.array([math.erfc(v) for v in x.tolist()])


# activation, exact value in float64, range of the argument; both signs where the function is not odd
FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], list[tuple[float, float]]]] = {
    "exp": (np.exp, [(1e-9, 88.0), (-87.3, -1e-9)]),
    "tanh": (np.tanh, [(1e-30, 12.0)]),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), [(1e-9, 100.0), (-87.0, -1e-9)]),
    "erfc": (erfc, [(1e-8, 9.3), (-6.0, -1e-8)]),
    "silu": (lambda x: x / (1 + np.exp(-x)), [(1e-9, 100.0), (-87.0, -1e-9)]),
}


def floats(low: float, high: float, step: int) -> np.ndarray:
    """Bit patterns of every ``step``-th float32 of a range whose ends have the same sign: int64 (n,)."""
    a, b = sorted(np.array([low, high], np.float32).view(np.uint32).astype(np.int64))
    return np.arange(a, b + 1, step)


def worst(name: str, step: int, target: str | None = None) -> tuple[float, float]:
    """The largest error of an activation, in ulp, and its argument."""
    exact, ranges = FUNCTIONS[name]
    vector = (_kernels.load(target) if target else _kernels.best()).vector
    most, where = 0.0, 0.0
    for low, high in ranges:
        bits = floats(low, high, step)
        for start in range(0, len(bits), CHUNK):
            x = bits[start : start + CHUNK].astype(np.uint32).view(np.float32)
            found = np.empty_like(x)
            vector.activate(x, name, found, 1)
            right = exact(x.astype(np.float64))
            unit = np.spacing(np.abs(right).astype(np.float32)).astype(np.float64)
            errors = np.abs(found - right) / unit
            at = int(errors.argmax())
            if errors[at] > most:
                most, where = float(errors[at]), float(x[at])
    return most, where


def main() -> None:
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for name in FUNCTIONS:
        most, where = worst(name, step)
        print(f"{name}: {most:.2f} ulp at {where:.9g}", flush=True)


if __name__ == "__main__":
    main()
