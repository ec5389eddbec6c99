"""The parts that all recurrent blocks share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

LANES = 16  # channels to a block of the kernels' states


class RecurrentBlock:
    """A block with ``state_floats`` floats in the recurrent state of a sequence, from ``offset`` on.

    For a drafted token it has ``record_floats`` floats in a record, from ``record`` on: the token's inputs to
    the state.
    """

    state_floats: int = 0
    offset: int = 0
    record_floats: int = 0
    record: int = 0


def assign_state_offsets(blocks: Iterable[object]) -> tuple[int, int]:
    """Sets the offsets of each recurrent block; returns the floats of a state and of a record."""
    floats = record_floats = 0
    for block in blocks:
        if isinstance(block, RecurrentBlock):
            block.offset, block.record = floats, record_floats
            floats += padded(block.state_floats)
            record_floats += padded(block.record_floats)
    return floats, record_floats


def padded(n: int) -> int:
    """``n`` channels rounded up to whole blocks."""
    return -(-n // LANES) * LANES


def in_blocks(table: np.ndarray) -> np.ndarray:
    """float32 (blocks, n, 16) of a table (channels, n), padded with zero channels."""
    channels, n = table.shape
    wide = np.zeros((padded(channels), n), np.float32)
    wide[:channels] = table
    return np.ascontiguousarray(wide.reshape(-1, LANES, n).transpose(0, 2, 1))
