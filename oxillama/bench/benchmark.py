"""Measure how fast one model runs here: the core of `oxillama bench`, without any other engine.

A measurement is a list of samples, one per round, and is reported as a median with its quartiles: on a
machine with neighbours a mean says more about them, and a single number hides the spread. Comparisons
with other engines stand in the source tree's `benchmarks/`, which uses the same parts.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.config.engine import available_cpus
from oxillama.errors import ConfigError

CPU_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_int8", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
"""CPU features a kernel's speed may depend on, as Linux spells them."""


@dataclass(frozen=True)
class Summary:
    """Median, quartiles, extremes and number of a measurement's samples, all in the samples' unit."""

    median: float
    low: float
    high: float
    min: float
    max: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Summarize at least one sample; ``low`` and ``high`` are quartiles, linearly interpolated."""
        if not samples:
            raise ValueError("samples: expected at least one, got none")
        low, median, high = np.percentile(samples, (25, 50, 75))
        return cls(float(median), float(low), float(high), min(samples), max(samples), len(samples))


@dataclass(frozen=True)
class ModelSpeed:
    """What `bench_model` found: tokens per second of each round, seconds to load and answer one token."""

    model: str
    prompt_tokens: int
    new_tokens: int
    num_threads: int
    load_seconds: float
    prefill_samples: tuple[float, ...]
    decode_samples: tuple[float, ...]

    @property
    def prefill(self) -> Summary:
        """Of the rounds."""
        return Summary.of(self.prefill_samples)

    @property
    def decode(self) -> Summary:
        """Of the rounds."""
        return Summary.of(self.decode_samples)


def bench_model(
    path: str | os.PathLike[str],
    *,
    prompt_tokens: int = 512,
    new_tokens: int = 32,
    num_threads: int | None = None,
    quantize: str | None = None,
    rounds: int = 10,
    warmup: int = 1,
) -> ModelSpeed:
    """Time prefill of ``prompt_tokens`` tokens, then decoding of ``new_tokens`` more, ``rounds`` times.

    Decoding feeds fixed tokens one by one, so it excludes sampling. ``num_threads`` None means all cores this
    process may use; ``quantize`` is as in `EngineConfig`. Raises ConfigError for a count below 1 (``warmup``:
    below 0), and the errors of loading and running a model.
    """
    for name, count, least in (
        ("prompt_tokens", prompt_tokens, 1),
        ("new_tokens", new_tokens, 1),
        ("rounds", rounds, 1),
        ("warmup", warmup, 0),
    ):
        if count < least:
            raise ConfigError(f"{name}: expected at least {least}, got {count}")
    from oxillama import EngineConfig, InferenceEngine

    threads = available_cpus() if num_threads is None else num_threads
    config = EngineConfig(
        model_path=os.fspath(path),
        num_threads=threads,
        context_size=prompt_tokens + new_tokens,
        quantize=quantize,
    )
    start = time.perf_counter()
    engine = InferenceEngine(config)
    n_vocab = len(engine.prefill([1]))
    load_seconds = time.perf_counter() - start

    prompt, new = fixed_tokens(prompt_tokens, n_vocab), fixed_tokens(new_tokens, n_vocab)
    prefill, decode = [], []
    for _ in range(warmup + rounds):
        engine.reset()
        start = time.perf_counter()
        engine.prefill(prompt)
        middle = time.perf_counter()
        for token in new:
            engine.forward_one(token)
        prefill.append(prompt_tokens / (middle - start))
        decode.append(new_tokens / (time.perf_counter() - middle))
    return ModelSpeed(
        Path(path).name,
        prompt_tokens,
        new_tokens,
        threads,
        load_seconds,
        tuple(prefill[warmup:]),
        tuple(decode[warmup:]),
    )


def fixed_tokens(n: int, n_vocab: int) -> list[int]:
    """``n`` token ids spread over a vocabulary, always the same and never id 0."""
    return [1 + i * 7919 % (n_vocab - 1) for i in range(n)]


def peak_rss() -> int:
    """The most memory this process has had resident so far, in bytes.

    Linux counts it per address space (VmHWM). Elsewhere `getrusage` is asked; on Linux that one would
    give a child the peak of the process that started it.
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
    """The machine and software that a measurement belongs to, ready for JSON."""
    import oxillama
    from oxillama._kernels import best

    info = _cpuinfo()
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


def _cpuinfo() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo, or nothing where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _memory_bytes() -> int | None:
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
