"""The signatures of what is compiled here, for type checkers alone; a test compares them with the modules."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class VectorModule(Protocol):
    """`vector.pyx`, built for a target."""

    ACTIVATIONS: dict[str, int]

    def rms_norm(
        self,
        x: np.ndarray,
        weight: np.ndarray | None,
        eps: float,
        out: np.ndarray,
        n_threads: int,
        bias: np.ndarray | None = None,
        accumulate: bool = False,
    ) -> None: ...
    def layer_norm(
        self,
        x: np.ndarray,
        weight: np.ndarray | None,
        eps: float,
        out: np.ndarray,
        n_threads: int,
        bias: np.ndarray | None = None,
        accumulate: bool = False,
    ) -> None: ...
    def head_norm(
        self,
        x: np.ndarray,
        heads: int,
        head_dim: int,
        weight: np.ndarray | None,
        eps: float,
        n_threads: int,
        column: int = 0,
        centred: bool = False,
        bias: np.ndarray | None = None,
    ) -> None: ...
    def activate(self, x: np.ndarray, name: str, out: np.ndarray, n_threads: int) -> None: ...
    def gate(self, gate_up: np.ndarray, name: str, out: np.ndarray, n_threads: int) -> None: ...
    def gate_heads(
        self,
        x: np.ndarray,
        heads: int,
        gates: np.ndarray,
        column: int,
        step: int,
        name: str,
        n_threads: int,
    ) -> None: ...
    def cut(self, x: np.ndarray, d: int, scale: float, n_threads: int) -> None: ...
    def soft_cap(self, x: np.ndarray, cap: float, n_threads: int) -> None: ...
    def add_scaled(self, x: np.ndarray, y: np.ndarray, factor: float, n_threads: int) -> None: ...
    def add_rows(
        self, x: np.ndarray, rows: np.ndarray, factors: np.ndarray, y: np.ndarray, n_threads: int
    ) -> None: ...
    def rope_table(
        self, positions: np.ndarray, frequencies: np.ndarray, magnitude: float, out: np.ndarray
    ) -> None: ...
    def rope(
        self,
        x: np.ndarray,
        heads: int,
        head_dim: int,
        table: np.ndarray,
        neox: bool,
        n_threads: int,
        column: int = 0,
    ) -> None: ...
    def softmax(self, x: np.ndarray, out: np.ndarray) -> bool: ...
    def apply_mask(self, logits: np.ndarray, mask: np.ndarray) -> None: ...


class RoutingModule(Protocol):
    """`routing.pyx`, built for a target."""

    GATINGS: dict[str, int]

    def route(
        self,
        logits: np.ndarray,
        bias: np.ndarray | None,
        gating: str,
        groups: int,
        kept: int,
        normalize: bool,
        scale: float,
        chosen: np.ndarray,
        weights: np.ndarray,
    ) -> None: ...
    def group(
        self,
        chosen: np.ndarray,
        weights: np.ndarray,
        counts: np.ndarray,
        rows: np.ndarray,
        factors: np.ndarray,
    ) -> None: ...
