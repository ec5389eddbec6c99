"""Runs GGUF language models on CPUs: the same bits every time, at the speed of the memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oxillama._version import __version__
from oxillama.config import PREFILL_CHUNK, EngineConfig
from oxillama.errors import (
    ChatTemplateError,
    ConfigError,
    GGUFError,
    GrammarError,
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
    from oxillama.attention import batched_flash_attention, flash_attention_forward
    from oxillama.engine.engine import InferenceEngine
    from oxillama.engine.generation import Generation
    from oxillama.grammar import Grammar, GrammarState
    from oxillama.tokenizer import TokenizerBridge

__all__ = [
    "PREFILL_CHUNK",
    "ChatTemplateError",
    "ConfigError",
    "EngineConfig",
    "GGUFError",
    "Generation",
    "Grammar",
    "GrammarError",
    "GrammarState",
    "InferenceEngine",
    "KvCacheFullError",
    "LoadError",
    "ModelFileError",
    "OxiLlamaError",
    "PromptError",
    "SamplerConfig",
    "SamplingError",
    "TokenizerBridge",
    "TokenizerError",
    "__version__",
    "batched_flash_attention",
    "flash_attention_forward",
]

# What needs NumPy and the kernels is imported when it is first asked for, so that `oxillama --help` is quick.
_LATER = {
    "Generation": "oxillama.engine.generation",
    "Grammar": "oxillama.grammar",
    "GrammarState": "oxillama.grammar",
    "InferenceEngine": "oxillama.engine.engine",
    "TokenizerBridge": "oxillama.tokenizer",
    "batched_flash_attention": "oxillama.attention",
    "flash_attention_forward": "oxillama.attention",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'oxillama' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
