"""Packed matrices times activations.

The signatures of what is compiled here, for type checkers; a test compares them with the modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np


class Linear(Protocol):
    """Matrices that share one input, stacked by rows."""

    rows: int
    cols: int

    def __init__(
        self, matrices: Sequence[tuple[int, int, np.ndarray]], cols: int, bias: np.ndarray | None = None
    ) -> None: ...
    def scratch_bytes(self, n: int) -> int: ...
    def apply(
        self, x: np.ndarray, out: np.ndarray, scratch: np.ndarray, n_threads: int, accumulate: bool = False
    ) -> None: ...


Linears: TypeAlias = list[Linear]
LinearClass: TypeAlias = type[Linear]


class LinearModule(Protocol):
    """`linear.pyx`, built for a target."""

    Linear: LinearClass

    def apply_groups(
        self,
        linears: Linears,
        counts: np.ndarray,
        x: np.ndarray,
        rows: np.ndarray | None,
        out: np.ndarray,
        scratch: np.ndarray,
        n_threads: int,
    ) -> None: ...
