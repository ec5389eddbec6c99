"""What an engine is made with. Every field is checked; one that cannot be honoured is an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from oxillama.base.cgroups import ROOT, cpu_quota
from oxillama.base.config import checks
from oxillama.base.config.checks import ABOVE_ZERO, MAX_SEED, NO_DECODE_WAIT
from oxillama.base.config.option import Adapters, AnyPath, Options, option
from oxillama.base.config.sampler import SamplerConfig
from oxillama.base.formats import KV_PAIRS, KV_TYPES, WRITABLE
from oxillama.base.lazy_import import lazy
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.base.config.offload import OffloadPolicy

adapter_specs: Callable[..., Any] = lazy("oxillama.base.config.adapters:adapter_specs")
fields_of: Callable[..., Any] = lazy("oxillama.base.config.offload:fields_of")

PREFILL_CHUNK = 512
"""Tokens of a prompt that are run in one forward pass."""

COMPUTE = ("int8", "w8a8", "w8a8-128", "bf16", "f32")
"""How quantized matrices are multiplied."""

PACKED_ACCESS = ("map", "read")
"""How a packed file comes into memory."""

MAX_DECODE_WAIT_MS = 100
"""Milliseconds that a step may make a running stream wait while prompts are run beside it."""

PREFIX_CACHE_BYTES = 512 << 20
"""Bytes of keys and values that are kept for prompts that begin alike."""

PREFIX_CACHE_DIR_BYTES = 4 << 30
"""Bytes of files that are kept for prompts of other processes."""

Texts: TypeAlias = AnyPath | bytes
"""A text file: its path, or what is in it."""

DRAFT_MAX = 8
"""Max tokens of a draft."""

MAX_CONTEXT = 10**6 - 1
"""Max tokens in a sequence: rotary angles are exact up to this position."""

MAX_PAGE = 2**20
"""Max tokens in a page, more than a context."""


def available_cpus(root: Path = ROOT) -> int:
    """CPUs this process may use: its affinity, further bounded by the CPU quota of its cgroups."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return count if quota is None else min(count, max(1, round(quota)))


@dataclass(frozen=True, kw_only=True, repr=False)
class SchedulerConfig(Options):
    """How requests share an engine.

    Raises:
        ConfigError: a field is outside its range; the message names it.
    """

    # fmt: off
    max_sequences: int = option(64, low=1,
        help="max sequences that are admitted at a time; those that pause do not count")
    max_waiting: int = option(1024, low=1,
        help="max requests of a tenant (a server's key) that wait; one more is refused with `QueueFull`")
    max_decode_wait_ms: float | None = option(None, low=ABOVE_ZERO, high=NO_DECODE_WAIT,
        help="milliseconds that a stream waits for a token while prompts run, which are cut to that, but to "
             "no less than 16 tokens. 1e9 for no limit, which gives the most tokens a second. None for 100, "
             "or for 4 steps without a prompt where those take longer")
    promote_seconds: float = option(5.0, low=ABOVE_ZERO,
        help="a waiting request gains one step of priority each time so many seconds have passed")
    # fmt: on


def _format(name: str, value: Any) -> str:
    """A format that matrices can be quantized to, in capitals or not. Raises ConfigError."""
    checks.one_of(name, (isinstance(value, str) and value.upper()) or value, WRITABLE)
    return str(value)


def _kv_type(name: str, value: Any) -> str:
    """A KV type, for keys and values or as KEYS:VALUES; two equal types become one. Raises ConfigError."""
    keys, _, values = value.partition(":") if isinstance(value, str) else ("", "", "")
    found = keys if values in ("", keys) else value
    if found not in KV_PAIRS or value == f"{keys}:":
        raise checks.refuse(name, f"one of {', '.join(KV_TYPES)}, or KEYS:VALUES of these", value)
    return str(found)


def _corpus(name: str, value: Any) -> tuple[Texts, ...]:
    """Text files. Raises ConfigError."""
    found = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for text in found:
        if not isinstance(text, (str, os.PathLike, bytes)):
            raise checks.refuse(name, "paths of text files, or their bytes", text)
    return found


