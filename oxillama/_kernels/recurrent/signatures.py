"""The signatures of what is compiled here, for type checkers alone; a test compares them with the modules.

Every function of rows takes a `StateBatch`, which says where the states of the sequences lie.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from oxillama._kernels.recurrent.state_batch import StateBatch


class RecurrentModule(Protocol):
    """`recurrent.pyx`, built for a target."""

    def causal_conv1d(
        self,
        states: StateBatch,
        offset: int,
        record: int,
        x: np.ndarray,
        column: int,
        weight: np.ndarray,
        bias: np.ndarray | None,
        silu: bool,
        out: np.ndarray,
        n_threads: int,
    ) -> None: ...
    def shift(self, states: StateBatch, offset: int, record: int, x: np.ndarray, out: np.ndarray) -> None: ...
    def selective_scan(
        self,
        states: StateBatch,
        offset: int,
        record: int,
        x: np.ndarray,
        dt: np.ndarray,
        a: np.ndarray,
        d: np.ndarray,
        bc: np.ndarray,
        b_column: int,
        c_column: int,
        z: np.ndarray,
        z_column: int,
        out: np.ndarray,
        n_threads: int,
    ) -> None: ...
    def head_scan(
        self,
        states: StateBatch,
        offset: int,
        record: int,
        heads: int,
        groups: int,
        n: int,
        xbc: np.ndarray,
        dt: np.ndarray,
        decay: np.ndarray,
        d: np.ndarray,
        z: np.ndarray,
        z_column: int,
        out: np.ndarray,
        n_threads: int,
    ) -> None: ...
    def wkv(
        self,
        states: StateBatch,
        offset: int,
        record: int,
        heads: int,
        r: np.ndarray,
        w: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        out: np.ndarray,
        n_threads: int,
        u: np.ndarray | None = None,
        a: np.ndarray | None = None,
        b: np.ndarray | None = None,
    ) -> None: ...
    def head_steps(
        self,
        x: np.ndarray,
        column: int,
        bias: np.ndarray,
        a: np.ndarray,
        dt: np.ndarray,
        decay: np.ndarray,
        n_threads: int,
    ) -> None: ...
    def unit_heads(self, x: np.ndarray, heads: int, least: float) -> None: ...
    def add_bonus(
        self, r: np.ndarray, k: np.ndarray, weight: np.ndarray, v: np.ndarray, heads: int, out: np.ndarray
    ) -> None: ...


class DeltaModule(Protocol):
    """`delta.pyx`, built for a target."""

    def delta_scan(
        self,
        states: StateBatch,
        offset: int,
        record: int,
        heads: int,
        interleaved: bool,
        qkv: np.ndarray,
        decay: np.ndarray,
        beta: np.ndarray,
        out: np.ndarray,
        n_threads: int,
    ) -> None: ...
