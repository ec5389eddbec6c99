"""Facts of the system that affect the speed of a model, read from /proc and /sys; None if unknown.

Every function takes the root folder of the system, so that tests can supply another one. On systems without
/proc and /sys (macOS, Windows) most facts are unknown.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from oxillama.apps.bench.machine import CPU_FLAGS, cpuinfo
from oxillama.base.cgroups import ROOT, cgroups, cpu_quota, text, whole
from oxillama.base.system_files import numbers, table


@dataclass(frozen=True)
class Machine:
    """Facts of the system and of this process; None: unknown.

    Attributes:
        cpu: the model of the CPU.
        features: the CPU's features among `CPU_FLAGS`.
        hypervisor: whether the system runs in a virtual machine.
        online_cpus: number of the system's processors.
        allowed_cpus: number of processors in this process's affinity mask.
        cores: number of physical cores of the allowed processors.
        cpu_quota: processor time that the cgroup grants, in processors, such as 1.5.
        governors: frequency governors of the allowed processors, unique and sorted.
        frequency, max_frequency: Hz, current mean of the allowed processors, and the highest supported.
        transparent_huge_pages: "always", "madvise" or "never".
        numa_nodes: number of NUMA nodes that have memory.
        numa_allowed: number of NUMA nodes whose memory this process may use.
        numa_policy: this process's memory policy: "default", "interleave", "bind", "prefer", ...
        memory, memory_available: bytes of the system's memory, and how many are available.
        memory_limit, memory_charged: bytes that a cgroup allows, and how many are in use.
        swap_used: bytes of swap space that the system uses.
        swapped: bytes of this process in swap space.
        cache: bytes of the highest cache level, all instances together.
    """

    cpu: str | None = None
    features: tuple[str, ...] | None = None
    hypervisor: bool | None = None
    online_cpus: int | None = None
    allowed_cpus: int | None = None
    cores: int | None = None
    cpu_quota: float | None = None
    governors: tuple[str, ...] | None = None
    frequency: float | None = None
    max_frequency: float | None = None
    transparent_huge_pages: str | None = None
    numa_nodes: int | None = None
    numa_allowed: int | None = None
    numa_policy: str | None = None
    memory: int | None = None
    memory_available: int | None = None
    memory_limit: int | None = None
    memory_charged: int | None = None
    swap_used: int | None = None
    swapped: int | None = None
    cache: int | None = None

    @property
    def free_memory(self) -> int | None:
        """Bytes that this process can still use, within the system and its cgroup."""
        found = [self.memory_available]
        if self.memory_limit is not None:
            found.append(max(0, self.memory_limit - (self.memory_charged or 0)))
        known = [n for n in found if n is not None]
        return min(known) if known else None


def read_machine(root: Path = ROOT) -> Machine:
    """Read the facts."""
    info = cpuinfo(root)
    flags = (info.get("flags") or info.get("Features") or "").split()
    status = table(root / "proc/self/status")
    allowed = numbers(status.get("Cpus_allowed_list"))
    memory = table(root / "proc/meminfo")
    nodes = numbers(text(root / "sys/devices/system/node/has_memory"))
    groups = cgroups(root)
    swap = [bytes_of(memory.get(key)) for key in ("SwapTotal", "SwapFree")]
    limit, charged = memory_limit(groups)
    return Machine(
        cpu=info.get("model name") or (platform.processor() or None if root == ROOT else None),
        features=tuple(flag for flag in CPU_FLAGS if flag in flags) if flags else None,
        hypervisor="hypervisor" in flags if flags and "flags" in info else None,
        online_cpus=count(numbers(text(root / "sys/devices/system/cpu/online")))
        or (os.cpu_count() if root == ROOT else None),
        allowed_cpus=count(allowed),
        cores=count_cores(root, allowed),
        cpu_quota=cpu_quota(root),
        governors=governors(root, allowed),
        frequency=mean(hertz(root, allowed, "scaling_cur_freq")),
        max_frequency=max(hertz(root, allowed, "cpuinfo_max_freq"), default=None),
        transparent_huge_pages=chosen(text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        numa_nodes=count(nodes),
        numa_allowed=count(nodes & numbers(status.get("Mems_allowed_list"))),
        numa_policy=numa_policy(root),
        memory=bytes_of(memory.get("MemTotal")),
        memory_available=bytes_of(memory.get("MemAvailable")),
        swap_used=None if swap[0] is None or swap[1] is None else swap[0] - swap[1],
        swapped=bytes_of(status.get("VmSwap")),
        cache=largest_cache(root),
        memory_limit=limit,
        memory_charged=charged,
    )


def count(found: set[int]) -> int | None:
    """The size of a set; None for an empty set."""
    return len(found) or None


def bytes_of(value: str | None) -> int | None:
    """The bytes of a value like "1024 kB", from /proc."""
    found = whole(value.partition(" ")[0]) if value else None
    return None if found is None else 1024 * found


def chosen(options: str | None) -> str | None:
    """The selected option: "madvise" in "always [madvise] never"."""
    _, opening, rest = (options or "").partition("[")
    return rest.partition("]")[0] or None if opening else None


def count_cores(root: Path, cpus: set[int]) -> int | None:
    """The number of physical cores of some processors; None if unknown."""
    lists = [text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus]
    return len(set(lists)) or None if None not in lists else None


def governors(root: Path, cpus: set[int]) -> tuple[str, ...] | None:
    """The frequency governors of some processors."""
    found = {text(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor") for cpu in cpus}
    return tuple(sorted(name for name in found if name)) or None


def hertz(root: Path, cpus: set[int], name: str) -> list[float]:
    """The known values in Hz of a per-processor file in kHz."""
    found = [whole(text(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}")) for cpu in cpus]
    return [1e3 * value for value in found if value]


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def numa_policy(root: Path) -> str | None:
    """The most common policy of this process's memory mappings."""
    lines = (text(root / "proc/self/numa_maps") or "").splitlines()
    names = [line.split()[1].partition(":")[0] for line in lines if len(line.split()) > 1]
    return max(set(names), key=names.count) if names else None


