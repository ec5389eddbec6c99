"""What an engine is made with. Every field is checked; one that cannot be honoured is an error."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from oxillama.config.sampler import SamplerConfig
from oxillama.errors import ConfigError
from oxillama.formats import KV_TYPES, WRITABLE

PREFILL_CHUNK = 512
"""Tokens of a prompt that are run in one forward pass."""

COMPUTE = ("int8", "bf16", "f32")
"""How quantized matrices are multiplied."""

MAX_DECODE_WAIT_MS = 100
"""Milliseconds that a step may make a running stream wait while prompts are run beside it."""

PREFIX_CACHE_BYTES = 512 << 20
"""Bytes of keys and values that are kept for prompts that begin alike."""


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
class SchedulerConfig:
    """How requests share an engine.

    Attributes
    ----------
    max_sequences : most sequences that are admitted at a time; those whose reader pauses do not count.
    max_waiting : most requests that wait for admission; one more is refused with `Busy`.
    max_decode_wait_ms : while streams run, a prompt's chunk is made so short that a step is expected to
        take no longer than this; 16 tokens are run all the same.
    promote_seconds : each such time that a request has waited counts as one step of priority.

    Raises
    ------
    ConfigError : a field is outside its range; the message names it.
    """

    max_sequences: int = 64
    max_waiting: int = 1024
    max_decode_wait_ms: float = MAX_DECODE_WAIT_MS
    promote_seconds: float = 5.0

    def __post_init__(self) -> None:
        for name in ("max_sequences", "max_waiting"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: needs an integer from 1 on, got {value!r}")
        for name in ("max_decode_wait_ms", "promote_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"{name}: needs a number above 0, got {value!r}")


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
    quantize : format to quantize the file's F32, F16 and BF16 matrices to while loading, e.g. "Q8_0" or
        "Q4_K"; what runs is what a file quantized so (``--pure``) would. Where rows are no multiple of 256,
        K-quants fall back to Q4_0, Q5_0, Q5_1 or Q8_0; where they are none of 32, all do to F16. None for
        what the file has.
    compute : "int8" multiplies quantized matrices with activations quantized to int8, as fast as can be;
        "f32" with what their codes stand for, to check against a reference; "bf16" the same in half the
        memory, rounded. Matrices of floats are multiplied in float32 always.
    seed : seed of generations whose sampler has none; None for a new one each time.
    kv_memory_limit : most bytes of keys, values and recurrent states, of sequences and cached prefixes
        together; None for no limit. Memory is taken as it is needed either way.
    prefix_cache_bytes : most bytes of these kept for prompts that begin alike; 0 keeps none.
    scheduler : how requests share the engine.

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
    quantize: str | None = None
    compute: str = "int8"
    seed: int | None = None
    kv_memory_limit: int | None = None
    prefix_cache_bytes: int = PREFIX_CACHE_BYTES
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        optionals = ("context_size", "num_threads", "seed", "kv_memory_limit")
        for name in (*optionals, "prefill_chunk_size", "page_size", "prefix_cache_bytes"):
            value = getattr(self, name)
            optional = name in optionals
            least = 0 if name in ("seed", "prefix_cache_bytes") else 1
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name}: needs an integer, got {value!r}")
            if value < least:
                raise ConfigError(f"{name}: needs at least {least}, got {value}")
        if self.context_size is not None and self.context_size >= 10**6:
            raise ConfigError(f"context_size: needs less than 10^6, got {self.context_size}")
        if self.num_threads is not None and self.num_threads > 1024:
            raise ConfigError(f"num_threads: needs at most 1024, got {self.num_threads}")
        if self.kv_type not in KV_TYPES:
            raise ConfigError(f"kv_type: needs one of {', '.join(KV_TYPES)}, got {self.kv_type!r}")
        if self.page_size & (self.page_size - 1):
            raise ConfigError(f"page_size: needs a power of two, got {self.page_size}")
        known = isinstance(self.quantize, str) and self.quantize.upper() in WRITABLE
        if self.quantize is not None and not known:
            raise ConfigError(f"quantize: expected one of {', '.join(WRITABLE)}, got {self.quantize!r}")
        if self.compute not in COMPUTE:
            raise ConfigError(f"compute: needs one of {', '.join(COMPUTE)}, got {self.compute!r}")
        if self.quantize is not None and self.compute != "int8":
            raise ConfigError(f"compute: {self.compute} cannot be combined with quantize, which runs in int8")
        if not isinstance(self.sampler, SamplerConfig):
            raise ConfigError(f"sampler: needs a SamplerConfig, got {type(self.sampler).__name__}")
        if not isinstance(self.scheduler, SchedulerConfig):
            raise ConfigError(f"scheduler: needs a SchedulerConfig, got {type(self.scheduler).__name__}")
