"""What the engine tells a stage, and what a stage tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from oxillama.base.config import EngineConfig
from oxillama.gguf.model_file import ModelFile
from oxillama.models.workspace import StateSlots


@dataclass(frozen=True)
class Copy:
    """A page that is copied onto another one, in one page group."""

    group: int
    to: int
    source: int


@dataclass(frozen=True)
class PassMessage:
    """A pass over a batch, in every stage.

    Attributes:
        copies: of pages, made before the pass, in order.
        tokens, positions, row_start: as in `Batch`.
        tables: of each page group int32 (sequences, width), the pages of the sequences.
        states: what the pass does to the recurrent state of each sequence; None without recurrent layers.
        input_rows: as in `Batch`.
    """

    copies: tuple[Copy, ...]
    tokens: np.ndarray
    positions: np.ndarray
    row_start: np.ndarray
    tables: list[np.ndarray]
    states: list[StateSlots] | None
    input_rows: Any = None


@dataclass(frozen=True)
class StagePlan:
    """What a stage loads.

    Attributes:
        path: of the model's file, on the stage's machine.
        config: of its engine, as far as it concerns weights, pages and threads.
        part: its layers, the first and the one behind the last.
        context_size: of the engine.
    """

    path: str
    config: EngineConfig
    part: tuple[int, int]
    context_size: int


@dataclass(frozen=True)
class StageFacts:
    """What a stage has loaded.

    Attributes:
        model: facts of the file, equal for files that have the same tensors in the same places.
        state_floats, record_floats: sizes of its part of a recurrent state and of a record.
        unused: tensors of the file that it does not use.
    """

    model: tuple[int, int]
    state_floats: int
    record_floats: int
    unused: tuple[str, ...]


def facts_of_file(file: ModelFile) -> tuple[int, int]:
    """A file's number of tensors, and a sum over the names, places, shapes and formats of them."""
    entries = sorted((name, info.shape, info.format.id, info.nbytes) for name, info in file.tensors.items())
    return len(entries), crc32(repr(entries).encode())