@dataclass(frozen=True, kw_only=True, repr=False)
class EngineConfig(Options):
    """Options of an `InferenceEngine`.

    ``offload_policy``, an `OffloadPolicy`, sets ``offload_budget`` and ``offload_pinned``.

    Raises:
        ConfigError: a field is outside its range, or cannot be combined with another; the message names it.
    """

    # fmt: off
    model_path: AnyPath | None = option(None, cli=False,
        help="GGUF file to load at once; None to load one later")
    tokenizer_path: AnyPath | None = option(None, flags="--tokenizer",
        help="a ``tokenizer.json`` to use in place of the file's vocabulary")
    chat_template: AnyPath | None = option(None, argument="NAME|FILE", flags="--template",
        help="a chat template of the file by name, a Jinja file, or a well-known format (chatml, gemma, "
             "llama2, llama3, mistral-v1, -v3, -v3-tekken, -v7, phi3, vicuna, zephyr). None for the default")
    context_size: int | None = option(None, low=1, high=MAX_CONTEXT, flags="-c --ctx --ctx-size",
        help="max tokens in a sequence; None for what the model was trained with")
    num_threads: int | None = option(None, low=1, high=1024, flags="-t --threads",
        help="threads for the kernels; None for the CPUs this process may use")
    sampler: SamplerConfig = option(SamplerConfig(), cli=False,
        check=partial(checks.instance, kind=SamplerConfig),
        help="how tokens are chosen where a call does not say")
    prefill_chunk_size: int = option(PREFILL_CHUNK, low=1, flags="--prefill-chunk",
        help="max prompt tokens in one forward pass")
    kv_type: str = option("f16", check=_kv_type, argument="TYPE|KEYS:VALUES",
        help=f"how keys and values are kept: {', '.join(KV_TYPES)}, or one for each, as in q8_0:q4_0")
    page_size: int = option(16, low=1, high=MAX_PAGE,
        help="tokens in a page of keys and values, a power of two; 16 and more are fastest")
    mmproj: AnyPath | None = option(None, argument="FILE",
        help="file with encoders of pictures and sounds; None for the only ``mmproj*.gguf`` beside the model")
    media_cache_bytes: int = option(128 << 20, low=0, flags="--media-cache", argument="BYTES",
        help="max bytes of embeddings of pictures and sounds kept for the next questions; 0 keeps none")
    quantize: str | None = option(None, check=_format, argument="FORMAT",
        help="format to quantize the file's F32, F16 and BF16 matrices to while loading, e.g. "
             '"Q8_0" or "Q4_K"; the bits are those of a file quantized so with ``--pure``. Rows whose length '
             "is not a multiple of 256 are quantized to Q4_0, IQ4_NL, Q5_0, Q5_1 or Q8_0 for blocks of 256; "
             "rows whose length is not a multiple of 32, to F16. None for the formats of the file")
    compute: str = option("int8", choices=COMPUTE,
        help='how quantized matrices are multiplied. "int8" quantizes the activations to int8, in blocks of '
             '32 or 256 columns; "w8a8" rounds the matrices, those of floats too, to int8 with one scale per '
             "row, and the activations to int8 with one scale per token, the fastest for prompts and batches "
             'and the least exact; "w8a8-128" does so with one scale per 128 columns of both, nearly as fast '
             'and nearly as exact as "int8"; "f32" dequantizes the matrices to float32, to compare with a '
             'reference; "bf16" dequantizes them to bfloat16, in half the memory. Activations of BF16 '
             'matrices are rounded to bfloat16 unless it is "f32"; F32 and F16 matrices are multiplied in '
             'float32 unless it is "w8a8" or "w8a8-128"; encoders of pictures and sounds take "int8" then')
    packed: AnyPath = option("auto", choices=("auto", "make", "off"),
        help='a packed file, which holds the matrices as the kernels take them: "auto" takes the one beside '
             'the model, if `pack_model` has made one, "make" makes it if it is missing or does not fit, '
             '"off" takes none; any other text is the path of one. The bits are the same')
    packed_access: str = option("map", choices=PACKED_ACCESS,
        help='"map" maps a packed file, so that all processes on a machine share one copy of it; "read" '
             "reads it into memory. If the disk of a mapped file fails, or another program cuts the file "
             "during a pass and the system cannot make it wait, the process ends")
    seed: int | None = option(None, low=0, high=MAX_SEED,
        help="seed of generations whose sampler has none; None for a new one each time")
    kv_memory_limit: int | None = option(None, low=1, argument="BYTES",
        help="max bytes of keys, values and recurrent states, of sequences and cached prefixes together; "
             "None for no limit. Memory is allocated when it is needed in both cases")
    prefix_cache_bytes: int = option(PREFIX_CACHE_BYTES, low=0, argument="BYTES",
        help="max bytes of keys, values and states kept for prompts that begin alike; 0 keeps none")
    prefix_cache_dir: AnyPath | None = option(None, argument="FOLDER",
        help="folder in which keys, values and states of prompts are kept, too, for later processes and for "
             "others at the same time. Prompts can be told from what is in it, so it is made for its owner "
             "alone. None for nowhere")
    prefix_cache_dir_bytes: int = option(PREFIX_CACHE_DIR_BYTES, low=0, argument="BYTES",
        help="max bytes of the files in it; those used longest ago go first")
    adapters: Adapters = option((), check=adapter_specs, argument="FILE[=SCALE]", is_list=True,
        flags="--lora",
        help="LoRA adapters of all requests that name none of their own",
        python="as in `GenerationOptions`")
    speculate: AnyPath | None = option(None, choices=("auto", "lookup", "self"),
        flags="--draft-model --draft",
        help='what drafts tokens that the model then verifies, several in one pass: "lookup" for what '
             "followed earlier in the prompt or the text, the path of a smaller model whose vocabulary is "
             "the same or has much in common, or of a drafter made for the model (EAGLE-3, DFlash, Gemma 4's "
             'assistant), "self" for the model itself with fewer bits, or "auto" for the best that there is. '
             "The text is the same, the time is not. None for nothing")
    draft_corpus: Texts | tuple[Texts, ...] = option((), check=_corpus, argument="FILE", is_list=True,
        help='text files in UTF-8, by path or as their bytes, in which "lookup" looks, too. They are indexed '
             "once, when the model is loaded")
    draft_max: int = option(DRAFT_MAX, low=1, high=64,
        help="max tokens of a draft. As many are drafted as make the texts fastest, by what was accepted "
             "and what the rows of a step were measured to cost")
    offload_budget: int | None = option(None, low=1, argument="BYTES",
        help="max bytes of packed matrices in memory at a time, for a model that is larger than the memory: "
             "the rest is read when a layer needs it. The bits are the same. None for no limit")
    offload_pinned: tuple[str, ...] = option((), argument="NAME",
        help='names of tensors that stay in memory under a budget, with ``*`` and ``?``, as in "blk.0.*". '
             "Without a budget all stay")
    offload_probe: bool = option(True, help="whether a budget shrinks while the system is short of memory")
    offload_access: str = option("auto", choices=("auto", "cached", "direct"),
        help='how a packed file is read under a budget: "cached" through the system\'s cache of files; '
             '"direct" past it where the system can (Linux), which costs less where the cache cannot keep '
             'the file; "auto" past it if more bytes do not stay in memory than memory is available')
    numa: str = option("off", choices=("off", "split"),
        help='"split" puts some rows of each matrix into the memory of each NUMA node, and has threads that '
             "are bound to the node multiply them: on Linux, without packed file and budget. "
             '"off" leaves memory and threads where the system puts them. The bits are the same')
    scheduler: SchedulerConfig = option(SchedulerConfig(), cli=False,
        check=partial(checks.instance, kind=SchedulerConfig),
        help="how requests share the engine")
    trace: AnyPath | None = option(None,
        help="file to which the times of steps, layers and requests are written, in Chrome's trace event "
             "format, which Perfetto shows; a file that is there is replaced. None for no trace")
    # fmt: on
    offload_policy: InitVar[Any] = None

    def __post_init__(self, offload_policy: Any) -> None:
        super().__post_init__()
        if offload_policy is not None:
            vars(self).update(self._offloaded(offload_policy))
            self._check_together()

    def _check_together(self) -> None:
        if self.prefix_cache_dir is not None and not self.prefix_cache_bytes:
            raise ConfigError("prefix_cache_dir: needs prefix_cache_bytes, into which its files are read")
        if self.page_size & (self.page_size - 1):
            raise checks.refuse("page_size", "a power of two", self.page_size)
        if self.quantize is not None and self.compute != "int8":
            raise ConfigError(f"compute: {self.compute} cannot be combined with quantize, which runs in int8")
        if self.draft_corpus and self.speculate not in (None, "lookup", "auto", "off"):
            raise ConfigError(f"draft_corpus: speculate {os.fspath(self.speculate)} looks nothing up")
        for name in ("packed", "offload_budget") if self.numa != "off" else ():
            if (value := getattr(self, name)) not in ("auto", "off", None):
                raise ConfigError(f"numa: {self.numa} cannot be combined with {name} {value}")

    def _offloaded(self, policy: OffloadPolicy) -> dict[str, Any]:
        """The fields of a policy. Raises ConfigError if others were given beside it."""
        asked: dict[str, Any] = fields_of("offload_policy", policy)
        for name, value in asked.items():
            if getattr(self, name) not in (value, None, ()):
                raise ConfigError(f"offload_policy: cannot be combined with {name} {getattr(self, name)}")
        return asked

    def with_offload(self, policy: OffloadPolicy) -> EngineConfig:
        """A copy with ``offload_budget`` and ``offload_pinned`` taken from a policy."""
        return self._with(fields_of("policy", policy))

    @property
    def quantize_format(self) -> str | None:
        """The name of the format of ``quantize``, in capitals."""
        return None if self.quantize is None else self.quantize.upper()

    @property
    def draft_corpora(self) -> tuple[Texts, ...]:
        """``draft_corpus`` as a tuple."""
        return self.draft_corpus if isinstance(self.draft_corpus, tuple) else (self.draft_corpus,)
