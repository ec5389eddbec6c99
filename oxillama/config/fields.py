"""The options as keyword arguments, for type checkers; made by tools/make_options.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from oxillama.config.adapters import Adapters
from oxillama.config.engine import SchedulerConfig, Texts
from oxillama.config.offload import OffloadPolicy
from oxillama.config.option import AnyPath
from oxillama.config.sampler import SamplerConfig


class SamplerFields(TypedDict, total=False):
    """The options of `SamplerConfig`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_a: float
    top_n_sigma: float
    eta_cutoff: float
    epsilon_cutoff: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    repetition_window: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_range: int
    dry_sequence_breakers: tuple[str | tuple[int, ...], ...]
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    seed: int | None
    logit_bias: Mapping[int, float]
    banned_tokens: tuple[int, ...]
    allowed_tokens: tuple[int, ...] | None
    min_tokens: int
    ignore_eos: bool
    grammar: Any
    json_schema: Any
    regex: str | None
    choices: tuple[str, ...] | None
    structural_tag: Any
    any_order: bool
    order: tuple[str | Callable[..., Any], ...]


class GenerationFields(SamplerFields, total=False):
    """The options of a request, and its sampler's."""

    sampler: SamplerConfig | None
    max_tokens: int | None
    stop: str | tuple[str, ...] | list[str] | None
    priority: int
    max_decode_wait_ms: float | None
    timeout: float | None
    salt: str
    tenant: str
    logprobs: bool
    top_logprobs: int | None
    keep_logits: bool
    adapters: Adapters
    speculate: AnyPath | None
    draft_acceptance: str
    window: int | None
    receipt: bool
    message_format: Any
    reasoning_budget: int | None
    tools: Sequence[Any] | None
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    response_format: Mapping[str, Any] | None
    jump_forward: bool
    request_id: str | None


class EngineFields(TypedDict, total=False):
    """The options of `EngineConfig` but ``model_path``."""

    tokenizer_path: AnyPath | None
    chat_template: AnyPath | None
    context_size: int | None
    num_threads: int | None
    sampler: SamplerConfig
    prefill_chunk_size: int
    kv_type: str
    page_size: int
    mmproj: AnyPath | None
    media_cache_bytes: int
    quantize: str | None
    compute: str
    packed: AnyPath
    packed_access: str
    seed: int | None
    kv_memory_limit: int | None
    prefix_cache_bytes: int
    prefix_cache_dir: AnyPath | None
    prefix_cache_dir_bytes: int
    adapters: Adapters
    speculate: AnyPath | None
    draft_corpus: Texts | tuple[Texts, ...]
    draft_max: int
    offload_budget: int | None
    offload_pinned: tuple[str, ...]
    offload_probe: bool
    offload_access: str
    scheduler: SchedulerConfig
    trace: AnyPath | None
    offload_policy: OffloadPolicy | None
