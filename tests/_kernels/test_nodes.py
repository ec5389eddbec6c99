"""Products split over NUMA nodes: every unit once, a thread's own node first, and the same bits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import cpu, load
from oxillama._kernels.machine import team
from oxillama._kernels.memory import aligned_empty
from tests._kernels.test_team import ALLOWED, CAN_MOVE, in_new_thread, tasks
from tests.support.kernel_calls import i32
from tests.support.kernels import PRESENT, apply, linear, matrix, normal, on_targets, refuses, same_bits
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not ALLOWED or not cpu.openmp_threads(), reason="needs Linux and OpenMP")
COLS = 512


@contextmanager
def nodes(module: Any, *node_of: int, n_threads: int) -> Iterator[None]:
    """Nodes of the processors 0, 1, ..., some of which this machine may not have."""
    module.use_nodes(i32(*node_of), n_threads)
    try:
        yield
    finally:
        module.use_nodes(None, 1)


def layers_of(target: str) -> list[Any]:
    """Layers of 39 panels each; the last panel of each matrix is cut."""
    return [
        linear(target, [(name, matrix(name, 530, COLS, i)), ("Q8_0", matrix("Q8_0", 75, COLS))], COLS)
        for i, name in enumerate(("Q4_0", "Q4_K", "F16"))
    ]


@on_targets
@pytest.mark.parametrize(("n_nodes", "n_threads"), [(2, 2), (2, 4), (3, 2), (4, 5), (5, 3)])
def test_each_unit_is_run_once_whoever_takes_it(target: str, n_nodes: int, n_threads: int) -> None:
    """A unit that is run twice adds its products twice; all of them are counted."""
    module, (layer, *_) = load(target).linear, layers_of(target)

    def check(n: int) -> None:
        x, onto = normal(n, COLS), normal(n, layer.rows, seed=1)
        whole, n_units = apply(layer, x, 1, onto), 0
        with nodes(module, *range(n_nodes), n_threads=n_threads):
            for used in (n_threads, 2):  # the tuner takes fewer at times
                assert same_bits(apply(layer, x, used, onto), whole), (n, used)
                n_units += -(-39 // layer.unit_panels(n, used))
            assert sum(module.units_taken()) == n_units

    for n in (3, 20):
        in_new_thread(partial(check, n))


@on_targets
@pytest.mark.parametrize(("n_nodes", "n_threads"), [(2, 2), (3, 4), (5, 3)])
def test_units_of_groups_and_adapters_are_run_once(target: str, n_nodes: int, n_threads: int) -> None:
    """Groups with as many panels each, and groups of adapters with fewer."""
    module, layers = load(target).linear, layers_of(target)
    a, b = (linear(target, [("F32", matrix("F32", *shape))], shape[1]) for shape in ((4, COLS), (605, 4)))
    low_rank = module.LowRank(a, [(b, 0, 0)], np.ones(4))
    x, counts, rows = normal(9, COLS), i32(1, 5, 3), i32(*range(9))[::-1].copy()
    plan = module.LowRankPlan([low_rank], np.ones(1), i32(2), i32(5))

    def multiplied(used: int, *plans: Any) -> np.ndarray:
        out = np.full((9, 605), np.nan, np.float32)
        scratch = np.empty(max(each.scratch_bytes(9) for each in layers) + plan.scratch_bytes, np.uint8)
        module.apply_groups(layers, counts, x, rows, out, scratch, used, plans)
        return out

    def check() -> None:
        with nodes(module, *range(n_nodes), n_threads=n_threads):
            assert same_bits(multiplied(n_threads), wholes[0])
            assert sum(module.units_taken()) == 3 * -(-39 // max(1, min(4, 39 * 3 // (4 * n_threads))))
            assert same_bits(multiplied(n_threads, plan), wholes[1])

    wholes = multiplied(1), multiplied(1, plan)
    in_new_thread(check)


@pytest.mark.parametrize(("n_nodes", "n_threads"), [(2, 4), (3, 6), (4, 8)])
def test_units_of_a_node_without_threads_are_run_by_others(n_nodes: int, n_threads: int) -> None:
    """Two threads of more are both the first node's, which has the units u with u * N // n = 0."""
    module, (layer, *_) = load(PRESENT[0]).linear, layers_of(PRESENT[0])

    def taken() -> tuple[int, int]:
        with nodes(module, *range(n_nodes), n_threads=n_threads):
            apply(layer, normal(3, COLS), 2)
            found: tuple[int, int] = module.units_taken()
            return found

    n_units = -(-39 // layer.unit_panels(3, 2))
    own = sum(unit * n_nodes // n_units == 0 for unit in range(n_units))
    assert in_new_thread(taken) == (own, n_units - own)


def test_threads_run_the_units_of_their_own_node_first() -> None:
    module, (layer, *_) = load(PRESENT[0]).linear, layers_of(PRESENT[0])
    x = normal(64, COLS)

    def mostly_own() -> bool:
        with nodes(module, *range(2), n_threads=2):
            for _ in range(20):
                apply(layer, x, 2)
            own, others = module.units_taken()
            return bool(own > 4 * others)

    in_new_thread(lambda: until(mostly_own))


@pytest.mark.skipif(not CAN_MOVE, reason="needs two processors")
def test_threads_are_bound_to_their_nodes() -> None:
    """Also after other nodes are set; those without a product in nodes are left alone."""
    module, (layer, *_) = load(PRESENT[0]).linear, layers_of(PRESENT[0])
    a, b = sorted(ALLOWED)[:2]
    x = normal(3, COLS)

    def work() -> None:
        before = tasks()
        for first, second in ((a, b), (b, a)):
            node_of = [-1] * (b + 1)
            node_of[first], node_of[second] = 0, 1
            with nodes(module, *node_of, n_threads=2):
                assert before != {first}
                apply(layer, x, 2)
            assert os.sched_getaffinity(0) == {first}
            assert {second} in [os.sched_getaffinity(task) for task in tasks() - before]

    def unbound() -> set[int]:
        apply(layer, x, 2)
        return os.sched_getaffinity(0)

    in_new_thread(work)
    assert in_new_thread(unbound) == ALLOWED


def test_nodes_without_processors_are_refused() -> None:
    module = load(PRESENT[0]).linear
    for wrong in ([0, 2], [1, 1], [-1], [-2, 0], [], range(65), [0] * 2000):
        refuses("nodes: expected", module.use_nodes, np.array(wrong, np.int32), 2)


def test_whole_pages_are_placed_and_others_left_alone() -> None:
    """As the system tells of each mapping, if it takes such requests at all."""
    memory = aligned_empty(1 << 20)
    page, maps = os.sysconf("SC_PAGESIZE"), Path("/proc/self/numa_maps")
    start = -memory.ctypes.data % page
    assert team.place(memory[start + 1 : start + page], i32(1023)) == 0, "there is no whole page"
    error = team.place(memory[start + 1 : start + 3 * page + 5], i32(0))
    if error == 0 and maps.exists():
        policies = dict(line.split()[:2] for line in maps.read_text().splitlines())
        address = memory.ctypes.data + start + page
        assert policies[f"{address:08x}"].startswith("prefer")
        assert policies[f"{address + 2 * page:08x}"] == "default"
    else:
        assert error in (0, 1, 38), os.strerror(error)