def largest_cache(root: Path) -> int | None:
    """The bytes of all caches of the highest level; each instance counts once."""
    found: dict[int, dict[str, int]] = {}
    for folder in root.glob("sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*"):
        level, size = whole(text(folder / "level")), text(folder / "size") or ""
        kilobytes = whole(size.removesuffix("K"))
        if level is not None and kilobytes is not None:
            found.setdefault(level, {})[text(folder / "shared_cpu_list") or ""] = 1024 * kilobytes
    return sum(found[max(found)].values()) if found else None


def memory_limit(groups: list[Path]) -> tuple[int | None, int | None]:
    """The memory limit that leaves the least memory, and the bytes in use; None without a limit."""
    found = []
    for group in groups:
        most, used = whole(text(group / "memory.max")), whole(text(group / "memory.current"))
        if most is not None:
            found.append((most - (used or 0), most, used))
    _, most, used = min(found, default=(0, None, None))
    return most, used


@dataclass(frozen=True)
class CpuTime:
    """Counters of processor time, in seconds since the system started.

    Attributes:
        total: time of the allowed processors.
        idle: time that they were idle or waited for a disk.
        stolen: time that the host gave to other virtual machines.
        own: time of this process.
        throttled: time that this process's cgroup waited because its quota was used up; None if unknown.
    """

    total: float
    idle: float
    stolen: float
    own: float
    throttled: float | None = None


def read_cpu_time(root: Path = ROOT) -> CpuTime | None:
    """Read the counters; None if unknown."""
    allowed = numbers(table(root / "proc/self/status").get("Cpus_allowed_list"))
    ticks = [0] * 8
    for line in (text(root / "proc/stat") or "").splitlines():
        name, *words = line.split() or [""]
        known = [tick for word in words[:8] if (tick := whole(word)) is not None]
        if name.startswith("cpu") and whole(name[3:]) in allowed and len(known) == len(ticks):
            ticks = [sum(pair) for pair in zip(ticks, known)]
    if not any(ticks):
        return None
    second = os.sysconf("SC_CLK_TCK")
    throttled = None
    for group in cgroups(root)[:1]:
        for line in (text(group / "cpu.stat") or "").splitlines():
            if line.startswith("throttled_usec "):
                throttled = (whole(line.split()[-1]) or 0) / 1e6
    idle, stolen = (ticks[3] + ticks[4]) / second, ticks[7] / second
    return CpuTime(sum(ticks) / second, idle, stolen, sum(os.times()[:2]), throttled)


@dataclass(frozen=True)
class Shares:
    """Shares of the allowed processors' time in an interval, 0 to 1.

    Attributes:
        stolen: time that the host gave to other virtual machines.
        others: time used by other processes.
        throttled: share of the interval that the cgroup's quota stopped this process; None if unknown.
    """

    stolen: float
    others: float
    throttled: float | None = None


def shares(before: CpuTime | None, after: CpuTime | None, seconds: float) -> Shares | None:
    """The shares between two readings ``seconds`` apart; None if unknown."""
    if before is None or after is None or after.total <= before.total or seconds <= 0:
        return None
    total, stolen = after.total - before.total, after.stolen - before.stolen
    others = total - (after.idle - before.idle) - stolen - (after.own - before.own)
    throttled = None
    if before.throttled is not None and after.throttled is not None:
        throttled = min(1.0, (after.throttled - before.throttled) / seconds)
    return Shares(stolen / total, max(0.0, others / total), throttled)
