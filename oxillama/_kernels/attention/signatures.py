"""The signatures of what is compiled here, for type checkers alone; a test compares them with the modules."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np

from oxillama._kernels.attention.page_table import PageTable


class KvShape(Protocol):
    """How a page is laid out."""

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        key_dim: int,
        value_dim: int,
        key_type: int,
        value_type: int,
        page_size: int,
    ) -> None: ...
    @property
    def page_bytes(self) -> int: ...


class PagedBatch(Protocol):
    """Where the rows of a batch stand, and where their keys and values are."""

    def __init__(
        self,
        shape: KvShape,
        pages: PageTable,
        tables: np.ndarray,
        row_start: np.ndarray,
        position: np.ndarray,
        bf16_dot: bool | None = None,
    ) -> None: ...
    def store(
        self, layer: int, x: np.ndarray, key_column: int, value_column: int, n_threads: int
    ) -> None: ...
    def scratch_bytes(self, n_threads: int) -> int: ...
    def attend(
        self,
        layer: int,
        q: np.ndarray,
        n_heads: int,
        scale: float,
        out: np.ndarray,
        scratch: np.ndarray,
        n_threads: int,
        window: int = 0,
        chunk: int = 0,
        *,
        causal: bool = True,
        softcap: float = 0,
        sinks: np.ndarray | None = None,
        slopes: np.ndarray | None = None,
        biases: np.ndarray | None = None,
        chosen: np.ndarray | None = None,
    ) -> None: ...
    def choose(
        self,
        layer: int,
        q: np.ndarray,
        n_heads: int,
        weights: np.ndarray,
        scores: np.ndarray,
        out: np.ndarray,
        scratch: np.ndarray,
        n_threads: int,
    ) -> None: ...


KvShapeClass: TypeAlias = type[KvShape]
PagedBatchClass: TypeAlias = type[PagedBatch]


class AttentionModule(Protocol):
    """`attention.pyx`, built for a target."""

    BF16_DOT: bool
    KvShape: KvShapeClass
    PagedBatch: PagedBatchClass
