"""What facts and rates mean: one finding for each, with its loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oxillama.apps.doctor.findings import Build, Measured, findings, is_held_back
from oxillama.apps.doctor.machine import Machine, Shares
from oxillama.apps.doctor.measure import ModelRates, Rates, thread_counts

BUILD = Build("avx2", None, {}, {}, openmp=8, threads=8)
GOOD = Machine(
    online_cpus=8, allowed_cpus=8, cores=8, governors=("performance",), frequency=3e9, max_frequency=3.1e9,
    transparent_huge_pages="madvise", numa_nodes=1, numa_allowed=1, numa_policy="default",
    memory_available=1 << 30, swap_used=100, swapped=0,
)  # fmt: skip
RATES = (Rates(1, 10e9, 50e9, 20e9), Rates(4, 30e9, 200e9, 80e9), Rates(8, 40e9, 400e9, 160e9))
MODEL = ModelRates(8, 100, 20, 1e9, 1e9, 0.0, 200, outside=0.01, other_kernels=0.05)


def test_a_good_machine_has_no_findings() -> None:
    measured = Measured(RATES, Shares(0.01, 0.02, 0.0), GOOD, MODEL)
    assert findings(GOOD, BUILD, measured, 1 << 29) == []


def test_unknown_facts_are_no_findings() -> None:
    assert findings(Machine(), BUILD, Measured()) == []


@pytest.mark.parametrize(
    ("facts", "words", "loss"),
    [
        ({"allowed_cpus": 4}, "may not use all processors: 4 processors", None),
        ({"cpu_quota": 1.5}, "less processor time than the threads use: 1.5 processors for 8 threads", None),
        ({"cores": 4}, "threads share physical cores: 8 threads", None),
        ({"governors": ("performance", "powersave")}, "governor may keep the clock low: powersave", None),
        ({"transparent_huge_pages": "never"}, "transparent huge pages are off", None),
        ({"numa_nodes": 2}, "memory may come from some NUMA nodes only: 1 nodes", None),
        ({"numa_nodes": 2, "numa_allowed": 2}, "memory lies in the NUMA node whose thread touched", None),
        ({"memory_available": 1 << 28}, "weights do not fit the free memory: 0.3 GB free", 0.5),
        ({"memory_limit": 1 << 30, "memory_charged": 3 << 28}, "weights do not fit the free memory", 0.5),
        ({"swapped": 5000000}, "memory of this process is in the swap space: 5 MB", None),
    ],
)
def test_a_fact_is_one_finding(facts: dict[str, object], words: str, loss: float | None) -> None:
    machine = replace(GOOD, **facts)  # type: ignore[arg-type]
    (found,) = findings(machine, BUILD, Measured(), 1 << 29)
    assert words in f"{found.what}: {found.measured}"
    assert found.loss == loss
    assert found.advice and found.expected


@pytest.mark.parametrize(
    ("build", "advice", "loss"),
    [
        ({"better": {"avx512": False}}, "install a build with this target: pip install oxillama-cpu ", None),
        (
            {"better": {"avx512": True}, "peaks": {"avx2": 30.0, "avx512": 40.0}},
            "unset OXILLAMA_TARGET",
            0.25,
        ),
        ({"openmp": 0}, "install again with a compiler that has OpenMP", 7 / 8),
    ],
)
def test_findings_of_the_build(build: dict[str, object], advice: str, loss: float | None) -> None:
    (found,) = findings(GOOD, replace(BUILD, **build), Measured())  # type: ignore[arg-type]
    assert found.advice.startswith(advice)
    assert found.loss == loss
    assert is_held_back([found]) == (loss is not None)


@pytest.mark.parametrize(
    ("measured", "words", "loss"),
    [
        ({"shares": Shares(0.3, 0.0)}, "the hypervisor gives processor time to other", 0.3),
        ({"shares": Shares(0.0, 0.1)}, "other processes use the processors: 10%", 0.1),
        ({"shares": Shares(0.0, 0.0, 0.5)}, "the cgroup's quota stops this process: 50%", 0.5),
        ({"rates": (*RATES, Rates(16, 20e9, 400e9, 160e9))}, "16 threads reach less than 8: 20.0 GB/s", 0.5),
        (
            {"rates": (*RATES, Rates(16, 40e9, 300e9, 160e9))},
            "16 threads reach less than 8: 300.0 GMAC",
            0.25,
        ),
        ({"during": replace(GOOD, frequency=1.5e9)}, "the clock is far below its maximum", None),
        ({"model": replace(MODEL, outside=0.4)}, "time outside kernels", 0.4),
    ],
)
def test_a_rate_is_one_finding(measured: dict[str, object], words: str, loss: float | None) -> None:
    (found,) = findings(GOOD, BUILD, Measured(**measured))  # type: ignore[arg-type]
    assert words in f"{found.what}: {found.measured}"
    assert found.loss is None if loss is None else found.loss == pytest.approx(loss)


def test_the_loss_of_shared_cores_is_measured() -> None:
    rates = (RATES[0], Rates(4, 50e9, 400e9, 160e9), Rates(8, 49e9, 400e9, 160e9))
    (found,) = findings(replace(GOOD, cores=4), BUILD, Measured(rates))
    assert found.loss == pytest.approx(0.02)


def test_the_largest_known_loss_is_first() -> None:
    machine = replace(GOOD, swapped=1, allowed_cpus=4)
    found = findings(machine, BUILD, Measured(shares=Shares(0.2, 0.3)))
    assert [finding.loss for finding in found] == [0.3, 0.2, None, None]
    assert is_held_back(found) and not is_held_back(found[1:])


def test_shares_of_the_peak_rates() -> None:
    assert MODEL.share_of_read(RATES[-1]) == pytest.approx(0.5)
    assert MODEL.share_of_products(RATES[-1]) == pytest.approx(0.25)
    assert replace(MODEL, float_share=0.5).share_of_products(RATES[-1]) == pytest.approx(0.4375)


def test_thread_counts() -> None:
    assert [thread_counts(n) for n in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]
