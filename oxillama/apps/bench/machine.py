"""Describes the machine and the software of a measurement."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.base.config.engine import available_cpus

CPU_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_int8", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
"""CPU features that affect the speed of kernels, as Linux spells them."""


def peak_rss() -> int:
    """The peak resident memory of this process in bytes.

    On Linux it is the peak of the address space (VmHWM), because `getrusage` there would give a child the
    peak of its parent. Other systems use `getrusage`.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def describe_machine() -> dict[str, Any]:
    """The machine and the software of a measurement, as JSON-serializable data."""
    import oxillama
    from oxillama._kernels import best

    info = cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "available_cores": available_cpus(),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "memory_bytes": _memory_bytes(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "target": best().target,
        "compiler": platform.python_compiler(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "oxillama": oxillama.__version__,
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("OXILLAMA_", "OMP_", "GOMP_", "KMP_"))
        },
    }


def cpuinfo(root: Path = Path("/")) -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo below a root; empty if there is no such file."""
    path = root / "proc/cpuinfo"
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _memory_bytes() -> int | None:
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def machine_text(machine: Mapping[str, Any]) -> str:
    """The result of `describe_machine` as two lines of text."""
    memory = machine["memory_bytes"]
    parts = [f"{machine['cpu']}, {machine['available_cores']} of {machine['cores']} cores"]
    parts += [f"{memory / 1e9:.1f} GB"] if memory else []
    parts += [machine["kernel"]]
    others = machine.get("others_share")
    parts += [] if others is None else [f"other processes took {others:.0%} of the cores' time"]
    engines = machine.get("engines") or {"oxillama": machine["oxillama"]}
    software = [f"{name} {version}" for name, version in engines.items()]
    software += [f"target {machine['target']}", f"Python {machine['python']} ({machine['compiler']})"]
    return ", ".join(parts) + "\n" + ", ".join(software)
