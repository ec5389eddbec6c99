"""The parts that all recurrent blocks share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

LANES = 16  # channels to a block of the kernels' states


class RecurrentBlock:
    """A block with ``state_floats`` floats in the recurrent state of a sequence, from ``offset`` on."""

    state_floats: int = 0
    offset: int = 0


def assign_state_offsets(blocks: Iterable[object]) -> int:
    """Sets the offset of each recurrent block; returns the floats of a state."""
    total = 0
    for block in blocks:
        if isinstance(block, RecurrentBlock):
            block.offset = total
            total += -(-block.state_floats // LANES) * LANES
    return total


def padded(n: int) -> int:
    """``n`` channels rounded up to whole blocks."""
    return -(-n // LANES) * LANES


def in_blocks(table: np.ndarray) -> np.ndarray:
    """float32 (blocks, n, 16) of a table (channels, n), padded with zero channels."""
    channels, n = table.shape
    wide = np.zeros((padded(channels), n), np.float32)
    wide[:channels] = table
    return np.ascontiguousarray(wide.reshape(-1, LANES, n).transpose(0, 2, 1))
