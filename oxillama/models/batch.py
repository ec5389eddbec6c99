"""The one input of a forward pass: a flat, ragged batch of rows from any number of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Rows to run, sequence by sequence.

    Examples: a chunk of a prompt, one decode step of many sequences, tokens to score.

    Attributes
    ----------
    tokens : int32 (rows,), token ids.
    positions : int32 (rows,), position of each row in its sequence.
    row_start : int32 (sequences + 1,), the rows of each sequence.
    tables : int32 (sequences, width), page numbers of each sequence in order of position.
    wanted : int64 (logits,), the rows whose logits are wanted, ascending.
    recurrent_states : for each sequence the state that the pass reads (None for zeros), and the one that it
        writes, float32 (floats,) each; None for a model without recurrent layers.
    """

    tokens: np.ndarray
    positions: np.ndarray
    row_start: np.ndarray
    tables: np.ndarray
    wanted: np.ndarray
    recurrent_states: list[tuple[np.ndarray | None, np.ndarray]] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def starts(self) -> np.ndarray:
        """int32 (sequences,), position of the first row of each."""
        starts: np.ndarray = self.positions[self.row_start[:-1]]
        return starts
