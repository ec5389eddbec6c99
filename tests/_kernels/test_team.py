"""Threads of one team stand on processors of their own, and are bound to none."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from oxillama._kernels import cpu
from oxillama._kernels.machine import team
from tests.support.waiting import until

T = TypeVar("T")
ALLOWED = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
CAN_MOVE = len(ALLOWED) > 1 and cpu.openmp_threads() > 0


def in_new_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns in a thread with a team of its own, which both end: products bind them."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_every_thread_has_a_processor_that_the_process_may_use() -> None:
    for n in (1, 2, 3):
        found = team.processors(n)
        assert len(found) == n
        assert set(found) <= ALLOWED | {-1}
        assert (-1 in found) == (not ALLOWED or not cpu.openmp_threads())


def test_threads_that_share_a_processor_are_moved_and_stay_unbound() -> None:
    def work() -> None:
        before = tasks()
        team.processors(2)  # the team has begun
        members = [threading.get_native_id(), *(tasks() - before)]
        one = min(ALLOWED)

        def moved() -> bool:
            for task in members:
                os.sched_setaffinity(task, {one})
            assert team.processors(2) == [one, one]
            assert team.spread(2) == 0, "there was no processor that they may use"
            for task in members:
                os.sched_setaffinity(task, ALLOWED)
            found: int = team.spread(2)  # 0 where the system was faster
            assert found in (0, 1)
            assert [os.sched_getaffinity(task) for task in members] == [ALLOWED] * 2
            return found == 1

        until(moved)

    if CAN_MOVE:
        in_new_thread(work)
    else:
        assert team.spread(2) == 0


def tasks() -> set[int]:
    """The numbers of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def test_a_team_of_one_stays_where_it_is() -> None:
    assert team.spread(1) == 0
