"""A diagnosis: reads facts of the machine, measures on request, and derives findings."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from oxillama import _kernels
from oxillama.apps.doctor.findings import Build, Finding, Measured, findings, is_held_back
from oxillama.apps.doctor.machine import Machine, read_machine
from oxillama.apps.doctor.measure import (
    buffer_bytes,
    measure_model,
    measure_peak,
    measure_rates,
    thread_counts,
    weight_bytes,
)
from oxillama.base.config.engine import available_cpus
from oxillama.base.targets import TARGETS


@dataclass(frozen=True)
class Diagnosis:
    """Facts, rates and findings.

    Attributes:
        weights: bytes of the model's weights in memory; None without a model.
    """

    machine: Machine
    build: Build
    measured: Measured
    weights: int | None
    findings: list[Finding]

    @property
    def is_held_back(self) -> bool:
        """Whether a finding costs more than `findings.HELD_BACK` of the speed, as far as measured."""
        return is_held_back(self.findings)

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as JSON-serializable data, with null for unknown facts."""
        model, rates = self.measured.model, self.measured.rates
        return {
            "machine": asdict(self.machine),
            "threads": self.build.threads,
            "rates": [asdict(found) for found in rates],
            "shares": asdict(self.measured.shares) if self.measured.shares else None,
            "weight_bytes": self.weights,
            "model": None
            if model is None
            else {
                **asdict(model),
                "share_of_read": model.share_of_read(rates[-1]),
                "share_of_products": model.share_of_products(rates[-1]),
            },
            "findings": [asdict(finding) for finding in self.findings],
            "held_back": self.is_held_back,
        }


def diagnose(
    model: str | os.PathLike[str] | None = None, *, measure: bool = False, num_threads: int | None = None
) -> Diagnosis:
    """Find what slows down this machine.

    Args:
        model: GGUF file to run; implies ``measure``. It is not run if its weights do not fit the free memory.
        measure: whether to measure the peak rates, which takes about a second.
        num_threads: threads of the kernels; None: the CPUs that this process may use.

    Raises:
        ConfigError: OXILLAMA_TARGET names a target that cannot run. Also the errors of loading the model.
    """
    machine, threads = read_machine(), num_threads or available_cpus()
    kernels, weights = _kernels.best(), None if model is None else weight_bytes(model)
    better, peaks, measured = better_targets(kernels.target), {}, Measured()
    if measure or model is not None:
        counts = sorted({*thread_counts(threads), min(machine.cores or threads, threads)})
        rates, shares = measure_rates(kernels, counts, buffer_bytes(machine))
        during = read_machine()
        if any(better.values()):
            built = [name for name, is_built in better.items() if is_built]
            peaks = {name: measure_peak(_kernels.load(name), threads) for name in (kernels.target, *built)}
        fits = weights is None or machine.free_memory is None or weights <= machine.free_memory
        rated = measure_model(model, threads) if model is not None and fits else None
        measured = Measured(tuple(rates), shares, during, rated)
    build = Build(
        kernels.target,
        os.environ.get("OXILLAMA_TARGET"),
        better,
        peaks,
        _kernels.cpu.openmp_threads(),
        threads,
    )
    return Diagnosis(machine, build, measured, weights, findings(machine, build, measured, weights))


def better_targets(used: str) -> dict[str, bool]:
    """Automatic targets preferred to ``used`` that CPU and system support, with whether each was built."""
    found = {}
    for target in TARGETS:
        if target.name == used:
            break
        if target.use != "automatic":
            continue
        fits = not target.machines or platform.machine().lower() in target.machines
        reason = _kernels.refusal(target.name)
        if fits and all(map(_kernels.cpu.has, target.features)) and reason in (None, "not built"):
            found[target.name] = reason is None
    return found
