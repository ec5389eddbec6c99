"""States of recurrent layers, beside the pages: one *slot* of floats for all such layers of a model.

A pass reads a sequence's slot and writes another, so a slot is not changed once it is written: forks share
it, a pass that fails leaves it alone, and the slots of earlier passes are *checkpoints* that a sequence can
be cut back to. A few are kept, the further back the further apart; what lies behind the checkpoint that is
taken is run again. The prefix cache keeps states of its own, beside the pages of the tokens they have seen.

A sequence that keeps no checkpoints, and shares its state with nobody, changes it in place, for states are
large. If such a pass fails, the sequence has none, and all its tokens are run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama.cache.kv import PagedKvCache
from oxillama.cache.pages import PagePool
from oxillama.errors import ConfigError, KvCacheFullError

CHECKPOINTS = 6
"""Earlier states that a sequence keeps, if they are small."""
CHECKPOINT_BYTES = 32 << 20
"""Most bytes that the earlier states of a sequence take."""


class SsmStatePool:
    """Slots of ``floats`` float32 each, handed out by number and counted by reference.

    Memory is taken when it is needed, within the limit of a pool of pages; `shrink_to_fit` gives back what is
    free.

    Parameters
    ----------
    pool : whose limit slots count against.

    Raises
    ------
    ConfigError : not even one sequence could go on within that limit.
    """

    def __init__(self, pool: PagePool, floats: int) -> None:
        self.pool = pool
        self.floats = floats
        if 2 * self.slot_pages + 1 > pool.max_pages:
            needed, most = 2 * self.slot_bytes + pool.stride, pool.max_pages * pool.stride
            raise ConfigError(
                f"kv_memory_limit: {most} bytes, but two states and a page of a sequence take {needed}"
            )
        self._slots: list[np.ndarray | None] = []
        self._references: list[int] = []
        self._free: list[int] = []  # with memory
        self._bare: list[int] = []  # without

    @property
    def slot_bytes(self) -> int:
        return 4 * self.floats

    @property
    def slot_pages(self) -> int:
        """Pages that take as much memory as a slot."""
        return -(-self.slot_bytes // self.pool.stride)

    @property
    def n_live(self) -> int:
        """Slots that have memory."""
        return len(self._slots) - len(self._bare)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory the slots hold."""
        return self.n_live * self.slot_bytes

    @property
    def n_used(self) -> int:
        """Slots that somebody holds."""
        return self.n_live - len(self._free)

    def allocate(self) -> int:
        """A slot with one reference and any content.

        Raises
        ------
        KvCacheFullError : the pool has no room for it, or the system no memory.
        """
        if not self.pool.can_allocate(self.slot_pages):
            available = self.pool.n_available * self.pool.stride
            raise KvCacheFullError(f"a state of {self.slot_bytes} bytes needed, {available} bytes available")
        if not self._free:
            self._grow()
        number = self._free.pop()
        self._references[number] = 1
        return number

    def _grow(self) -> None:
        self.pool.make_way(self.slot_pages)
        try:
            memory = aligned_empty(self.slot_bytes).view(np.float32)
        except MemoryError as error:
            raise KvCacheFullError(f"no memory for a state of {self.slot_bytes} bytes") from error
        number = self._bare.pop() if self._bare else len(self._slots)
        if number == len(self._slots):
            self._slots.append(None)
            self._references.append(0)
        self._slots[number] = memory
        self._free.append(number)

    def references(self, number: int) -> int:
        """How many hold a slot."""
        return self._references[number]

    def slot(self, number: int) -> np.ndarray:
        """float32 (floats,): the memory of a slot in use."""
        slot = self._slots[number]
        assert slot is not None
        return slot

    def retain(self, number: int) -> None:
        """Adds a reference."""
        assert self._references[number] > 0, "only a slot in use can be shared"
        self._references[number] += 1

    def release(self, number: int) -> None:
        """Drops a reference; a slot that has none left is free again."""
        assert self._references[number] > 0, "a slot is released as often as it was taken"
        self._references[number] -= 1
        if not self._references[number]:
            self._free.append(number)

    def shrink_to_fit(self) -> None:
        """Gives the memory of free slots back to the system."""
        for number in self._free:
            self._slots[number] = None
        self._bare += self._free
        self._free = []

    def check_integrity(self, holders: Iterable[Iterable[int]] | None = None) -> None:
        """Asserts that every slot is free, without memory, or referenced; with ``holders``, by just these."""
        unused = [*self._free, *self._bare]
        assert len(unused) == len(set(unused)), "a slot is free twice"
        assert set(unused) == {slot for slot, n in enumerate(self._references) if n == 0}, "a slot is lost"
        assert set(self._bare) == {i for i, slot in enumerate(self._slots) if slot is None}
        if holders is not None:
            held = Counter(slot for slots in holders for slot in slots)
            counted = {slot: n for slot, n in enumerate(self._references) if n}
            assert held == counted, f"slots held and counted differ: {held - Counter(counted)}, {counted}"


