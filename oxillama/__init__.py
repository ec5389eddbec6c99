"""Runs GGUF language models on CPUs: the same bits every time, at the speed of the memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oxillama._version import __version__
from oxillama.config import MAX_DECODE_WAIT_MS, PREFILL_CHUNK, EngineConfig, SchedulerConfig
from oxillama.errors import (
    Busy,
    ChatTemplateError,
    ConfigError,
    GGUFError,
    KvCacheFullError,
    LoadError,
    ModelFileError,
    OxiLlamaError,
    PromptError,
    SamplingError,
    TokenizerError,
)
from oxillama.sampling.params import SamplerConfig

if TYPE_CHECKING:
    from oxillama.cache.kv import KvCache, KvCachePool, PagedKvCache
    from oxillama.cache.prefix import PrefixKvCache
    from oxillama.engine.async_engine import AsyncEngine
    from oxillama.engine.engine import InferenceEngine
    from oxillama.engine.generation import Generation
    from oxillama.engine.metrics import EngineMetrics, MetricsSnapshot
    from oxillama.engine.scheduler import ScheduledBatch, Scheduler
    from oxillama.engine.sequence import SeqState, Sequence
    from oxillama.tokenizer import TokenizerBridge

__all__ = [
    "MAX_DECODE_WAIT_MS",
    "PREFILL_CHUNK",
    "AsyncEngine",
    "Busy",
    "ChatTemplateError",
    "ConfigError",
    "EngineConfig",
    "EngineMetrics",
    "GGUFError",
    "Generation",
    "InferenceEngine",
    "KvCache",
    "KvCacheFullError",
    "KvCachePool",
    "LoadError",
    "MetricsSnapshot",
    "ModelFileError",
    "OxiLlamaError",
    "PagedKvCache",
    "PrefixKvCache",
    "PromptError",
    "SamplerConfig",
    "SamplingError",
    "ScheduledBatch",
    "Scheduler",
    "SchedulerConfig",
    "SeqState",
    "Sequence",
    "TokenizerBridge",
    "TokenizerError",
    "__version__",
]

# What needs NumPy and the kernels is imported when it is first asked for, so that `oxillama --help` is quick.
_LATER = {
    "AsyncEngine": "oxillama.engine.async_engine",
    "EngineMetrics": "oxillama.engine.metrics",
    "Generation": "oxillama.engine.generation",
    "InferenceEngine": "oxillama.engine.engine",
    "KvCache": "oxillama.cache.kv",
    "KvCachePool": "oxillama.cache.kv",
    "MetricsSnapshot": "oxillama.engine.metrics",
    "PagedKvCache": "oxillama.cache.kv",
    "PrefixKvCache": "oxillama.cache.prefix",
    "ScheduledBatch": "oxillama.engine.scheduler",
    "Scheduler": "oxillama.engine.scheduler",
    "SeqState": "oxillama.engine.sequence",
    "Sequence": "oxillama.engine.sequence",
    "TokenizerBridge": "oxillama.tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'oxillama' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
