"""Findings: the effect of facts and rates on the speed of a model, each with a measure and advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from oxillama.apps.doctor.machine import Machine, Shares
from oxillama.apps.doctor.measure import ModelRates, Rates
from oxillama.base.distribution import install

HELD_BACK = 0.2
"""The exit code is 1 if a finding costs more than this share of the speed."""
NOTED = 0.05
"""Measured losses above this share are findings."""


@dataclass(frozen=True)
class Finding:
    """Something that slows down the machine, or may do so.

    Attributes:
        what: the finding.
        measured, expected: the fact as read or measured, and the desired value.
        advice: what to do.
        loss: share of the speed that is lost, 0 to 1; None if not measured.
    """

    what: str
    measured: str
    expected: str
    advice: str
    loss: float | None = None


@dataclass(frozen=True)
class Build:
    """Facts of the kernels.

    Attributes:
        target: the target in use, or None.
        wanted: the value of OXILLAMA_TARGET, or None.
        better: preferred targets that this CPU supports, with whether each was built.
        peaks: int8 multiply-adds/s of the target in use and of each better target that was built, if
            measured.
        openmp: number of processors that OpenMP sees; 0 without OpenMP.
        threads: number of threads of an engine.
    """

    target: str | None
    wanted: str | None
    better: Mapping[str, bool]
    peaks: Mapping[str, float]
    openmp: int
    threads: int


@dataclass(frozen=True)
class Measured:
    """The measurements; None or () if not measured.

    Attributes:
        rates: peak rates by number of threads, the last one with all threads.
        shares: shares of the processors' time while the rates were measured.
        during: facts read right after all threads had been busy.
        model: rates of the model.
    """

    rates: tuple[Rates, ...] = ()
    shares: Shares | None = None
    during: Machine | None = None
    model: ModelRates | None = None


def findings(machine: Machine, build: Build, measured: Measured, weights: int | None = None) -> list[Finding]:
    """All findings, largest known loss first.

    Args:
        weights: size of the model's weights in memory in bytes; None without a model.
    """
    found = [
        *of_build(build, machine),
        *of_processors(machine, build, measured),
        *of_memory(machine, weights),
        *of_others(measured, machine),
        *of_rates(measured),
        *of_model(measured),
    ]
    return sorted(found, key=lambda finding: -1 if finding.loss is None else finding.loss, reverse=True)


def is_held_back(found: list[Finding]) -> bool:
    """Whether a finding costs more than `HELD_BACK` of the speed."""
    return any(finding.loss is not None and finding.loss > HELD_BACK for finding in found)


def of_build(build: Build, machine: Machine) -> Iterator[Finding]:
    """Findings about the kernels' target and OpenMP."""
    for name, is_built in build.better.items():
        peaks = [build.peaks.get(target or "") for target in (build.target, name)]
        loss = None if peaks[0] is None or not peaks[1] else max(0.0, 1 - peaks[0] / peaks[1])
        advice = (
            "unset OXILLAMA_TARGET"
            if is_built
            else f"install a build with this target: {install()} --force-reinstall --no-deps"
        )
        yield Finding("a slower kernel target is in use", f"{build.target}", name, advice, loss)
    if not build.openmp and (machine.allowed_cpus or 1) > 1:
        yield Finding(
            "the kernels are built without OpenMP, so they run on one thread",
            "1 thread",
            f"{machine.allowed_cpus} threads",
            "install again with a compiler that has OpenMP (gcc, or clang with libomp)",
            1 - 1 / (machine.allowed_cpus or 1),
        )


def of_processors(machine: Machine, build: Build, measured: Measured) -> Iterator[Finding]:
    """Findings about processors and their frequency."""
    allowed, online, threads = machine.allowed_cpus, machine.online_cpus, build.threads
    if allowed is not None and online is not None and allowed < online:
        yield Finding(
            "this process may not use all processors",
            f"{allowed} processors",
            f"{online}",
            "allow more in the affinity mask (taskset, cpuset, the container's --cpuset-cpus)",
        )
    if machine.cpu_quota is not None and machine.cpu_quota < threads:
        yield Finding(
            "the cgroup grants less processor time than the threads use",
            f"{machine.cpu_quota:g} processors for {threads} threads",
            f"{threads}",
            f"raise the quota (the container's --cpus), or use --threads {max(1, int(machine.cpu_quota))}",
        )
    if machine.cores is not None and machine.cores < threads:
        by_threads = {rates.threads: rates for rates in measured.rates}
        with_all, with_cores = by_threads.get(threads), by_threads.get(machine.cores)
        loss = None
        if with_all is not None and with_cores is not None:
            loss = max(0.0, 1 - with_all.read / with_cores.read)
        yield Finding(
            "threads share physical cores",
            f"{threads} threads",
            f"{machine.cores} physical cores",
            f"compare with --threads {machine.cores} (oxillama bench), and keep the faster",
            loss,
        )
    governors = set(machine.governors or ()) - {"performance", "schedutil"}
    if governors:
        yield Finding(
            "the frequency governor may keep the clock low",
            ", ".join(sorted(governors)),
            "performance",
            "sudo cpupower frequency-set -g performance",
        )
    now = measured.during
    if now is not None and now.frequency and now.max_frequency and now.frequency < 0.8 * now.max_frequency:
        yield Finding(
            "the clock is far below its maximum while all threads work",
            f"{now.frequency / 1e9:.2f} GHz",
            f"up to {now.max_frequency / 1e9:.2f} GHz (with few busy cores)",
            "look for a power limit, heat or the governor (turbostat, cpupower frequency-info)",
        )


