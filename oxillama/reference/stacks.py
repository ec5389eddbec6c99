"""Passes through layers that later passes use again: loops, and HRM's two stacks (Wang et al., 2025)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.reference.source import Source, Unsupported

Layer = Callable[[int, np.ndarray], np.ndarray]
Norm = Callable[[np.ndarray], np.ndarray]


def looped(source: Source, x: np.ndarray, layer: Layer, norm: Norm) -> np.ndarray:
    """All layers, ``num_loops`` times; the norm follows each pass but the last, unless the file omits it."""
    loops, plain = source.key("num_loops", 1), source.key("skip_loop_final_norm", False)
    for loop in range(loops):
        for i in range(source.n_layers):
            x = layer(i, x)
        x = x if plain or loop == loops - 1 else norm(x)
    return x


def two_stacks(source: Source, x: np.ndarray, layer: Layer, norm: Norm) -> np.ndarray:
    """Cycles: some passes low = stack(high + low), then one pass high = stack(high + low) of other layers."""
    size, cycles, inner = (source.key(f"hrm.{key}") for key in ("layers_per_stack", "h_cycles", "l_cycles"))
    source.key("hrm.prefix_lm")
    if source.n_layers != size * cycles * (inner + 1):
        raise Unsupported(f"reference: {source.name}: {source.n_layers} layers do not fit its cycles")
    high, low = x, np.broadcast_to(source.vector("hrm.z_l_init"), x.shape)
    for _ in range(cycles):
        for first in (*[0] * inner, size):
            x = high + low
            for i in range(first, first + size):
                x = layer(i, x)
            x = norm(x)
            high, low = (high, x) if first == 0 else (x, low)
    return high
