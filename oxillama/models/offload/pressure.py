"""The memory that the system has available, and the budget that follows from it.

`MemoryPressureProbe` queries the system; `BudgetControl` decides. The sources are the kernel's own numbers:
on Linux MemAvailable, the pressure-stall information and the limits of control groups (both versions); on
macOS and Windows the numbers of ``sysctlbyname`` and ``GlobalMemoryStatusEx``.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oxillama.base.cgroups import ROOT, cgroups, text, whole
from oxillama.base.system_files import table

LOW_SHARE = 0.05
"""Share of the memory that should remain available."""
LOW_BYTES = 128 << 20, 2 << 30
"""Minimum and maximum bytes of that share."""
STALLED = 10.0
"""Percent of the last 10 seconds in which some task waited for memory; from this value on memory is short."""
STEP = 8
"""A budget shrinks and grows by at least this fraction of the whole, 1/8."""
CALM_SECONDS = 10.0
"""Seconds without shortage before a budget grows, and between two growths."""
INTERVAL = 0.1
"""Minimum seconds between two queries."""

UNLIMITED = 1 << 60
"""Control groups of the first version write a number above this where there is no limit."""


@dataclass(frozen=True)
class MemoryState:
    """The memory at one time.

    Attributes:
        total, available: bytes of memory, and bytes that are available without swapping.
        stalled: percent of the time in which tasks waited for memory; None if the system does not report it.
    """

    total: int
    available: int
    stalled: float | None = None

    @property
    def low(self) -> int:
        """Bytes that should be available."""
        least, most = LOW_BYTES
        return int(min(max(LOW_SHARE * self.total, least), most, self.total / 4))

    @property
    def missing(self) -> int:
        """Bytes that are missing for that; at least 1 where tasks wait for memory and little is left."""
        missing = max(0, self.low - self.available)
        waits = self.stalled is not None and self.stalled >= STALLED and self.available < 2 * self.low
        return max(missing, int(waits))


Source = Callable[[], MemoryState | None]
"""Queries the system; None if it does not report the memory."""


class MemoryPressureProbe:
    """Queries all sources for the available memory: the smallest value counts.

    Args:
        sources: None for this system's.
    """

    def __init__(self, sources: Sequence[Source] | None = None) -> None:
        self.sources: tuple[Source, ...] = system_sources() if sources is None else tuple(sources)

    def state(self) -> MemoryState | None:
        """The memory now; None if no source reports it."""
        found = [state for state in (source() for source in self.sources) if state is not None]
        if not found:
            return None
        tightest = min(found, key=lambda state: state.available - state.low)
        stalls = [state.stalled for state in found if state.stalled is not None]
        return MemoryState(tightest.total, tightest.available, max(stalls, default=None))


class BudgetControl:
    """The part of a budget that may be used at the moment.

    Args:
        most, least: maximum and minimum bytes of the budget.
        probe: queries the system.
        clock: the time in seconds.

    Attributes:
        budget: bytes that may be used now.
    """

    def __init__(
        self,
        most: int,
        least: int,
        probe: MemoryPressureProbe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most: int = most
        self.least: int = min(least, most)
        self.budget: int = most
        self.probe = probe
        self._clock = clock
        self._next = -math.inf  # when to look again
        self._calm = -math.inf  # since when nothing is short

    def look(self) -> bool:
        """Queries the system, unless it has just been queried; returns whether `budget` has changed."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + INTERVAL
        state = self.probe.state()
        if state is None:
            return False
        before, step = self.budget, max(1, self.most // STEP)
        if state.missing:
            self._calm = now
            self.budget = max(self.least, self.budget - max(state.missing, step))
        elif self.budget < self.most and now - self._calm >= CALM_SECONDS:
            self._calm = now
            room = state.available - 2 * state.low
            if room >= step:
                self.budget = min(self.most, self.budget + step)
        return self.budget != before


# --- the systems ------------------------------------------------------------------------------------


def system_sources() -> tuple[Source, ...]:
    """The sources of this system; () for an unknown one."""
    if sys.platform.startswith("linux"):
        return (linux_memory, control_group_memory)
    if sys.platform == "darwin":
        return (macos_memory,)
    return (windows_memory,) if os.name == "nt" else ()


def linux_memory(root: Path = ROOT) -> MemoryState | None:
    """MemAvailable, and the share of time in which some task waited for memory."""
    sizes = table(root / "proc/meminfo")
    total, available = (
        whole(sizes.get(name, "").removesuffix(" kB")) for name in ("MemTotal", "MemAvailable")
    )
    if total is None or available is None:
        return None
    return MemoryState(total << 10, available << 10, stall(root / "proc/pressure/memory"))


def stall(path: Path) -> float | None:
    """ "some avg10" of pressure-stall information; None where the system does not tell."""
    try:
        words = (text(path) or "").splitlines()[0].split()
        return float(dict(word.split("=") for word in words[1:])["avg10"])
    except (ValueError, KeyError, IndexError):
        return None


VERSIONS = {
    "": (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    "memory": (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
}
"""By controller (`cgroups`): the files of the limits and of the usage, and what is not used of late."""


def control_group_memory(root: Path = ROOT) -> MemoryState | None:
    """The limits of the control groups that this process belongs to, and what they leave, or None.

    Pages of files that were not used of late count as available.
    """
    found = []
    for controller, (limits, usage, idle) in VERSIONS.items():
        for folder in cgroups(root, controller):
            numbers = (whole(text(folder / name)) for name in limits)
            most = min((number for number in numbers if number is not None), default=UNLIMITED)
            used = whole(text(folder / usage))
            if used is not None and most < UNLIMITED:
                lines = (line.split() for line in (text(folder / "memory.stat") or "").splitlines())
                unused = next((whole(line[1]) for line in lines if line[:1] == [idle]), 0) or 0
                pressure = stall(folder / "memory.pressure")
                found.append(MemoryState(most, max(0, most - used + unused), pressure))
    return min(found, key=lambda state: state.available, default=None)


def macos_memory(sysctl: Callable[[str], int | None] | None = None) -> MemoryState | None:
    """Free, speculative and purgeable pages; under warning pressure none counts as available."""
    read = sysctl or _sysctl
    total, page = read("hw.memsize"), read("hw.pagesize")
    counts = [read(f"vm.page_{kind}_count") for kind in ("free", "speculative", "purgeable")]
    if total is None or page is None or counts[0] is None:
        return None
    available = page * sum(count for count in counts if count is not None)
    level = read("kern.memorystatus_vm_pressure_level")  # 1 normal, 2 warning, 4 critical
    if level is not None:
        low = MemoryState(total, 0).low
        available = max(available, 2 * low + total // STEP) if level <= 1 else min(available, low // 2)
    return MemoryState(total, available)


def _sysctl(name: str) -> int | None:
    """An integer of the macOS kernel; None for an unknown name."""
    library = ctypes.CDLL(None)
    value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
    status = library.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return value.value if status == 0 else None


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "available", "a", "b", "c", "d", "e")),
    )


def windows_memory(fill: Callable[[_MemoryStatus], bool] | None = None) -> MemoryState | None:
    """The physical memory and what is available of it."""
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    if not (fill or _global_memory_status)(status):
        return None
    return MemoryState(status.total, status.available)


def _global_memory_status(status: _MemoryStatus) -> bool:
    library = getattr(ctypes, "windll", None)
    return library is not None and bool(library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)))
