"""Threads step down where fewer are faster, and back up; there are never more than was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from oxillama.models.thread_tuner import LATEST, LONG, PATIENCE, SOONEST, TRIAL, ThreadTuner


class Machine:
    """A clock, and layers that take ``seconds(n_threads)``; ``spread`` moves threads apart."""

    def __init__(
        self, most: int, seconds: Callable[[int], float], spread: Callable[[int], int] = lambda n: 0
    ) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.tuner = ThreadTuner(most, lambda: self.now, spread)

    def run(self, layers: int, rows: int = 1, costs: Sequence[float] = (1.0,)) -> list[int]:
        """Threads that so many layers used, in passes of a model whose layers cost so many times as much."""
        used = []
        for i in range(layers):
            n_threads = self.tuner.begin(rows, i % len(costs))
            used.append(n_threads)
            self.now += self.seconds(n_threads) * costs[i % len(costs)]
            self.tuner.end()
        return used


def quiet(n_threads: int) -> float:
    return 1.0 / n_threads


def busy(n_threads: int) -> float:
    """Another process holds one of two cores."""
    return 5.0 if n_threads == 2 else 1.0


def test_a_quiet_machine_keeps_its_threads_and_tries_ever_more_seldom() -> None:
    used = Machine(2, quiet).run(40 * LATEST)
    assert used[:SOONEST] == [2] * SOONEST
    assert used.count(1) < 0.01 * len(used)
    assert used.count(1) % TRIAL == 0


def test_a_clock_that_stands_still_is_no_fault() -> None:
    assert Machine(2, lambda n: 0.0).run(4 * SOONEST)[-1] == 2


def test_a_single_slow_layer_costs_no_thread() -> None:
    machine, used = Machine(2, quiet), []
    for _ in range(100):
        machine.seconds = lambda n: 50.0
        used += machine.run(1)
        machine.seconds = quiet
        used += machine.run(TRIAL + 3)
    assert used.count(1) <= 0.1 * len(used)


DIFFERENT = [(1.0, 3.0, 1.0, 8.0), (9.0, 1.0, 1.0, 1.0, 4.0), (1.0, 1.0, 1.0, 5.0) * 6, (20.0, *(1.0,) * 23)]
"""Costs of layers: of linear attention and attention in turn, some with a table, of dense first layers."""


@pytest.mark.parametrize("costs", DIFFERENT)
def test_layers_that_differ_are_compared_with_themselves(costs: tuple[float, ...]) -> None:
    machine = Machine(2, quiet)
    for rows in (1, 512):
        used = machine.run(10 * SOONEST * len(costs), rows, costs)
        assert used.count(1) < 0.05 * len(used) and used[-2 * TRIAL :].count(1) <= TRIAL
    machine.seconds = busy
    assert machine.run(4 * len(costs) + 4 * TRIAL, 512, costs)[-TRIAL:] == [1] * TRIAL
    machine.seconds = quiet
    assert machine.run(2 * LATEST, 512, costs)[-1] == 2


def test_layers_that_attend_to_ever_more_keys_are_not_slow() -> None:
    machine, used = Machine(2, quiet), []
    for position in range(400):
        used += machine.run(4, 1, (1.0, 1.0, 1.0, 1.0 + position / 20))
    assert used.count(1) < 0.05 * len(used)


def test_slow_layers_are_answered_at_once() -> None:
    machine = Machine(2, quiet)
    machine.run(SOONEST // 2)
    machine.seconds = busy
    used = machine.run(4 * TRIAL)
    assert used[0] == 2
    assert used[2 * TRIAL :] == [1] * (2 * TRIAL)


def test_a_machine_that_was_busy_from_the_start_is_found_out() -> None:
    assert Machine(2, busy).run(4 * SOONEST)[-SOONEST // 2 :].count(1) > SOONEST // 2 - TRIAL


def test_threads_come_back_when_the_core_is_free() -> None:
    machine = Machine(2, busy)
    machine.run(20 * LATEST)
    machine.seconds = quiet
    assert machine.run(2 * LATEST)[-1] == 2


@pytest.mark.parametrize("free", [7, 6, 5, 4])
def test_of_many_threads_as_many_stay_as_there_are_cores(free: int) -> None:
    used = Machine(8, lambda n: 1.0 / n if n <= free else 3.0).run(100 * SOONEST)
    assert max(set(used[-10 * SOONEST :]), key=used[-10 * SOONEST :].count) == free


def test_work_of_another_size_is_not_compared() -> None:
    machine = Machine(2, quiet)
    machine.run(SOONEST // 2)
    machine.seconds = lambda n: 100.0 / n
    assert machine.run(SOONEST // 4, rows=512) == [2] * (SOONEST // 4)


@pytest.mark.parametrize("layers", [4, 6])
def test_passes_of_changing_numbers_of_rows_are_tuned_too(layers: int) -> None:
    """As those of appended tokens are: no number of rows comes twice in a row, and no trial fits one pass."""
    machine = Machine(2, busy)

    def passes(n: int, seconds: Callable[[int], float]) -> list[int]:
        used = []
        for i in range(n):
            rows = (9, 12, 8, 15, 10)[i % 5]
            machine.seconds = seconds
            used += machine.run(layers, rows)
        return used

    assert passes(60, busy)[-60:].count(1) > 50
    assert passes(300, quiet)[-60:].count(2) > 50


def test_many_rows_are_not_compared_with_few() -> None:
    """A trial that goes on in passes of few rows is not judged by the time of passes of many."""
    machine = Machine(2, lambda n: 100.0 / n)
    machine.run(SOONEST, rows=15)
    machine.seconds = quiet
    assert machine.run(TRIAL, rows=8) == [2] * TRIAL
    assert machine.run(TRIAL, rows=8) == [1] * TRIAL
    assert machine.run(TRIAL, rows=8) == [2] * TRIAL


@pytest.mark.parametrize("most", [2, 3, 5])
def test_never_more_than_asked_for(most: int) -> None:
    used = Machine(most, lambda n: 1.0).run(10 * SOONEST)
    assert min(used) >= 1
    assert max(used) == most


def test_a_layer_that_fails_is_not_timed() -> None:
    machine = Machine(2, quiet)
    machine.tuner.begin(1, 0)
    machine.now += 1e6  # and no end
    assert machine.run(3) == [2, 2, 2]


class Shared:
    """A machine that has put two threads on one processor, and does it again where ``again``."""

    def __init__(self, again: bool = False) -> None:
        self.is_shared, self.again, self.looks = True, again, 0

    def seconds(self, n_threads: int) -> float:
        return 1.0 if n_threads == 1 else 10.0 if self.is_shared else 0.5

    def spread(self, n_threads: int) -> int:
        self.looks += 1
        moved, self.is_shared = self.is_shared, self.again
        return int(moved)


def test_threads_on_one_processor_are_moved_apart_behind_the_first_layer() -> None:
    shared = Shared()
    machine = Machine(2, shared.seconds, shared.spread)
    assert machine.run(SOONEST) == [2] * SOONEST
    assert machine.now == 10.0 + 0.5 * (SOONEST - 1)


def test_the_time_of_threads_on_one_processor_is_not_compared() -> None:
    """The threads come together halfway: the later layers are as fast as before, so no trial begins."""
    shared = Shared()
    machine = Machine(2, shared.seconds, shared.spread)
    machine.run(SOONEST // 2)
    shared.is_shared = True
    assert machine.run(SOONEST // 2 - 1) == [2] * (SOONEST // 2 - 1)


def test_a_trial_whose_threads_were_moved_begins_again() -> None:
    machine = Machine(2, busy)
    machine.run(4 * SOONEST)
    shared = Shared()
    machine.seconds, machine.tuner._spread = shared.seconds, shared.spread
    assert machine.run(4 * LATEST)[-SOONEST:].count(2) > SOONEST // 2


def test_threads_that_come_together_again_and_again_are_left_alone() -> None:
    shared = Shared(again=True)
    Machine(2, shared.seconds, shared.spread).run(8 * PATIENCE)
    assert 1 < shared.looks < 30


def test_looks_that_find_threads_together_every_second_time_become_rare() -> None:
    shared = Shared(again=True)

    def spread(n_threads: int) -> int:
        shared.looks += 1
        return shared.looks % 2

    machine = Machine(2, lambda n: 1.0 / n, spread)
    machine.run(8 * PATIENCE)
    assert shared.looks < 60
    shared.looks = 0
    machine.tuner._spread = shared.spread
    shared.is_shared, shared.again = False, False
    machine.run(PATIENCE * PATIENCE)
    before = shared.looks
    machine.run(100)
    assert shared.looks - before > 90, "every layer is looked at again where all has been quiet for long"


def test_nobody_looks_where_threads_cannot_have_waited() -> None:
    for most, seconds in ((2, LONG / 2), (1, 1.0)):
        shared = Shared()
        Machine(most, lambda n, seconds=seconds: seconds, shared.spread).run(SOONEST - 1)  # type: ignore[misc]
        assert shared.looks == 0
