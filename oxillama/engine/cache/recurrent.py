"""Pages and recurrent states of one sequence.

A pass reads the sequence's slot and writes another, so that a written slot never changes: forks share it, a
failed pass leaves it as it was, and the slots of earlier passes are *checkpoints*, to which the sequence can
be truncated. A sequence keeps a few checkpoints, fewer of the older tokens. After a truncation the tokens
behind the checkpoint run again. The prefix cache keeps slots of its own, beside the pages of their tokens.

Drafted tokens are not added to the state. Each leaves a *record* of its inputs to the state: rejected tokens
are truncated, and accepted ones are not run again, since the next pass applies their records.

A sequence without checkpoints whose slot nobody shares updates that slot in place, because slots are large.
If such a pass fails or is cancelled, the state is lost and all tokens run again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.engine.cache.kv import CHECKPOINTS, PagedKvCache
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.cache.recurrent_states import RecurrentStatePool
from oxillama.errors import ConfigError
from oxillama.models.workspace import StateSlots

CHECKPOINT_BYTES = 32 << 20
"""Maximum bytes of a sequence's checkpoints."""
NOTHING = np.empty(0, np.uint8)


class RecurrentCache(PagedKvCache):
    """Pages and recurrent states of one sequence.

    It can be truncated to its checkpoints, and to any token with a record.

    Args:
        max_checkpoints: earlier states to keep, within `CHECKPOINT_BYTES`.

    Attributes:
        checkpoints: (number of tokens, slot) in order; the last is the present state.
        records: numbers of the records of the tokens after the present state.
    """

    def __init__(
        self, pool: CachePool, states: RecurrentStatePool, max_checkpoints: int = CHECKPOINTS
    ) -> None:
        super().__init__(pool, max_checkpoints > 0)
        self.states = states
        self.max_checkpoints: int = min(max_checkpoints, CHECKPOINT_BYTES // max(1, states.slot_bytes))
        self.checkpoints: list[tuple[int, int]] = []
        self.records: list[int] = []
        self._next: int | None = None  # the slot that the next pass writes
        self._next_settled = 0  # tokens in the state that it writes
        self._next_records: list[int] = []  # that it writes

    @property
    def memory_bytes(self) -> int:
        """Bytes of its pages and states, shared ones included."""
        states = len(self.checkpoints) * self.states.slot_bytes
        return super().memory_bytes + states + len(self.records) * self.states.records.slot_bytes

    @property
    def settled(self) -> int:
        """Number of tokens in the present state."""
        return self.checkpoints[-1][0] if self.checkpoints else 0

    @property
    def length(self) -> int:
        """Number of tokens that the next pass continues: tokens in the state and tokens with records."""
        return self.settled + len(self.records)

    def settled_of(self, n_tokens: int) -> int:
        """How many of the ``n_tokens`` tokens that have run are in the present state."""
        return self.settled

    @property
    def slots(self) -> list[int]:
        """Slots with a reference of this sequence."""
        return [slot for _, slot in self.checkpoints] + ([] if self._next is None else [self._next])

    @property
    def all_records(self) -> list[int]:
        """Records with a reference of this sequence."""
        return self.records + self._next_records

    def state_after(self, n_tokens: int) -> int | None:
        """The slot of the state after ``n_tokens`` tokens, None without one."""
        return next((slot for n, slot in self.checkpoints if n == n_tokens), None)

    def adopt(self, pages: Sequence[list[int]], n_tokens: int, slot: int | None = None) -> None:
        """As `PagedKvCache.adopt`; also takes over the caller's reference to the slot."""
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

    def shortage(self, start: int, end: int, n_open: int = 0) -> int:
        """Bytes that `reserve` would allocate, with slots and records."""
        pages = super().shortage(start, end)
        if start >= end:
            return pages
        records = self.states.records.slot_bytes * min(n_open, end - start)
        return pages + self.states.slot_bytes * self._missing_slots() + records

    def demand(self, start: int, end: int, rows: int, shared: bool) -> int:
        """As `PagedKvCache.demand`; a slot that is kept or shared needs a second one for the next pass."""
        held = bool(self.checkpoints) + (self._next is not None)
        two = bool(self.max_checkpoints) or shared or (bool(self.checkpoints) and not self._in_place)
        return super().demand(start, end, rows, shared) + self.states.slot_bytes * max(0, 1 + two - held)

    def reserve(self, start: int, end: int, n_open: int = 0) -> None:
        """Also allocates the slot and the records that the next pass writes.

        Checkpoints are dropped if memory is short.

        Raises KvCacheFullError; checkpoints may have been dropped by then, nothing else has changed.
        """
        while len(self.checkpoints) > 1 and not self.pool.limit.can_allocate(
            self.shortage(start, end, n_open)
        ):
            self._drop()
        if start >= end:
            return
        try:
            if self._missing_slots():
                self._next = self.states.allocate()
            for _ in range(min(n_open, end - start)):
                self._next_records.append(self.states.records.allocate())
            super().reserve(start, end)
        except BaseException:
            self._drop_next()
            raise
        self._next_settled = max(self.settled, end - n_open)

    def free_out_of_window(self, n_tokens: int) -> None:
        """As `PagedKvCache.free_out_of_window`, for rows from the end of the present state on."""
        super().free_out_of_window(min(n_tokens, self.settled))

    def drop_checkpoints(self, n_tokens: int) -> bool:
        """Also frees all states but the present one; returns whether anything was freed."""
        found = super().drop_checkpoints(self.settled) or len(self.checkpoints) > 1
        while len(self.checkpoints) > 1:
            self._drop()
        return found

    def begin(self, start: int) -> StateSlots:
        """The slots and records that a pass from ``start`` on reads and writes.

        If the state is updated in place, the sequence has no state until `end`.
        """
        assert start == self.length, "a pass begins at the end of the state"
        before = self.checkpoints[-1][1] if self.checkpoints else None
        settled = self._next_settled - self.settled
        if self._next is None:
            assert self._in_place, "a pass needs a slot in reserve"
            self._next = self.checkpoints.pop()[1]
        return StateSlots(before, self._next, tuple(self.records), tuple(self._next_records), settled)

    def end(self, n_tokens: int) -> None:
        """Ends a pass; the sequence has run ``n_tokens`` tokens."""
        assert self._next is not None
        if self.settled == self._next_settled and self.checkpoints:  # a copy of it
            self.states.release(self.checkpoints.pop()[1])
        self.checkpoints.append((self._next_settled, self._next))
        kept = n_tokens - self._next_settled - len(self._next_records)
        self._cut_records(0, len(self.records) - kept)
        self.records += self._next_records
        self._next, self._next_records = None, []
        assert self.length == n_tokens
        while len(self.checkpoints) > 1 + self.max_checkpoints:
            self._drop()

    def _cut_records(self, first: int, end: int) -> None:
        """Frees some of the records."""
        for number in self.records[first:end]:
            self.states.records.release(number)
        del self.records[first:end]

    def _drop_next(self) -> None:
        """Frees the slot and the records that were reserved for a pass."""
        if self._next is not None:
            self.states.release(self._next)
        for number in self._next_records:
            self.states.records.release(number)
        self._next, self._next_records = None, []

    def _drop(self) -> None:
        """Drops the checkpoint with the smallest distance of its neighbours relative to its age."""
        at = [0, *(n for n, _ in self.checkpoints)]
        worth = {i: (at[i + 1] - at[i - 1]) / (at[-1] - at[i]) for i in range(1, len(at) - 1)}
        self.states.release(self.checkpoints.pop(min(worth, key=lambda i: worth[i]) - 1)[1])

    def truncate(self, n_tokens: int) -> int:
        """Truncates to ``n_tokens`` tokens if they have records, else to the last checkpoint before them.

        Returns the number of tokens that are left.
        """
        self._drop_next()
        while self.settled > n_tokens:
            self.states.release(self.checkpoints.pop()[1])
            self._cut_records(0, len(self.records))
        # without a state, after a pass in place, records are of no use
        self._cut_records(n_tokens - self.settled if self.checkpoints else 0, len(self.records))
        kept = super().truncate(self.length)
        if kept < self.length:  # its pages were freed
            return self.truncate(kept)
        return kept

    def fork(self, n_tokens: int) -> tuple[RecurrentCache, int]:
        """A second sequence that shares pages, slots and records, and its number of tokens."""
        other = RecurrentCache(self.pool, self.states, self.max_checkpoints)
        other.checkpoints = [(n, slot) for n, slot in self.checkpoints if n <= n_tokens]
        if other.settled == self.settled:
            other.records = self.records[: n_tokens - self.settled]
        if other._share(self, other.length) < other.length:
            other.checkpoints, other.records = [], []
        for _, slot in other.checkpoints:
            self.states.retain(slot)
        for number in other.records:
            self.states.records.retain(number)
        return other, other.length

    def snapshot(self, n_tokens: int) -> list[np.ndarray]:
        """The pages of each group, then the state after ``n_tokens`` tokens as uint8 (bytes,).

        Raises ConfigError if the state belongs to another number of tokens.
        """
        if n_tokens != self.settled:
            raise ConfigError(
                f"snapshot: expected {self.settled} tokens (those of the state), got {n_tokens}"
            )
        state = self.states.read(self.checkpoints[-1][1]).view(np.uint8) if self.checkpoints else NOTHING
        return [*super().snapshot(n_tokens), state]

    def restore(self, data: Sequence[np.ndarray], n_tokens: int) -> None:
        """Replaces pages and state by the contents of a `snapshot`. Raises KvCacheFullError."""
        *pages, state = data
        slot = self.states.allocate() if n_tokens else None
        try:
            super().restore(pages, n_tokens)
        except BaseException:
            if slot is not None:
                self.states.release(slot)
            raise
        if slot is not None:
            self.states.write(slot, state.view(np.float32))
            self.checkpoints = [(n_tokens, slot)]
