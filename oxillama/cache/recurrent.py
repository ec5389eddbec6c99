"""Pages and recurrent states of one sequence.

A pass reads the sequence's slot and writes another, so that a written slot never changes: forks share it, a
failed pass leaves it as it was, and the slots of earlier passes are *checkpoints*, to which the sequence can
be truncated. A sequence keeps a few checkpoints, fewer of the older tokens. The tokens after the checkpoint
that is taken run again. The prefix cache keeps slots of its own, beside the pages of their tokens.

A sequence without checkpoints whose slot nobody shares updates that slot in place, because slots are large.
If such a pass fails or is cancelled, the state is lost and all tokens run again.
"""

from __future__ import annotations

import numpy as np

from oxillama.cache.kv import PagedKvCache
from oxillama.cache.pages import PagePool
from oxillama.cache.recurrent_states import RecurrentStatePool
from oxillama.errors import ConfigError

CHECKPOINTS = 6
"""Most checkpoints of a sequence."""
CHECKPOINT_BYTES = 32 << 20
"""Most bytes of a sequence's checkpoints."""


class RecurrentCache(PagedKvCache):
    """Pages and recurrent states of one sequence, which can be truncated to its checkpoints only.

    Parameters
    ----------
    max_checkpoints : earlier states to keep, within `CHECKPOINT_BYTES`.

    Attributes
    ----------
    checkpoints : (tokens, slot) in order; the last is the present state.
    """

    def __init__(
        self, pool: PagePool, states: RecurrentStatePool, max_checkpoints: int = CHECKPOINTS
    ) -> None:
        super().__init__(pool)
        self.states = states
        self.max_checkpoints = min(max_checkpoints, CHECKPOINT_BYTES // max(1, states.slot_bytes))
        self.checkpoints: list[tuple[int, int]] = []
        self._next: int | None = None  # the slot that the next pass writes

    @property
    def memory_bytes(self) -> int:
        """Bytes of its pages and states, shared ones included."""
        return super().memory_bytes + len(self.checkpoints) * self.states.slot_bytes

    @property
    def can_rewind(self) -> bool:
        """Whether it keeps checkpoints."""
        return self.max_checkpoints > 0

    @property
    def length(self) -> int:
        """Tokens that the present state has seen."""
        return self.checkpoints[-1][0] if self.checkpoints else 0

    @property
    def slots(self) -> list[int]:
        """Slots with a reference of this sequence."""
        return [slot for _, slot in self.checkpoints] + ([] if self._next is None else [self._next])

    def state_after(self, n_tokens: int) -> int | None:
        """The slot of the state after ``n_tokens`` tokens, None without one."""
        return next((slot for n, slot in self.checkpoints if n == n_tokens), None)

    def adopt(self, pages: list[int], n_tokens: int, slot: int | None = None) -> None:
        """As `PagedKvCache.adopt`; the caller gives up its reference to the slot, too."""
        super().adopt(pages, n_tokens)
        assert not self.checkpoints and (slot is None) == (n_tokens == 0)
        if slot is not None:
            self.checkpoints = [(n_tokens, slot)]

    @property
    def _in_place(self) -> bool:
        """Whether the next pass updates the present slot: it is not shared, and no checkpoints are kept."""
        if self.max_checkpoints or not self.checkpoints:
            return False
        return self.states.references(self.checkpoints[-1][1]) == 1

    def _missing_slots(self) -> int:
        """Slots to allocate before a pass."""
        return int(self._next is None and not self._in_place)

    def shortage(self, start: int, end: int) -> int:
        """Pages that `reserve` would allocate; a slot counts as the pages of its memory."""
        state = self.states.slot_pages * self._missing_slots() if start < end else 0
        return self._missing(start, end) + state

    def demand(self, start: int, end: int, shared: bool) -> int:
        """As `PagedKvCache.demand`; a slot that is kept or shared needs a second one for the next pass."""
        held = bool(self.checkpoints) + (self._next is not None)
        two = bool(self.max_checkpoints) or shared or (bool(self.checkpoints) and not self._in_place)
        return self._missing(start, end) + self.states.slot_pages * max(0, 1 + two - held)

    def reserve(self, start: int, end: int) -> None:
        """Also allocates the slot that the next pass writes; checkpoints are dropped where memory is short.

        Raises KvCacheFullError; checkpoints may have been dropped then, but nothing else has changed.
        """
        while len(self.checkpoints) > 1 and not self.pool.can_allocate(self.shortage(start, end)):
            self._drop()
        fresh = self.states.allocate() if self._missing_slots() else self._next
        try:
            super().reserve(start, end)
        except BaseException:
            if fresh is not None and self._next is None:
                self.states.release(fresh)
            raise
        self._next = fresh

    def drop_checkpoints(self) -> None:
        """Frees all states but the present one."""
        while len(self.checkpoints) > 1:
            self._drop()

    def begin(self, start: int) -> tuple[np.ndarray | None, np.ndarray]:
        """The states, float32 (floats,), that a pass from ``start`` on reads (None for zeros) and writes.

        One array for both means an update in place: the sequence has no state until `end`.
        """
        assert start == self.length, "a pass begins at the end of the state"
        if self._next is None:
            assert self._in_place, "a pass needs a slot in reserve"
            self._next = self.checkpoints.pop()[1]
            state = self.states.slot(self._next)
            return state, state
        before = self.states.slot(self.checkpoints[-1][1]) if self.checkpoints else None
        return before, self.states.slot(self._next)

    def end(self, n_tokens: int) -> None:
        """Ends a pass; the state is now that after ``n_tokens`` tokens."""
        assert self._next is not None
        assert n_tokens > self.length
        self.checkpoints.append((n_tokens, self._next))
        self._next = None
        while len(self.checkpoints) > 1 + self.max_checkpoints:
            self._drop()

    def _drop(self) -> None:
        """Drops the checkpoint with the smallest distance of its neighbours relative to its age."""
        at = [0, *(n for n, _ in self.checkpoints)]
        worth = {i: (at[i + 1] - at[i - 1]) / (at[-1] - at[i]) for i in range(1, len(at) - 1)}
        self.states.release(self.checkpoints.pop(min(worth, key=lambda i: worth[i]) - 1)[1])

    def truncate(self, n_tokens: int) -> int:
        """Truncates to the last checkpoint within ``n_tokens`` tokens; returns the tokens that are left."""
        if self._next is not None:
            self.states.release(self._next)
            self._next = None
        while self.length > n_tokens:
            self.states.release(self.checkpoints.pop()[1])
        return super().truncate(self.length)

    def fork(self, n_tokens: int) -> tuple[RecurrentCache, int]:
        """A second sequence that shares pages and slots, and its tokens; nothing is copied."""
        other = RecurrentCache(self.pool, self.states, self.max_checkpoints)
        other.checkpoints = [mark for mark in self.checkpoints if mark[0] <= n_tokens]
        for _, slot in other.checkpoints:
            self.states.retain(slot)
        other.pages = self.pages[: self.pool.pages_for(other.length)]
        self.pool.retain(other.pages)
        return other, other.length

    def snapshot(self, n_tokens: int) -> np.ndarray:
        """uint8 (bytes,): the pages of the first ``n_tokens`` tokens, then the state after them.

        Raises ConfigError where the state is that of another number of tokens.
        """
        if n_tokens != self.length:
            raise ConfigError(f"snapshot: expected {self.length} tokens, as the state has, got {n_tokens}")
        pages = super().snapshot(n_tokens).reshape(-1)
        if not self.checkpoints:
            return pages
        return np.concatenate([pages, self.states.slot(self.checkpoints[-1][1]).view(np.uint8)])

    def restore(self, data: np.ndarray, n_tokens: int) -> None:
        """Replaces pages and state by those of a `snapshot`. Raises ConfigError, KvCacheFullError."""
        n_pages, size = self.pool.pages_for(n_tokens), self.pool.page_bytes
        expected = n_pages * size + (self.states.slot_bytes if n_tokens else 0)
        if data.dtype != np.uint8 or data.shape != (expected,):
            found = f"{data.dtype} {data.shape}"
            raise ConfigError(f"snapshot: expected uint8 ({expected},) for {n_tokens} tokens, got {found}")
        slot = self.states.allocate() if n_tokens else None
        try:
            super().restore(data[: n_pages * size].reshape(n_pages, size), n_tokens)
        except BaseException:
            if slot is not None:
                self.states.release(slot)
            raise
        if slot is not None:
            self.states.slot(slot).view(np.uint8)[:] = data[n_pages * size :]
            self.checkpoints = [(n_tokens, slot)]


def new_cache(pool: PagePool, checkpoints: int) -> PagedKvCache:
    """An empty cache for one sequence, with at most so many checkpoints if the model is recurrent."""
    states = pool.recurrent_states
    return PagedKvCache(pool) if states is None else RecurrentCache(pool, states, checkpoints)
