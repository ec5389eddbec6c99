"""The facts of the system, from faked /proc and /sys folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oxillama.apps.doctor.machine import (
    CpuTime,
    Machine,
    Shares,
    read_cpu_time,
    read_machine,
    shares,
)
from oxillama.base.system_files import numbers

LARGE = {
    "proc/cpuinfo": "model name\t: Fast 9\nflags\t\t: fpu avx2 fma hypervisor\n\nmodel name\t: Fast 9\n",
    "proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 3072 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t0-2\nMems_allowed_list:\t0\nVmSwap:\t8 kB\n",
    "proc/self/cgroup": "0::/box/inner\n",
    "proc/self/numa_maps": "7f00 default file=/a\n7f10 interleave:0-1 anon=2\n7f20 interleave:0-1 anon=1\n",
    "sys/devices/system/cpu/online": "0-7",
    "sys/devices/system/node/has_memory": "0-1",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/fs/cgroup/box/cpu.max": "150000 100000",
    "sys/fs/cgroup/box/inner/cpu.max": "max 100000",
    "sys/fs/cgroup/box/memory.max": "2097152",
    "sys/fs/cgroup/box/memory.current": "1048576",
    "sys/fs/cgroup/box/inner/memory.max": "max",
    "sys/fs/cgroup/box/inner/cpu.stat": "usage_usec 9\nthrottled_usec 2500000\n",
    "proc/stat": "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 0 50 800 50 0 0 0 0 0\ncpu1 0 0 0 900 0 0 0 100 0 0\n"
    "cpu7 5000 0 0 0 0 0 0 0 0 0\nintr 5\n",
    **{
        f"sys/devices/system/cpu/cpu{cpu}/{path}": value
        for cpu, siblings in ((0, "0,4"), (1, "1,2"), (2, "1,2"))
        for path, value in {
            "topology/thread_siblings_list": siblings,
            "cpufreq/scaling_governor": "powersave",
            "cpufreq/scaling_cur_freq": f"{1000000 + 500000 * cpu}",
            "cpufreq/cpuinfo_max_freq": "3500000",
            "cache/index0/level": "1",
            "cache/index0/size": "32K",
            "cache/index0/shared_cpu_list": siblings,
            "cache/index3/level": "3",
            "cache/index3/size": "1024K",
            "cache/index3/shared_cpu_list": "0-7" if cpu else "8-15",
        }.items()
    },
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, value in LARGE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(value)
    return tmp_path


def test_every_fact_is_read(root: Path) -> None:
    found = read_machine(root)
    assert found == Machine(
        cpu="Fast 9",
        features=("avx2", "fma"),
        hypervisor=True,
        online_cpus=8,
        allowed_cpus=3,
        cores=2,
        cpu_quota=1.5,
        governors=("powersave",),
        frequency=1.5e9,
        max_frequency=3.5e9,
        transparent_huge_pages="madvise",
        numa_nodes=2,
        numa_allowed=1,
        numa_policy="interleave",
        memory=4 << 20,
        memory_available=3 << 20,
        memory_limit=2 << 20,
        memory_charged=1 << 20,
        swap_used=60 << 10,
        swapped=8 << 10,
        cache=2 << 20,
    )
    assert found.free_memory == 1 << 20


def test_absent_facts_are_unknown(tmp_path: Path) -> None:
    assert read_machine(tmp_path) == Machine()
    assert Machine().free_memory is None
    assert read_cpu_time(tmp_path) is None


@pytest.mark.parametrize("path", sorted(LARGE))
def test_a_file_of_another_form_makes_facts_unknown_and_no_error(root: Path, path: str) -> None:
    for value in (b"", b"\xff\x00: [", b"max max max", b"0-x,"):
        (root / path).write_bytes(value)
        read_machine(root)
        read_cpu_time(root)


def test_one_unknown_core_leaves_their_number_unknown(root: Path) -> None:
    (root / "sys/devices/system/cpu/cpu2/topology/thread_siblings_list").unlink()
    assert read_machine(root).cores is None


def test_numbers() -> None:
    assert numbers("0-2,8, 10-10\n") == {0, 1, 2, 8, 10}
    assert numbers(None) == numbers("") == numbers("a-b") == set()


def test_time_is_that_of_the_allowed_processors(root: Path) -> None:
    second = os.sysconf("SC_CLK_TCK")
    found = read_cpu_time(root)
    assert found is not None
    assert (found.total, found.idle, found.stolen) == (2000 / second, 1750 / second, 100 / second)
    assert found.throttled == 2.5


def test_shares_of_an_interval() -> None:
    before, after = CpuTime(10, 5, 1, 2, 0.5), CpuTime(20, 6, 2, 6, 1.0)
    assert shares(before, after, 5.0) == Shares(stolen=0.1, others=0.4, throttled=0.1)
    assert shares(before, CpuTime(20, 15, 1, 9), 5.0) == Shares(0.0, 0.0, None)
    assert shares(None, after, 5.0) is shares(before, None, 5.0) is shares(before, before, 5.0) is None
