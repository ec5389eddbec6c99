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
import warnings
from typing import Any

_NAMES = {
    "oxillama._version": "__version__",
    "oxillama.adapters.lora": "LoadedLora",
    "oxillama.adapters.stack": "LoraStack",
    "oxillama.beams.search": "BeamForwardPass BeamHypothesis BeamSearchConfig beam_generate",
    "oxillama.cache.contiguous": "KvCache",
    "oxillama.cache.kv": "PagedKvCache",
    "oxillama.cache.kv_pool": "KvCachePool",
    "oxillama.cache.prefix": "PrefixKvCache",
    "oxillama.cache.recurrent_states": "RecurrentStatePool",
    "oxillama.compat.beams": "EngineBeamAdapter",
    "oxillama.compat.speculation": "Rewindable SpeculativeConfig SpeculativeDeltaSync SpeculativeEngine",
    "oxillama.config": (
        "MAX_DECODE_WAIT_MS PREFILL_CHUNK EngineConfig GenerationOptions SamplerConfig SchedulerConfig"
    ),
    "oxillama.config.offload": "OffloadPolicy",
    "oxillama.embeddings.pooling": "PoolingMode pool_hidden_states",
    "oxillama.engine.async_engine": "AsyncEngine",
    "oxillama.engine.batch": "ScheduledBatch",
    "oxillama.engine.engine": "InferenceEngine",
    "oxillama.engine.generation": "Completion Generation Timings Usage",
    "oxillama.engine.scheduler": "Scheduler",
    "oxillama.engine.sequence": "SeqState Sequence",
    "oxillama.errors": (
        "ChatTemplateError ConfigError EngineClosed GenerationCancelled GenerationTimeout GGUFError "
        "GrammarError KvCacheFullError LoadError MediaError ModelFileError ModelFingerprintMismatch "
        "OxiLlamaError "
        "PositionBeyondEnd PromptError QueueFull ReceiptError RequestFailed RewindError RewindNotSupported "
        "SamplingError SnapshotIncompatible SpecSnapshotIncompatible StageFailed TensorNotFound "
        "TokenizerError"
    ),
    "oxillama.grammar": "Grammar GrammarState",
    "oxillama.models.flash_attention": "batched_flash_attention flash_attention_forward",
    "oxillama.observability.metrics": "EngineMetrics metrics_text",
    "oxillama.observability.metrics_snapshot": "MetricsSnapshot",
    "oxillama.offload.pager": "LayerPager",
    "oxillama.offload.pressure": "MemoryPressureProbe",
    "oxillama.packing.files": "pack_model",
    "oxillama.quantize.calibration": "collect_imatrix",
    "oxillama.quantize.imatrix": "ImportanceMatrix",
    "oxillama.quantize.model": "Quantization quantize_model",
    "oxillama.sampling.batch": "sample sample_batch",
    "oxillama.sampling.chain": "SamplerChain",
    "oxillama.sampling.logprobs": "SampledToken TokenLogprobs token_logprobs",
    "oxillama.sampling.protocols": "SamplerStage TokenConstraint",
    "oxillama.sampling.sampler": "Sampler",
    "oxillama.sessions.receipt": "Receipt",
    "oxillama.sessions.session": "Session",
    "oxillama.sessions.snapshot": "EngineSnapshot",
    "oxillama.sessions.speculative": "SpeculativeEngineSnapshot",
    "oxillama.sessions.verdict": "Verification",
    "oxillama.sessions.verify_batch": "verify_batch",
    "oxillama.speculation.decoder": "AsyncSpecConfig CancellationToken SpecStats SpeculativeDecoder",
    "oxillama.speculation.state": "SpeculationStats",
    "oxillama.tokenizer.bridge": "TokenizerBridge",
}
"""The public names by module, which is imported when one of them is first used: `import oxillama` is quick.

`python tools/make_stub.py` makes `__init__.pyi` of them, for type checkers.
"""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

_RENAMED = {"Busy": "QueueFull", "SsmStatePool": "RecurrentStatePool"}
"""Names that are going: they work for one release more."""

__all__ = sorted(_MODULES)

logging.getLogger("oxillama").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"oxillama.{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
        return __getattr__(_RENAMED[name])
    if name in ("config", "errors"):
        return importlib.import_module(f"oxillama.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'oxillama' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
