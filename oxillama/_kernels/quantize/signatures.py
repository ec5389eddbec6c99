"""The signatures of what is compiled here, for type checkers alone; a test compares them with the modules."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class QuantizeModule(Protocol):
    """`quantize.pyx`, built for a target."""

    def quantize(
        self,
        format_id: int,
        x: np.ndarray,
        rows: int,
        cols: int,
        importance: np.ndarray | None,
        out: np.ndarray,
        n_threads: int = 1,
    ) -> None: ...