class RecurrentCache(PagedKvCache):
    """Pages and states of one sequence; a `SequenceState` that can be cut at its checkpoints only.

    Parameters
    ----------
    most : earlier states that it keeps, if they are small.

    Attributes
    ----------
    checkpoints : (tokens, slot) in order; the last is the present state.
    """

    def __init__(self, pool: PagePool, states: SsmStatePool, most: int = CHECKPOINTS) -> None:
        super().__init__(pool)
        self.states = states
        self.most = min(most, CHECKPOINT_BYTES // max(1, states.slot_bytes))
        self.checkpoints: list[tuple[int, int]] = []
        self._next: int | None = None  # the slot that the pass under way writes

    @property
    def memory_bytes(self) -> int:
        """Bytes of its pages and states, shared ones included."""
        return super().memory_bytes + len(self.checkpoints) * self.states.slot_bytes

    @property
    def length(self) -> int:
        """Tokens that the present state has seen."""
        return self.checkpoints[-1][0] if self.checkpoints else 0

    @property
    def slots(self) -> list[int]:
        """The slots it holds a reference to."""
        return [slot for _, slot in self.checkpoints] + ([] if self._next is None else [self._next])

    def state_after(self, n_tokens: int) -> int | None:
        """The slot of the state after ``n_tokens`` tokens, if it has that."""
        return next((slot for n, slot in self.checkpoints if n == n_tokens), None)

    def adopt(self, pages: list[int], n_tokens: int, slot: int | None = None) -> None:
        """Also takes over the reference to the state after these tokens."""
        super().adopt(pages, n_tokens)
        assert not self.checkpoints and (slot is None) == (n_tokens == 0)
        if slot is not None:
            self.checkpoints = [(n_tokens, slot)]

    @property
    def _in_place(self) -> bool:
        """Whether the next pass changes the present state, for it is nobody else's and none is kept."""
        if self.most or not self.checkpoints:
            return False
        return self.states.references(self.checkpoints[-1][1]) == 1

    def _missing_slots(self) -> int:
        """Slots that must be taken before a pass can run."""
        return int(self._next is None and not self._in_place)

    def shortage(self, start: int, end: int) -> int:
        """Pages that `reserve` would take, its state as so many."""
        state = self.states.slot_pages * self._missing_slots() if start < end else 0
        return self._missing(start, end) + state

    def demand(self, start: int, end: int, shared: bool) -> int:
        """The same for any number of passes: a state that is kept or shared has another beside it."""
        held = bool(self.checkpoints) + (self._next is not None)
        two = bool(self.most) or shared or (bool(self.checkpoints) and not self._in_place)
        return self._missing(start, end) + self.states.slot_pages * max(0, 1 + two - held)

    def reserve(self, start: int, end: int) -> None:
        """Also takes the slot that the next pass writes; earlier states make room for it.

        Raises KvCacheFullError; then what is left of those has changed, but nothing else.
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

    def begin(self, start: int) -> tuple[int, int]:
        """Addresses of the state that a pass from position ``start`` reads (0 for zeros) and writes.

        Where they are one, there is no state until the pass has ended.
        """
        assert start == self.length, "a pass goes on where the state stands"
        if self._next is None:
            assert self._in_place, "a pass needs a slot in reserve"
            self._next = self.checkpoints.pop()[1]
            address = self.states.slot(self._next).ctypes.data
            return address, address
        before = self.states.slot(self.checkpoints[-1][1]).ctypes.data if self.checkpoints else 0
        return before, self.states.slot(self._next).ctypes.data

    def end(self, n_tokens: int) -> None:
        """Notes that the pass is through: ``n_tokens`` tokens have been seen."""
        assert self._next is not None
        assert n_tokens > self.length
        self.checkpoints.append((n_tokens, self._next))
        self._next = None
        while len(self.checkpoints) > 1 + self.most:
            self._drop()

    def _drop(self) -> None:
        """Gives up the checkpoint that is missed least: whose neighbours are near each other for its age."""
        at = [0, *(n for n, _ in self.checkpoints)]
        worth = {i: (at[i + 1] - at[i - 1]) / (at[-1] - at[i]) for i in range(1, len(at) - 1)}
        self.states.release(self.checkpoints.pop(min(worth, key=lambda i: worth[i]) - 1)[1])

    def truncate(self, n_tokens: int) -> int:
        """Forgets all that follows the last checkpoint within ``n_tokens`` tokens; returns its tokens."""
        if self._next is not None:
            self.states.release(self._next)
            self._next = None
        while self.length > n_tokens:
            self.states.release(self.checkpoints.pop()[1])
        return super().truncate(self.length)

    def fork(self, n_tokens: int) -> tuple[RecurrentCache, int]:
        """Another that shares pages and states; nothing is copied."""
        other = RecurrentCache(self.pool, self.states, self.most)
        other.checkpoints = [mark for mark in self.checkpoints if mark[0] <= n_tokens]
        for _, slot in other.checkpoints:
            self.states.retain(slot)
        other.pages = self.pages[: self.pool.pages_for(other.length)]
        self.pool.retain(other.pages)
        return other, other.length

    def snapshot(self, n_tokens: int) -> np.ndarray:
        """uint8 (bytes,): the pages of the first ``n_tokens`` tokens, then the state after them.

        Raises ConfigError where the state is another's.
        """
        if n_tokens != self.length:
            raise ConfigError(f"snapshot: the state is that of {self.length} tokens, not of {n_tokens}")
        pages = super().snapshot(n_tokens).reshape(-1)
        if not self.checkpoints:
            return pages
        return np.concatenate([pages, self.states.slot(self.checkpoints[-1][1]).view(np.uint8)])

    def restore(self, data: np.ndarray, n_tokens: int) -> None:
        """Takes the state of a `snapshot`. Raises ConfigError, KvCacheFullError."""
        n_pages, size = self.pool.pages_for(n_tokens), self.pool.page_bytes
        expected = n_pages * size + (self.states.slot_bytes if n_tokens else 0)
        if data.dtype != np.uint8 or data.shape != (expected,):
            found = f"{data.dtype} {data.shape}"
            raise ConfigError(f"snapshot: needs uint8 ({expected},) for {n_tokens} tokens, got {found}")
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
    """What a sequence over the pages of ``pool`` keeps, with at most so many earlier states."""
    states = pool.states
    return PagedKvCache(pool) if states is None else RecurrentCache(pool, states, checkpoints)
