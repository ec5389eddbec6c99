"""Memory of recurrent states: a *slot* holds the state of one sequence, in all recurrent layers.

What entered the states with one token is a *record*, a slot of a pool of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama.errors import KvCacheFullError
from oxillama.models.workspace import StatePart, StateSlots


class Limit(Protocol):
    """What slots need of `MemoryLimit`."""

    used: int
    live: int

    @property
    def available(self) -> int: ...

    def can_allocate(self, n_bytes: int) -> bool: ...

    def make_room(self, n_bytes: int) -> None: ...

    def share_with(self, shrink: Callable[[], object]) -> None: ...


class SlotPool:
    """Slots of ``floats`` float32 each, handed out by number and counted by reference.

    Slots get their memory when they are first needed; `shrink_to_fit` returns the memory of free slots.

    Args:
        limit: of memory, which pages share.
        floats: size of a slot.
        what: they hold.
        floats_elsewhere: of each slot, in the other stages of a pipeline.
    """

    def __init__(self, limit: Limit, floats: int, what: str, floats_elsewhere: int = 0) -> None:
        self.limit = limit
        self.floats = floats
        self.floats_elsewhere = floats_elsewhere
        self.what = what
        self._slots: list[np.ndarray | None] = []
        self._references: list[int] = []
        self._free: list[int] = []  # slots that have memory
        self._bare: list[int] = []  # slots without memory
        limit.share_with(self.shrink_to_fit)

    @property
    def all_floats(self) -> int:
        """Size of a slot in all stages of a pipeline together."""
        return self.floats + self.floats_elsewhere

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot, counted against the limit."""
        return 4 * self.all_floats

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

        Raises:
            KvCacheFullError: the pool has no room for it, or the system no memory.
        """
        if not self.limit.can_allocate(self.slot_bytes):
            expected = f"{self.slot_bytes} free bytes for a {self.what}"
            raise KvCacheFullError(f"kv cache: expected {expected}, got {self.limit.available}")
        if not self._free:
            self._grow()
        number = self._free.pop()
        self._references[number] = 1
        self.limit.used += self.slot_bytes
        return number

    def _grow(self) -> None:
        self.limit.make_room(self.slot_bytes)
        try:
            memory = aligned_empty(4 * self.floats).view(np.float32)
        except MemoryError as error:
            raise KvCacheFullError(
                f"kv cache: expected memory for a {self.what} of {self.slot_bytes} bytes, got none"
            ) from error
        number = self._bare.pop() if self._bare else len(self._slots)
        if number == len(self._slots):
            self._slots.append(None)
            self._references.append(0)
        self._slots[number] = memory
        self.limit.live += self.slot_bytes
        self._free.append(number)

    def references(self, number: int) -> int:
        """Number of references to a slot."""
        return self._references[number]

    def slot(self, number: int) -> np.ndarray:
        """float32 (floats,): the memory of a slot in use."""
        slot = self._slots[number]
        assert slot is not None
        return slot

    def read(self, number: int) -> np.ndarray:
        """float32 (all_floats,): a copy of a slot."""
        copy: np.ndarray = self.slot(number).copy()
        return copy

    def write(self, number: int, data: np.ndarray) -> None:
        """Writes what `read` returned."""
        self.slot(number)[:] = data

    def retain(self, number: int) -> None:
        """Adds a reference."""
        assert self._references[number] > 0, "only a slot in use can be shared"
        self._references[number] += 1

    def release(self, number: int) -> None:
        """Drops a reference; a slot that has none left is free again."""
        assert self._references[number] > 0, "a slot is released more often than it was retained"
        self._references[number] -= 1
        if not self._references[number]:
            self._free.append(number)
            self.limit.used -= self.slot_bytes

    def shrink_to_fit(self) -> None:
        """Gives the memory of free slots back to the system."""
        for number in self._free:
            self._slots[number] = None
        self.limit.live -= len(self._free) * self.slot_bytes
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


class RecurrentStatePool(SlotPool):
    """Slots of states, and the records of tokens that may be taken back.

    Args:
        limit: of memory, which pages share.
        floats: size of a state.
        record_floats: size of a record.
        floats_elsewhere: of a state and of a record, in the other stages of a pipeline.

    Attributes:
        records: slots of one record each.
    """

    def __init__(
        self,
        limit: Limit,
        floats: int,
        record_floats: int = 0,
        floats_elsewhere: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(limit, floats, "recurrent state", floats_elsewhere[0])
        self.records: SlotPool = SlotPool(limit, record_floats, "record", floats_elsewhere[1])

    def part(self, slots: StateSlots) -> StatePart:
        """The memory of the slots and records that a pass reads and writes."""
        before, after, earlier, recorded, settled = slots
        return StatePart(
            None if before is None else self.slot(before),
            self.slot(after),
            [self.records.slot(number) for number in earlier],
            [self.records.slot(number) for number in recorded],
            settled,
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory the states and records hold."""
        return super().memory_bytes + self.records.memory_bytes
