"""One interface for pages and recurrent states of sequences."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama import ConfigError, OxiLlamaError, RecurrentStatePool
from oxillama.compat.pools import PoolError, SequencePool
from oxillama.engine.cache.pages import MemoryLimit, PagePool
from tests.engine.cache.test_prefix import Shape


def pages_of(n: int) -> PagePool:
    """A pool of n pages of four tokens."""
    return PagePool(Shape(), 4, MemoryLimit(64 * n))


def states_of(n: int) -> RecurrentStatePool:
    """A pool of n states of 16 numbers."""
    return RecurrentStatePool(MemoryLimit(64 * n), 16)


def test_pages_grow_with_the_position() -> None:
    pages = pages_of(3)
    pool = SequencePool(pages)
    assert (pool.is_kv_based, pool.is_ssm) == (True, False)
    slot = pool.allocate("first")
    assert (slot.request_id, slot.position, slot.state) == ("first", 0, [])
    for position in range(9):
        assert slot.position == position
        slot.step()
        assert len(slot.state) == pages.pages_for(position + 1)
    pages.check_integrity([slot.state])
    other = pool.allocate()
    with pytest.raises(PoolError, match=r"^exhausted: .*expected 1 free pages") as raised:
        other.step()
    assert (raised.value.kind, other.position, other.state) == ("exhausted", 0, [])
    slot.reset()
    assert (slot.position, slot.state, pages.n_used) == (0, [], 0)
    other.step()
    pool.release(other)
    assert (len(pool), pages.n_used) == (1, 0)
    pages.check_integrity([slot.state])


def test_states_begin_with_zeros() -> None:
    states = states_of(2)
    pool = SequencePool(states)
    assert (pool.is_kv_based, pool.is_ssm) == (False, True)
    slot, other = pool.allocate(1), pool.allocate(2)
    assert isinstance(slot.state, np.ndarray) and slot.state.dtype == np.float32
    slot.state[:], other.state[:] = 5, 6
    slot.step()
    assert (slot.position, slot.state.tolist()) == (1, [5] * 16)
    with pytest.raises(PoolError, match=r"^exhausted: .*recurrent state"):
        pool.allocate(3)
    slot.reset()
    assert (slot.position, slot.state.tolist(), other.state.tolist()) == (0, [0] * 16, [6] * 16)
    pool.release(other)
    assert pool.allocate(3).state.tolist() == [0] * 16
    states.check_integrity()
    assert states.n_used == len(pool) == 2


@pytest.mark.parametrize("make", [pages_of, states_of])
def test_a_slot_is_released_once(make: object) -> None:
    pool, other = SequencePool(make(4)), SequencePool(make(4))  # type: ignore[operator]
    slot = pool.allocate()
    with pytest.raises(PoolError, match=r"^invalid slot"):
        other.release(slot)
    pool.release(slot)
    for use in (lambda: pool.release(slot), slot.step, slot.reset, lambda: slot.state):
        with pytest.raises(PoolError, match=r"^invalid slot: expected one of this pool in use") as raised:
            use()
        assert raised.value.kind == "invalid slot"
    with pytest.raises(PoolError, match=r"^invalid slot"):
        pool.release(0)  # type: ignore[arg-type]
    assert pool.pool.n_used == 0


def test_the_number_of_sequences_is_limited() -> None:
    pool = SequencePool(pages_of(4), 2)
    first = pool.allocate()
    pool.allocate()
    with pytest.raises(PoolError, match=r"^exhausted: expected fewer than 2 slots in use"):
        pool.allocate()
    pool.release(first)
    pool.allocate()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^pool: expected a KvCachePool or a RecurrentStatePool"):
        SequencePool(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^max_sequences: expected"):
        SequencePool(pages_of(1), 0)
    assert issubclass(PoolError, OxiLlamaError) and issubclass(PoolError, RuntimeError)
