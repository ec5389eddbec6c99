"""What a sequence keeps of the tokens it has run, whatever the model keeps: the verbs it must know.

Keys and values are one kind (`oxillama.cache.kv.PagedKvCache`). The state of a recurrent model is
another: it cannot be cut at any token, only where it left a checkpoint (at the boundaries of blocks,
say), so `truncate` tells how many tokens it kept, and the sequence runs the others again.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class SequenceState(Protocol):
    """State of the first tokens of one sequence. It is not told which tokens they were."""

    @property
    def memory_bytes(self) -> int:
        """Bytes it holds, shared ones included."""

    def shortage(self, start: int, end: int) -> int:
        """Pages that must be taken before positions ``start`` to ``end`` can be written; a slot counts as the
        pages that take as much memory."""

    def demand(self, start: int, end: int, shared: bool) -> int:
        """The same, when they are written in any number of passes; ``shared`` if the cache takes over a state
        on the way."""

    def reserve(self, start: int, end: int) -> None:
        """Makes the positions ``start`` to ``end`` writable: takes what is missing, copies what is shared.

        Raises KvCacheFullError; then nothing has changed.
        """

    def truncate(self, n_tokens: int) -> int:
        """Forgets all but ``n_tokens`` tokens or fewer; returns how many are left."""

    def fork(self, n_tokens: int) -> tuple[SequenceState, int]:
        """A state of its own that begins with at most ``n_tokens`` tokens of this one, and how many."""

    def snapshot(self, n_tokens: int) -> np.ndarray:
        """uint8: the state after ``n_tokens`` tokens, to be put into another of its kind by `restore`."""

    def restore(self, data: np.ndarray, n_tokens: int) -> None:
        """Takes the state of a `snapshot` in place of its own.

        Raises ConfigError if it is not one of such a state, KvCacheFullError; then nothing has changed.
        """

    def release(self) -> None:
        """Frees everything."""
