"""Runs GGUF language models on CPUs: the same bits every time.

Folders are rooms. The first word of a room's docstring is its floor; imports go down only:

    Faces     what uses the library as any user would
    Work      requests, batches, snapshots, whole files
    State     what a sequence carries along; these rooms never import each other
    Models    architectures and their layers
    Files     what a model file holds: tensors, vocabulary, templates
    Kernels   the compiled code
    Facts     tables, options, errors
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from oxillama._version import __version__
from oxillama.config import (
    MAX_DECODE_WAIT_MS,
    PREFILL_CHUNK,
    EngineConfig,
    GenerationOptions,
    OffloadPolicy,
    SamplerConfig,
    SchedulerConfig,
)
from oxillama.errors import (
    ChatTemplateError,
    ConfigError,
    EngineClosed,
    GenerationCancelled,
    GenerationTimeout,
    GGUFError,
    GrammarError,
    KvCacheFullError,
    LoadError,
    ModelFileError,
    ModelFingerprintMismatch,
    OxiLlamaError,
    PositionBeyondEnd,
    PromptError,
    QueueFull,
    ReceiptError,
    RequestFailed,
    RewindError,
    RewindNotSupported,
    SamplingError,
    SnapshotIncompatible,
    SpecSnapshotIncompatible,
    StageFailed,
    TensorNotFound,
    TokenizerError,
)

if TYPE_CHECKING:
    from oxillama.adapters.lora import LoadedLora
    from oxillama.adapters.stack import LoraStack
    from oxillama.beams.search import BeamForwardPass, BeamHypothesis, BeamSearchConfig, beam_generate
    from oxillama.cache.kv import KvCache, PagedKvCache
    from oxillama.cache.kv_pool import KvCachePool
    from oxillama.cache.prefix import PrefixKvCache
    from oxillama.cache.recurrent_states import RecurrentStatePool
    from oxillama.compat.beams import EngineBeamAdapter
    from oxillama.compat.speculation import (
        Rewindable,
        SpeculativeConfig,
        SpeculativeDeltaSync,
        SpeculativeEngine,
    )
    from oxillama.embeddings.pooling import PoolingMode, pool_hidden_states
    from oxillama.engine.async_engine import AsyncEngine
    from oxillama.engine.batch import ScheduledBatch
    from oxillama.engine.engine import InferenceEngine
    from oxillama.engine.generation import Completion, Generation, Timings, Usage
    from oxillama.engine.scheduler import Scheduler
    from oxillama.engine.sequence import SeqState, Sequence
    from oxillama.grammar import Grammar, GrammarState
    from oxillama.models.flash_attention import batched_flash_attention, flash_attention_forward
    from oxillama.observability.metrics import EngineMetrics, metrics_text
    from oxillama.observability.metrics_snapshot import MetricsSnapshot
    from oxillama.offload.pager import LayerPager
    from oxillama.offload.pressure import MemoryPressureProbe
    from oxillama.packing.files import pack_model
    from oxillama.quantize.calibration import collect_imatrix
    from oxillama.quantize.imatrix import ImportanceMatrix
    from oxillama.quantize.model import Quantization, quantize_model
    from oxillama.sampling.batch import sample, sample_batch
    from oxillama.sampling.chain import SamplerChain
    from oxillama.sampling.logprobs import SampledToken, TokenLogprobs, token_logprobs
    from oxillama.sampling.protocols import SamplerStage, TokenConstraint
    from oxillama.sampling.sampler import Sampler
    from oxillama.sessions.receipt import Receipt
    from oxillama.sessions.session import Session
    from oxillama.sessions.snapshot import EngineSnapshot
    from oxillama.sessions.speculative import SpeculativeEngineSnapshot
    from oxillama.sessions.verification import Verification
    from oxillama.speculation.decoder import AsyncSpecConfig, CancellationToken, SpecStats, SpeculativeDecoder
    from oxillama.speculation.state import SpeculationStats
    from oxillama.tokenizer.bridge import TokenizerBridge

__all__ = [
    "MAX_DECODE_WAIT_MS",
    "PREFILL_CHUNK",
    "AsyncEngine",
    "AsyncSpecConfig",
    "BeamForwardPass",
    "BeamHypothesis",
    "BeamSearchConfig",
    "CancellationToken",
    "ChatTemplateError",
    "Completion",
    "ConfigError",
    "EngineBeamAdapter",
    "EngineClosed",
    "EngineConfig",
    "EngineMetrics",
    "EngineSnapshot",
    "GGUFError",
    "Generation",
    "GenerationCancelled",
    "GenerationOptions",
    "GenerationTimeout",
    "Grammar",
    "GrammarError",
    "GrammarState",
    "ImportanceMatrix",
    "InferenceEngine",
    "KvCache",
    "KvCacheFullError",
    "KvCachePool",
    "LayerPager",
    "LoadError",
    "LoadedLora",
    "LoraStack",
    "MemoryPressureProbe",
    "MetricsSnapshot",
    "ModelFileError",
    "ModelFingerprintMismatch",
    "OffloadPolicy",
    "OxiLlamaError",
    "PagedKvCache",
    "PoolingMode",
    "PositionBeyondEnd",
    "PrefixKvCache",
    "PromptError",
    "Quantization",
    "QueueFull",
    "Receipt",
    "ReceiptError",
    "RecurrentStatePool",
    "RequestFailed",
    "RewindError",
    "RewindNotSupported",
    "Rewindable",
    "SampledToken",
    "Sampler",
    "SamplerChain",
    "SamplerConfig",
    "SamplerStage",
    "SamplingError",
    "ScheduledBatch",
    "Scheduler",
    "SchedulerConfig",
    "SeqState",
    "Sequence",
    "Session",
    "SnapshotIncompatible",
    "SpecSnapshotIncompatible",
    "SpecStats",
    "SpeculationStats",
    "SpeculativeConfig",
    "SpeculativeDecoder",
    "SpeculativeDeltaSync",
    "SpeculativeEngine",
    "SpeculativeEngineSnapshot",
    "StageFailed",
    "TensorNotFound",
    "Timings",
    "TokenConstraint",
    "TokenLogprobs",
    "TokenizerBridge",
    "TokenizerError",
    "Usage",
    "Verification",
    "__version__",
    "batched_flash_attention",
    "beam_generate",
    "collect_imatrix",
    "flash_attention_forward",
    "metrics_text",
    "pack_model",
    "pool_hidden_states",
    "quantize_model",
    "sample",
    "sample_batch",
    "token_logprobs",
]

# What needs NumPy and the kernels is imported when it is first asked for, so that `oxillama --help` is quick.
_LATER = {
    "AsyncEngine": "oxillama.engine.async_engine",
    **dict.fromkeys(
        ("AsyncSpecConfig", "CancellationToken", "SpecStats", "SpeculativeDecoder"),
        "oxillama.speculation.decoder",
    ),
    **dict.fromkeys(
        ("Rewindable", "SpeculativeConfig", "SpeculativeDeltaSync", "SpeculativeEngine"),
        "oxillama.compat.speculation",
    ),
    "EngineBeamAdapter": "oxillama.compat.beams",
    "BeamForwardPass": "oxillama.beams.search",
    "beam_generate": "oxillama.beams.search",
    "BeamHypothesis": "oxillama.beams.search",
    "BeamSearchConfig": "oxillama.beams.search",
    "EngineMetrics": "oxillama.observability.metrics",
    "EngineSnapshot": "oxillama.sessions.snapshot",
    "SpeculativeEngineSnapshot": "oxillama.sessions.speculative",
    "Completion": "oxillama.engine.generation",
    "Generation": "oxillama.engine.generation",
    "Session": "oxillama.sessions.session",
    "SpeculationStats": "oxillama.speculation.state",
    "Timings": "oxillama.engine.generation",
    "Usage": "oxillama.engine.generation",
    "Grammar": "oxillama.grammar",
    "GrammarState": "oxillama.grammar",
    "ImportanceMatrix": "oxillama.quantize.imatrix",
    "InferenceEngine": "oxillama.engine.engine",
    "KvCache": "oxillama.cache.kv",
    "KvCachePool": "oxillama.cache.kv_pool",
    "LoadedLora": "oxillama.adapters.lora",
    "LoraStack": "oxillama.adapters.stack",
    "LayerPager": "oxillama.offload.pager",
    "MemoryPressureProbe": "oxillama.offload.pressure",
    "MetricsSnapshot": "oxillama.observability.metrics_snapshot",
    "PagedKvCache": "oxillama.cache.kv",
    "Receipt": "oxillama.sessions.receipt",
    "Verification": "oxillama.sessions.verification",
    "PoolingMode": "oxillama.embeddings.pooling",
    "PrefixKvCache": "oxillama.cache.prefix",
    "Quantization": "oxillama.quantize.model",
    "SampledToken": "oxillama.sampling.logprobs",
    "Sampler": "oxillama.sampling.sampler",
    "SamplerChain": "oxillama.sampling.chain",
    "SamplerStage": "oxillama.sampling.protocols",
    "ScheduledBatch": "oxillama.engine.batch",
    "Scheduler": "oxillama.engine.scheduler",
    "SeqState": "oxillama.engine.sequence",
    "Sequence": "oxillama.engine.sequence",
    "RecurrentStatePool": "oxillama.cache.recurrent_states",
    "TokenConstraint": "oxillama.sampling.protocols",
    "TokenLogprobs": "oxillama.sampling.logprobs",
    "TokenizerBridge": "oxillama.tokenizer.bridge",
    "batched_flash_attention": "oxillama.models.flash_attention",
    "collect_imatrix": "oxillama.quantize.calibration",
    "flash_attention_forward": "oxillama.models.flash_attention",
    "pack_model": "oxillama.packing.files",
    "pool_hidden_states": "oxillama.embeddings.pooling",
    "metrics_text": "oxillama.observability.metrics",
    "quantize_model": "oxillama.quantize.model",
    "sample": "oxillama.sampling.batch",
    "sample_batch": "oxillama.sampling.batch",
    "token_logprobs": "oxillama.sampling.logprobs",
}


logging.getLogger("oxillama").addHandler(logging.NullHandler())

_RENAMED = {"Busy": "QueueFull", "SsmStatePool": "RecurrentStatePool"}
"""Names that are going: they work for one release more."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        warnings.warn(f"oxillama.{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[__name__], _RENAMED[name])
    if name not in _LATER:
        raise AttributeError(f"module 'oxillama' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
