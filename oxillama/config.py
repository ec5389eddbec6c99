"""What an engine is made with. Every field is checked; one that cannot be honoured is an error."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from oxillama.errors import ConfigError
from oxillama.formats import KV_TYPES
from oxillama.sampling.params import SamplerConfig

PREFILL_CHUNK = 512
"""Tokens of a prompt that are run in one forward pass."""


def available_cpus() -> int:
    """CPUs this process may use: its affinity, further bounded by a cgroup's CPU quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # no cgroup v2 here
    return count


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of an `InferenceEngine`.

    Attributes
    ----------
    model_path : GGUF file to load at once; None to load one later.
    tokenizer_path : a ``tokenizer.json`` to use in place of the file's vocabulary.
    context_size : most tokens in a sequence; None for what the model was trained with.
    num_threads : threads for the kernels; None for the CPUs this process may use.
    sampler : how tokens are chosen where a call does not say.
    prefill_chunk_size : most prompt tokens in one forward pass.
    kv_type : "f16", "f32", "bf16" or "q8_0": how keys and values are kept.
    page_size : tokens in a page of keys and values, a power of two; 16 and more are fastest.
    seed : seed of generations whose sampler has none; None for a new one each time.

    Raises
    ------
    ConfigError : a field is outside its range; the message names it.
    """

    model_path: str | os.PathLike[str] | None = None
    tokenizer_path: str | os.PathLike[str] | None = None
    context_size: int | None = None
    num_threads: int | None = None
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    prefill_chunk_size: int = PREFILL_CHUNK
    kv_type: str = "f16"
    page_size: int = 16
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("context_size", "num_threads", "prefill_chunk_size", "page_size", "seed"):
            value = getattr(self, name)
            optional = name in ("context_size", "num_threads", "seed")
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name}: needs an integer, got {value!r}")
            if value < (0 if name == "seed" else 1):
                raise ConfigError(f"{name}: needs at least {0 if name == 'seed' else 1}, got {value}")
        if self.context_size is not None and self.context_size >= 10**6:
            raise ConfigError(f"context_size: needs less than 10^6, got {self.context_size}")
        if self.num_threads is not None and self.num_threads > 1024:
            raise ConfigError(f"num_threads: needs at most 1024, got {self.num_threads}")
        if self.kv_type not in KV_TYPES:
            raise ConfigError(f"kv_type: needs one of {', '.join(KV_TYPES)}, got {self.kv_type!r}")
        if self.page_size & (self.page_size - 1):
            raise ConfigError(f"page_size: needs a power of two, got {self.page_size}")
        if not isinstance(self.sampler, SamplerConfig):
            raise ConfigError(f"sampler: needs a SamplerConfig, got {type(self.sampler).__name__}")
