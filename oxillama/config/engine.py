"""What an engine is made with. Every field is checked; one that cannot be honoured is an error."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from oxillama.config import checks
from oxillama.config.adapters import Adapters, adapter_specs
from oxillama.config.sampler import SamplerConfig
from oxillama.errors import ConfigError
from oxillama.formats import KV_TYPES, WRITABLE

PREFILL_CHUNK = 512
"""Tokens of a prompt that are run in one forward pass."""

COMPUTE = ("int8", "bf16", "f32")
"""How quantized matrices are multiplied."""

PACKED_ACCESS = ("map", "read")
"""How a packed file comes into memory."""

MAX_DECODE_WAIT_MS = 100
"""Milliseconds that a step may make a running stream wait while prompts are run beside it."""

PREFIX_CACHE_BYTES = 512 << 20
"""Bytes of keys and values that are kept for prompts that begin alike."""

PREFIX_CACHE_DIR_BYTES = 4 << 30
"""Bytes of files that are kept for prompts of other processes."""

Texts = str | os.PathLike[str] | bytes
"""A text file: its path, or what is in it."""

DRAFT_MAX = 8
"""Most tokens of a draft."""

MAX_CONTEXT = 10**6 - 1
"""Most tokens in a sequence: rotary angles are exact up to this position."""

INTEGERS: dict[str, tuple[float, float]] = {
    "context_size": (1, MAX_CONTEXT),
    "num_threads": (1, 1024),
    "prefill_chunk_size": (1, math.inf),
    "page_size": (1, 2**20),  # more than a context
    "seed": (0, 2**64 - 1),
    "kv_memory_limit": (1, math.inf),
    "prefix_cache_bytes": (0, math.inf),
    "prefix_cache_dir_bytes": (0, math.inf),
    "draft_max": (1, 64),
}
"""Lowest and highest value of the integers of `EngineConfig`."""
OPTIONAL = ("context_size", "num_threads", "seed", "kv_memory_limit")


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
    max_sequences : most sequences that are admitted at a time; those that pause do not count.
    max_waiting : most requests that wait for admission; one more is refused with `QueueFull`.
    max_decode_wait_ms : while streams run, a chunk of a prompt is so short that its step is expected to take
        no longer than this; a chunk has at least 16 tokens.
    promote_seconds : a waiting request gains one step of priority each time so many seconds have passed.

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
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), 1))
        for name in ("max_decode_wait_ms", "promote_seconds"):
            object.__setattr__(self, name, checks.number(name, getattr(self, name), checks.ABOVE_ZERO))


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
        "Q4_K"; the bits are those of a file quantized so with ``--pure``. Rows whose length is not a multiple
        of 256 are quantized to Q4_0, Q5_0, Q5_1 or Q8_0 instead of a K-quant; rows whose length is not a
        multiple of 32, to F16. None keeps the formats of the file.
    compute : how quantized matrices are multiplied. "int8" quantizes the activations to int8, the fastest;
        "f32" dequantizes the matrices to float32, to compare with a reference; "bf16" dequantizes them to
        bfloat16, in half the memory. Matrices of floats are always multiplied in float32.
    packed : a packed file, which holds the matrices as the kernels take them: "auto" takes the one beside the
        model, if `pack_model` has made one, "make" makes it if it is missing or does not fit, "off" takes
        none; any other text is the path of one. The bits are the same.
    packed_access : "map" maps a packed file, so that all processes on a machine share one copy of it; "read"
        reads it into memory. If the disk of a mapped file fails, or another program cuts the file during
        a pass and the system cannot make it wait, the process ends.
    seed : seed of generations whose sampler has none; None for a new one each time.
    kv_memory_limit : most bytes of keys, values and recurrent states, of sequences and cached prefixes
        together; None for no limit. Memory is allocated when it is needed in both cases.
    adapters : LoRA adapters of all requests that name none of their own, as in `GenerationOptions`.
    speculate : what drafts tokens that the model then verifies, several in one pass: "lookup" for what
        followed earlier in the prompt or the text, the path of a smaller model whose vocabulary is the same
        or has much in common, "self" for the model itself with fewer bits, or "auto" for the best that there
        is. The text is the same, the time is not. None for nothing.
    draft_corpus : text files in UTF-8, by path or as their bytes, in which "lookup" looks, too. They are
        indexed once, when the model is loaded.
    draft_max : most tokens of a draft. As many are drafted as make the texts fastest, by what was accepted
        and what the rows of a step were measured to cost.
    prefix_cache_bytes : most bytes of keys, values and states kept for prompts that begin alike; 0 keeps
        none.
    prefix_cache_dir : folder in which keys, values and states of prompts are kept, too, for later processes
        and for others at the same time. Prompts can be told from what is in it, so it is made for its owner
        alone. None for nowhere.
    prefix_cache_dir_bytes : most bytes of the files in it; those used longest ago go first.
    scheduler : how requests share the engine.
    trace : file to which the times of steps, layers and requests are written, in Chrome's trace event format,
        which Perfetto shows; a file that is there is replaced. None for no trace.

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
    packed: str | os.PathLike[str] = "auto"
    packed_access: str = "map"
    seed: int | None = None
    kv_memory_limit: int | None = None
    prefix_cache_bytes: int = PREFIX_CACHE_BYTES
    prefix_cache_dir: str | os.PathLike[str] | None = None
    prefix_cache_dir_bytes: int = PREFIX_CACHE_DIR_BYTES
    adapters: Adapters = ()
    speculate: str | os.PathLike[str] | None = None
    draft_corpus: Texts | tuple[Texts, ...] = ()
    draft_max: int = DRAFT_MAX
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    trace: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in INTEGERS.items():
            value = getattr(self, name)
            if value is not None or name not in OPTIONAL:
                object.__setattr__(self, name, checks.integer(name, value, low, high))
        for name in ("model_path", "tokenizer_path", "speculate", "prefix_cache_dir", "trace"):
            if not isinstance(getattr(self, name), (str, os.PathLike, type(None))):
                raise checks.refuse(name, "a path", getattr(self, name))
        if self.prefix_cache_dir is not None and not self.prefix_cache_bytes:
            raise ConfigError("prefix_cache_dir: needs prefix_cache_bytes, into which its files are read")
        if not isinstance(self.packed, (str, os.PathLike)):
            raise checks.refuse("packed", '"auto", "make", "off" or a path', self.packed)
        checks.one_of("packed_access", self.packed_access, PACKED_ACCESS)
        object.__setattr__(self, "adapters", adapter_specs("adapters", self.adapters))
        checks.one_of("kv_type", self.kv_type, KV_TYPES)
        if self.page_size & (self.page_size - 1):
            raise checks.refuse("page_size", "a power of two", self.page_size)
        if self.quantize is not None:
            known = isinstance(self.quantize, str) and self.quantize.upper()
            checks.one_of("quantize", known or self.quantize, WRITABLE)
        checks.one_of("compute", self.compute, COMPUTE)
        if self.quantize is not None and self.compute != "int8":
            raise ConfigError(f"compute: {self.compute} cannot be combined with quantize, which runs in int8")
        object.__setattr__(self, "draft_corpus", self.draft_corpora)
        if self.draft_corpora and self.speculate not in (None, "lookup", "auto", "off"):
            raise ConfigError(f"draft_corpus: speculate {os.fspath(self.speculate)} looks nothing up")
        checks.instance("sampler", self.sampler, SamplerConfig)
        checks.instance("scheduler", self.scheduler, SchedulerConfig)

    @property
    def draft_corpora(self) -> tuple[Texts, ...]:
        """``draft_corpus`` as a tuple. Raises ConfigError if it is none of texts."""
        given = self.draft_corpus
        found = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        for text in found:
            if not isinstance(text, (str, os.PathLike, bytes)):
                raise checks.refuse("draft_corpus", "paths of text files, or their bytes", text)
        return found


class EngineFields(TypedDict, total=False):
    """The fields of `EngineConfig` but ``model_path`` as keyword arguments, for editors and type checkers."""

    tokenizer_path: str | os.PathLike[str] | None
    context_size: int | None
    num_threads: int | None
    sampler: SamplerConfig
    prefill_chunk_size: int
    kv_type: str
    page_size: int
    quantize: str | None
    compute: str
    packed: str | os.PathLike[str]
    packed_access: str
    seed: int | None
    kv_memory_limit: int | None
    prefix_cache_bytes: int
    prefix_cache_dir: str | os.PathLike[str] | None
    prefix_cache_dir_bytes: int
    adapters: Adapters
    speculate: str | os.PathLike[str] | None
    draft_corpus: Texts | tuple[Texts, ...]
    draft_max: int
    scheduler: SchedulerConfig
    trace: str | os.PathLike[str] | None
