"""What blocks with a recurrent state share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

LANES = 16  # channels to a block of the kernels' memories


class RecurrentBlock:
    """A block that keeps ``state_floats`` floats of every sequence, from ``offset`` on in its state."""

    state_floats: int = 0
    offset: int = 0


def assign_state_offsets(blocks: Iterable[object]) -> int:
    """Gives each stateful block its range of a state; how many floats a state has."""
    total = 0
    for block in blocks:
        if isinstance(block, RecurrentBlock):
            block.offset = total
            total += -(-block.state_floats // LANES) * LANES
    return total


def padded(n: int) -> int:
    """Channels of the blocks that hold ``n``."""
    return -(-n // LANES) * LANES


def in_blocks(table: np.ndarray) -> np.ndarray:
    """float32 (blocks, n, 16) of (channels, n), with zeros behind the last channel."""
    channels, n = table.shape
    wide = np.zeros((padded(channels), n), np.float32)
    wide[:channels] = table
    return np.ascontiguousarray(wide.reshape(-1, LANES, n).transpose(0, 2, 1))
