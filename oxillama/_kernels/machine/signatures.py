"""The signatures of what is compiled here, for type checkers alone; a test compares them with the modules."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class RooflineModule(Protocol):
    """`roofline.pyx`, built for a target."""

    def read_bytes(self, data: np.ndarray, n_threads: int) -> float: ...
    def integer_products(self, rounds: int, n_threads: int) -> int: ...
    def float_products(self, rounds: int, n_threads: int) -> int: ...
