"""Runs GGUF language models on CPUs: the same bits every time, at the speed of the memory."""

from oxillama._version import __version__
from oxillama.config import PREFILL_CHUNK, EngineConfig
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.errors import (
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
from oxillama.tokenizer import TokenizerBridge

__all__ = [
    "PREFILL_CHUNK",
    "ChatTemplateError",
    "ConfigError",
    "EngineConfig",
    "GGUFError",
    "Generation",
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
]