def of_memory(machine: Machine, weights: int | None) -> Iterator[Finding]:
    if machine.transparent_huge_pages == "never":
        yield Finding(
            "transparent huge pages are off, so reading weights misses the TLB more often",
            "never",
            "madvise",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    nodes, allowed = machine.numa_nodes, machine.numa_allowed
    if nodes is not None and allowed is not None and allowed < nodes:
        yield Finding(
            "memory may come from some NUMA nodes only",
            f"{allowed} nodes",
            f"{nodes}",
            "allow all nodes (numactl --membind=all, the container's --cpuset-mems)",
        )
    if (allowed or 1) > 1 and machine.numa_policy is not None and machine.numa_policy != "interleave":
        yield Finding(
            "memory lies in the NUMA node whose thread touched it first, so one node may serve all threads",
            machine.numa_policy,
            "interleave",
            "compare with --numa split and with numactl --interleave=all oxillama ..., and keep the fastest",
        )
    free = machine.free_memory
    if weights is not None and free is not None and free < weights:
        yield Finding(
            "the model's weights do not fit the free memory",
            f"{free / 1e9:.1f} GB free",
            f"{weights / 1e9:.1f} GB",
            "use --offload-budget, a smaller model, or a machine (container) with more memory",
            1 - free / weights,
        )


def of_others(measured: Measured, machine: Machine) -> Iterator[Finding]:
    """Findings about other users of processors and memory."""
    shares = measured.shares
    if shares is not None:
        if shares.stolen > NOTED:
            yield Finding(
                "the hypervisor gives processor time to other virtual machines",
                f"{shares.stolen:.0%} stolen",
                "0%",
                "use a machine with dedicated cores",
                shares.stolen,
            )
        if shares.others > NOTED:
            yield Finding(
                "other processes use the processors",
                f"{shares.others:.0%} of their time",
                "0%",
                "end them (top), or give --threads fewer threads than there are processors",
                shares.others,
            )
        if shares.throttled is not None and shares.throttled > NOTED:
            yield Finding(
                "the cgroup's quota stops this process",
                f"{shares.throttled:.0%} of the time",
                "0%",
                "raise the quota (the container's --cpus), or use fewer threads",
                shares.throttled,
            )
    swapped = (measured.during or machine).swapped
    if swapped:
        yield Finding(
            "memory of this process is in the swap space",
            f"{swapped / 1e6:.0f} MB",
            "0 MB",
            "end other processes that hold memory, or use --offload-budget",
        )


def of_rates(measured: Measured) -> Iterator[Finding]:
    for name, unit in (("read", "GB/s read"), ("products", "GMAC/s")):
        speeds = [(getattr(rates, name), rates.threads) for rates in measured.rates]
        if not speeds:
            continue
        (best, fewer), (with_all, threads) = max(speeds), speeds[-1]
        if with_all < (1 - NOTED) * best:
            yield Finding(
                f"{threads} threads reach less than {fewer}",
                f"{with_all / 1e9:.1f} {unit}",
                f"{best / 1e9:.1f}",
                f"compare with --threads {fewer} (oxillama bench), and keep the faster",
                1 - with_all / best,
            )


def of_model(measured: Measured) -> Iterator[Finding]:
    model = measured.model
    if model is not None and model.outside > NOTED:
        yield Finding(
            "decode steps spend time outside kernels, which more cores do not shorten",
            f"{model.outside:.0%} of a step",
            f"at most {NOTED:.0%}",
            "decode several sequences in one step (generate_batch, oxillama serve)",
            model.outside,
        )
