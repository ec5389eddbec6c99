"""The signatures of what is compiled here, for type checkers alone; a test compares them with the modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np


class Program(Protocol):
    """Stages in order, checked and with their arrays."""

    n: int

    def __init__(self, stages: Sequence[tuple[str, Sequence[float], Sequence[np.ndarray]]]) -> None: ...


class Workspace(Protocol):
    """The memory of one choice at a time."""

    def __init__(self, vocab: int) -> None: ...
    @property
    def vocab(self) -> int: ...
    def start(self, logits: np.ndarray) -> int: ...
    def apply(
        self, program: Program, history: np.ndarray, mask: np.ndarray | None, chance: float, mu: float
    ) -> int: ...
    def draw(self, u: float) -> tuple[int, int, float]: ...
    def candidates(self) -> tuple[np.ndarray, np.ndarray]: ...
    def replace(self, ids: np.ndarray, logits: np.ndarray) -> int: ...
    def distribution(self) -> tuple[np.ndarray, np.ndarray] | None: ...
    def top(self, k: int) -> tuple[np.ndarray, np.ndarray]: ...
    def logprob(self, token: int) -> float: ...


Row: TypeAlias = tuple[Program, np.ndarray, np.ndarray, np.ndarray | None, float, float, float]
"""A program, logits, history, mask, chance, mu, u."""

Workspaces: TypeAlias = list[Workspace]
ProgramClass: TypeAlias = type[Program]
WorkspaceClass: TypeAlias = type[Workspace]


class SamplingModule(Protocol):
    """`sampling.pyx`, built for a target."""

    KINDS: dict[str, int]
    Program: ProgramClass
    Workspace: WorkspaceClass

    def sample_rows(self, rows: list[Row], workspaces: Workspaces) -> list[tuple[int, int, float]]: ...
    def log(self, x: float) -> float: ...
    def exp(self, x: float) -> float: ...
