"""Buffers of a forward pass: made when they are used, kept between passes."""

from __future__ import annotations

import numpy as np

from oxillama.models.weights.linear import Linear
from oxillama.models.workspace import MIN_ROWS, Workspace


class NoMatrix(Linear):
    """A linear layer of which only the scratch memory is asked for."""

    def __init__(self) -> None:
        self.scratch_bytes = lambda n_rows: 0


def workspace(n_rows: int) -> Workspace:
    work = Workspace([NoMatrix()])
    work.reserve(n_rows, 0)
    return work


def test_a_buffer_is_the_same_memory_for_every_user() -> None:
    work = workspace(3)
    work.rows["h", 3, 8][:] = 7
    assert (work.rows["h", 3, 8] == 7).all()
    assert np.shares_memory(work.rows["h", 3, 8], work.rows["h", 2, 4])
    assert not np.shares_memory(work.rows["h", 3, 8], work.rows["y", 3, 8])


def test_a_buffer_has_room_for_all_reserved_rows_and_becomes_wider() -> None:
    work = workspace(1)
    narrow = work.rows["h", 1, 4]
    assert np.shares_memory(narrow, work.rows["h", MIN_ROWS, 4])
    wide = work.rows["h", MIN_ROWS, 5]
    assert wide.shape == (MIN_ROWS, 5) and wide.dtype == np.float32
    assert np.shares_memory(wide, work.rows["h", 1, 4])


def test_more_rows_make_new_buffers() -> None:
    work = workspace(1)
    before = work.rows["h", 1, 4]
    work.reserve(MIN_ROWS + 1, 0)
    assert work.rows["h", MIN_ROWS + 1, 4].shape == (MIN_ROWS + 1, 4)
    assert not np.shares_memory(before, work.rows["h", 1, 4])
