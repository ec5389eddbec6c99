"""How much memory is left, and what a budget makes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from oxillama.models.offload.pressure import (
    CALM_SECONDS,
    INTERVAL,
    BudgetControl,
    MemoryPressureProbe,
    MemoryState,
    control_group_memory,
    linux_memory,
    macos_memory,
    system_sources,
    windows_memory,
)

GB = 1 << 30


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(str(text))


def system(root: Path, groups: str = "", pressure: float | None = None) -> Path:
    """A system with 16 GB, 3 GB of which are available; returns the folder of its control groups."""
    memory = f"MemTotal: {16 << 20} kB\nMemAvailable: {3 << 20} kB\nHugePages_Total: 0\n"
    write(root / "proc", meminfo=memory)
    write(root / "proc" / "self", cgroup=groups)
    if pressure is not None:
        lines = f"some avg10={pressure:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 total=0\n"
        write(root / "proc" / "pressure", memory=lines)
    return root / "sys" / "fs" / "cgroup"


def test_linux(tmp_path: Path) -> None:
    for pressure in (None, 12.5):
        system(tmp_path, pressure=pressure)
        assert linux_memory(tmp_path) == MemoryState(16 * GB, 3 * GB, pressure)
    assert linux_memory(tmp_path / "none") is None
    write(tmp_path / "proc", meminfo="nonsense: x kB")
    assert linux_memory(tmp_path) is None


def test_control_groups_of_the_second_version(tmp_path: Path) -> None:
    groups = system(tmp_path, "0::/a/b\n")
    assert control_group_memory(tmp_path) is None
    write(groups / "a" / "b", memory__max="max", memory__high="max", memory__current=GB)
    assert control_group_memory(tmp_path) is None
    stat = f"anon 5\ninactive_file {GB // 2}\n"
    write(groups / "a", memory__max=4 * GB, memory__high=3 * GB, memory__current=2 * GB, memory__stat=stat)
    assert control_group_memory(tmp_path) == MemoryState(3 * GB, 3 * GB // 2)
    some = "some avg10=40.00 avg60=0.00 avg300=0.00 total=1\n"
    write(groups / "a" / "b", memory__max=GB, memory__current=GB, memory__pressure=some)
    assert control_group_memory(tmp_path) == MemoryState(GB, 0, 40.0)


def test_control_groups_of_the_first_version(tmp_path: Path) -> None:
    groups = system(tmp_path, "9:cpu,cpuacct:/x\n4:memory:/job\n0::/\n")
    memory = {"memory__usage_in_bytes": 5 * GB, "memory__stat": f"total_inactive_file {GB}\n"}
    write(groups / "memory", memory__limit_in_bytes=9223372036854771712, **memory)  # unlimited
    assert control_group_memory(tmp_path) is None
    write(groups / "memory" / "job", memory__limit_in_bytes=6 * GB, **memory)
    assert control_group_memory(tmp_path) == MemoryState(6 * GB, 2 * GB)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_this_system_tells() -> None:
    state = MemoryPressureProbe().state()
    assert state is not None
    assert 0 < state.available <= state.total
    assert state.stalled is None or 0 <= state.stalled <= 100


def test_macos() -> None:
    numbers = {
        "hw.memsize": 16 * GB,
        "hw.pagesize": 16384,
        "vm.page_free_count": 1000,
        "vm.page_speculative_count": 500,
        "vm.page_purgeable_count": 0,
        "kern.memorystatus_vm_pressure_level": 1,
    }
    calm = macos_memory(numbers.get)
    assert calm is not None and not calm.missing
    for level in (2, 4):
        short = macos_memory({**numbers, "kern.memorystatus_vm_pressure_level": level}.get)
        assert short is not None and short.missing
    del numbers["kern.memorystatus_vm_pressure_level"]
    assert macos_memory(numbers.get) == MemoryState(16 * GB, 1500 * 16384)
    assert macos_memory({}.get) is None


def test_windows() -> None:
    def fill(status: Any) -> bool:
        assert status.length == 64
        status.total, status.available = 16 * GB, 3 * GB
        return True

    assert windows_memory(fill) == MemoryState(16 * GB, 3 * GB)
    assert windows_memory(lambda status: False) is None


@pytest.mark.parametrize(("platform", "n"), [("linux", 2), ("darwin", 1), ("plan9", 0)])
def test_every_system_has_its_sources(platform: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("os.name", "posix")
    assert len(system_sources()) == n


def test_the_tightest_source_counts() -> None:
    states = [MemoryState(16 * GB, 8 * GB, 1.0), None, MemoryState(4 * GB, GB), MemoryState(64 * GB, 9 * GB)]
    probe = MemoryPressureProbe([lambda state=state: state for state in states])
    assert probe.state() == MemoryState(4 * GB, GB, 1.0)
    assert MemoryPressureProbe([lambda: None]).state() is None
    assert MemoryPressureProbe([]).state() is None


@pytest.mark.parametrize(
    ("state", "missing"),
    [
        (MemoryState(16 * GB, 8 * GB), 0),
        (MemoryState(16 * GB, GB // 2), int(0.05 * 16 * GB) - GB // 2),
        (MemoryState(1000 * GB, GB), GB),  # never more than 2 GB are to be left
        (MemoryState(GB // 2, GB // 16), GB // 16),  # and at least 128 MB
        (MemoryState(16 * GB, 8 * GB, 90.0), 0),  # tasks wait, but not for want of memory
        (MemoryState(16 * GB, GB, 90.0), 1),
    ],
)
def test_what_is_missing(state: MemoryState, missing: int) -> None:
    assert state.missing == missing


class Machine:
    """A clock and a memory."""

    def __init__(self, most: int, least: int) -> None:
        self.now, self.state, self.asked = 0.0, MemoryState(64 * GB, 32 * GB), 0
        probe = MemoryPressureProbe([self._ask])
        self.control = BudgetControl(most, least, probe, lambda: self.now)

    def _ask(self) -> MemoryState:
        self.asked += 1
        return self.state

    def look(self, after: float) -> int:
        self.now += after
        self.control.look()
        return self.control.budget


def test_a_budget_shrinks_at_once_and_grows_when_it_has_been_calm() -> None:
    machine = Machine(16 * GB, 3 * GB)
    assert machine.look(1) == 16 * GB
    machine.state = MemoryState(64 * GB, GB)  # 1 GB less than should be available
    assert machine.look(1) == 14 * GB
    machine.state = MemoryState(64 * GB, 0, 50.0)
    assert [machine.look(1) for _ in range(7)] == [n * GB for n in (12, 10, 8, 6, 4, 3, 3)]
    machine.state = MemoryState(64 * GB, 32 * GB)
    assert machine.look(CALM_SECONDS - 1) == 3 * GB
    assert machine.look(1) == 5 * GB
    assert machine.look(1) == 5 * GB
    machine.state = MemoryState(64 * GB, 5 * GB)  # enough, but a step would use it up
    assert machine.look(CALM_SECONDS) == 5 * GB
    machine.state = MemoryState(64 * GB, 32 * GB)
    assert [machine.look(CALM_SECONDS) for _ in range(7)] == [n * GB for n in (7, 9, 11, 13, 15, 16, 16)]


def test_the_system_is_not_asked_all_the_time() -> None:
    machine = Machine(16 * GB, 3 * GB)
    for _ in range(100):
        machine.look(INTERVAL / 10)
    assert 9 <= machine.asked <= 11


def test_a_system_that_does_not_tell_leaves_the_budget_alone() -> None:
    control = BudgetControl(10, 5, MemoryPressureProbe([lambda: None]), lambda: 0.0)
    assert not control.look()
    assert control.budget == 10
