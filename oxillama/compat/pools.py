"""Pages of attention or slots of recurrent states, with one interface for single sequences."""

from __future__ import annotations

import numpy as np

from oxillama.base.config import checks
from oxillama.engine.cache.pages import PagePool
from oxillama.engine.cache.recurrent_states import SlotPool
from oxillama.errors import KvCacheFullError, OxiLlamaError


class PoolError(OxiLlamaError, RuntimeError):
    """A pool is full, or a slot is not in use.

    Attributes:
        kind: "exhausted" or "invalid slot".
    """

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {detail}")


class SequencePool:
    """Gives each sequence a `SequenceSlot` of a pool.

    Args:
        pool: `KvCachePool` (or another pool of pages), or `RecurrentStatePool`.
        max_sequences: maximum number of slots in use; None: limited by the pool's memory only.

    Raises:
        ConfigError: ``pool`` is of another class, or ``max_sequences`` is less than 1.
    """

    def __init__(self, pool: PagePool | SlotPool, max_sequences: int | None = None) -> None:
        if not isinstance(pool, (PagePool, SlotPool)):
            raise checks.refuse("pool", "a KvCachePool or a RecurrentStatePool", pool)
        if max_sequences is not None:
            max_sequences = checks.integer("max_sequences", max_sequences, 1)
        self.pool: PagePool | SlotPool = pool
        self.max_sequences: int | None = max_sequences
        self._slots: set[SequenceSlot] = set()

    @property
    def is_kv_based(self) -> bool:
        """Whether the slots are pages of keys and values."""
        return isinstance(self.pool, PagePool)

    @property
    def is_ssm(self) -> bool:
        """Whether the slots are recurrent states."""
        return not self.is_kv_based

    def __len__(self) -> int:
        """The number of slots in use."""
        return len(self._slots)

    def allocate(self, request_id: object = None) -> SequenceSlot:
        """A slot for a new sequence, at position 0.

        Raises:
            PoolError: "exhausted": all slots are in use, or the pool has no memory for a recurrent state.
        """
        if self.max_sequences is not None and len(self._slots) >= self.max_sequences:
            raise PoolError("exhausted", f"expected fewer than {self.max_sequences} slots in use")
        slot = SequenceSlot(self, request_id)
        self._slots.add(slot)
        return slot

    def release(self, slot: SequenceSlot) -> None:
        """Free the memory of a slot; the slot can no longer be used.

        Raises:
            PoolError: "invalid slot": the slot belongs to another pool, or was released before.
        """
        self._check(slot)
        slot._free()
        self._slots.remove(slot)

    def _check(self, slot: SequenceSlot) -> None:
        if not isinstance(slot, SequenceSlot) or slot not in self._slots:
            raise PoolError("invalid slot", f"expected one of this pool in use, got {slot!r}")


class SequenceSlot:
    """A pool's memory for one sequence; made by `SequencePool.allocate`.

    Attributes:
        position: number of tokens of the sequence.
        request_id: the argument of `allocate`.
    """

    def __init__(self, owner: SequencePool, request_id: object) -> None:
        self.position: int = 0
        self.request_id = request_id
        self._owner = owner
        self._pages: list[int] = []
        self._number = -1
        if isinstance(owner.pool, SlotPool):
            try:
                self._number = owner.pool.allocate()
            except KvCacheFullError as error:
                raise PoolError("exhausted", str(error)) from error
            owner.pool.slot(self._number)[:] = 0

    @property
    def state(self) -> list[int] | np.ndarray:
        """The page numbers in order of position; or the recurrent state, float32 (floats,), not a copy.

        Raises PoolError ("invalid slot") after release.
        """
        self._owner._check(self)
        pool = self._owner.pool
        return pool.slot(self._number) if isinstance(pool, SlotPool) else list(self._pages)

    def step(self) -> None:
        """Advance by a token; allocates a page if the last one is full.

        Raises:
            PoolError: "exhausted": there is no free page, and the position is unchanged; "invalid slot": the
                slot was released.
        """
        self._owner._check(self)
        pool = self._owner.pool
        if isinstance(pool, PagePool) and pool.pages_for(self.position + 1) > len(self._pages):
            try:
                self._pages += pool.allocate(1)
            except KvCacheFullError as error:
                raise PoolError("exhausted", str(error)) from error
        self.position += 1

    def reset(self) -> None:
        """Return to position 0: free the pages, or zero the state.

        Raises PoolError ("invalid slot") after release.
        """
        self._owner._check(self)
        pool = self._owner.pool
        if isinstance(pool, SlotPool):
            pool.slot(self._number)[:] = 0
        else:
            self._free()
        self.position = 0

    def _free(self) -> None:
        pool = self._owner.pool
        if isinstance(pool, SlotPool):
            pool.release(self._number)
        else:
            pool.release(self._pages)
            self._pages = []

    def __repr__(self) -> str:
        return f"<SequenceSlot at {self.position}, request_id {self.request_id!r}>"
