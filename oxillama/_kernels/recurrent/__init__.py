"""Recurrent mixers: convolutions, scans, RWKV.

The signatures of what is compiled here, for type checkers; a test compares them with the modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np


class StateBatch(Protocol):
    """Where the rows of a batch stand, and where the states of their sequences are."""

    def __init__(
        self,
        before: Sequence[np.ndarray | None],
        after: Sequence[np.ndarray],
        row_start: np.ndarray,
        floats: int,
        earlier: Sequence[Sequence[np.ndarray]],
        recorded: Sequence[Sequence[np.ndarray]],
        settled: np.ndarray,
        record_floats: int,
    ) -> None: ...
    def conv(
        self,
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
    def shift(self, offset: int, record: int, x: np.ndarray, out: np.ndarray) -> None: ...
    def selective_scan(
        self,
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


StateBatchClass: TypeAlias = type[StateBatch]


class RecurrentModule(Protocol):
    """`recurrent.pyx`, built for a target."""

    StateBatch: StateBatchClass

    def head_steps(
        self, x: np.ndarray, column: int, bias: np.ndarray, a: np.ndarray, dt: np.ndarray, decay: np.ndarray
    ) -> None: ...
    def unit_heads(self, x: np.ndarray, heads: int, least: float) -> None: ...
    def add_bonus(
        self, r: np.ndarray, k: np.ndarray, weight: np.ndarray, v: np.ndarray, heads: int, out: np.ndarray
    ) -> None: ...
