"""Threads step down where fewer are faster, and back up; there are never more than was asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oxillama.models.thread_tuner import LATEST, SOONEST, TRIAL, ThreadTuner


class Machine:
    """A clock, and layers that take ``seconds(n_threads)``."""

    def __init__(self, most: int, seconds: Callable[[int], float]) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.tuner = ThreadTuner(most, lambda: self.now)

    def run(self, layers: int, rows: int = 1) -> list[int]:
        """Threads that so many layers used."""
        used = []
        for _ in range(layers):
            with self.tuner.layer(rows) as n_threads:
                used.append(n_threads)
                self.now += self.seconds(n_threads)
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


def test_a_slow_layer_is_answered_at_once() -> None:
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


@pytest.mark.parametrize("most", [1, 2, 3])
def test_never_more_than_asked_for(most: int) -> None:
    used = Machine(most, lambda n: 1.0).run(10 * SOONEST)
    assert min(used) >= 1
    assert max(used) == most
    if most == 1:
        assert set(used) == {1}


def test_a_layer_that_fails_is_not_timed() -> None:
    machine = Machine(2, quiet)
    with pytest.raises(KeyError), machine.tuner.layer(1):
        raise KeyError
    assert machine.run(3) == [2, 2, 2]
