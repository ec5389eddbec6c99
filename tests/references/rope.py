"""Reference of the rotary frequencies: the papers' formulas in extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np

Wide = np.longdouble


def frequencies(rope: Any, context: int, factors: np.ndarray | None = None) -> np.ndarray:
    """Radians per position; ``rope`` has the attributes of the library's `Rope`."""
    n, base, s, first = rope.n_rot, Wide(rope.base), Wide(rope.factor), rope.original_context
    if rope.kind == "dynamic":
        s = s * context / first - (s - 1) if context > first else Wide(1)
    if rope.kind in ("ntk", "dynamic") and n > 2:
        base = base * s ** (Wide(n) / (n - 2))
    pairs = np.arange(n // 2)
    turning = base ** (-2 * pairs.astype(Wide) / n)
    if factors is not None:
        turning = turning / factors.astype(Wide)
    if sum(rope.sections):
        time, height, width, still = rope.sections
        turning = np.where(pairs % (time + height + width + still) < time + height + width, turning, 0)
    if rope.kind in ("linear", "longrope"):
        return turning / s
    if rope.kind != "yarn":
        return turning

    def pair_that_turns(times: float) -> Any:
        """base^(-2i/n) * first = 2 pi times, solved for i."""
        return n * np.log(first / (2 * Wide(np.pi) * Wide(times))) / (2 * np.log(base))

    low = max(0.0, np.floor(pair_that_turns(rope.beta_fast)))
    high = min(n - 1.0, np.ceil(pair_that_turns(rope.beta_slow)))
    kept = np.array([1 - min(1, max(0, (i - low) / max(0.001, high - low))) for i in pairs], Wide)
    kept = kept * Wide(rope.mix)
    return turning * kept + turning / s * (1 - kept)
