"""The one input of a forward pass: a flat, ragged batch of rows from any number of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from oxillama.weights.low_rank import AdaptedRows


class StateSlots(NamedTuple):
    """As `StatePart`, with the numbers of slots and records in place of their memory."""

    before: int | None
    after: int
    earlier: Sequence[int]
    recorded: Sequence[int]
    settled: int


class StatePart(NamedTuple):
    """The recurrent state that a pass reads and writes for a sequence; arguments of `StateBatch`.

    Attributes
    ----------
    before, after : the state that the pass reads (None for zeros), and the one that it writes, float32
        (floats,) each; one array for both is an update in place.
    earlier : records of the rows between that state and the first row of the pass.
    recorded : records that the pass writes for its last rows.
    settled : how many of its rows, earlier ones first, are applied to the state that it writes.
    """

    before: np.ndarray | None
    after: np.ndarray
    earlier: Sequence[np.ndarray]
    recorded: Sequence[np.ndarray]
    settled: int


@dataclass(frozen=True)
class Batch:
    """Rows to run, sequence by sequence.

    Examples: a chunk of a prompt, one decode step of many sequences, tokens to score.

    Attributes
    ----------
    tokens : int32 (rows,), token ids.
    positions : int32 (rows,), position of each row in its sequence.
    row_start : int32 (sequences + 1,), the rows of each sequence.
    wanted : int64 (logits,), the rows whose logits are wanted, ascending.
    recurrent_states : of each sequence; None for a model without recurrent layers.
    adapted : the rows that take adapters; None where no row does.
    """

    tokens: np.ndarray
    positions: np.ndarray
    row_start: np.ndarray
    wanted: np.ndarray
    recurrent_states: list[StatePart] | None = None
    adapted: AdaptedRows | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def starts(self) -> np.ndarray:
        """int32 (sequences,), position of the first row of each."""
        starts: np.ndarray = (
            self.positions[self.row_start[:-1]] if len(self.row_start) > 2 else self.positions[:1]
        )
        return starts
