"""llama-cpp-python's API on top of an oxillama engine: `Llama` and its helpers.

After `install`, ``import llama_cpp`` returns this package. `docs/from-llama-cpp-python.md` lists what is
supported, ignored, or refused.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from oxillama.base.version import __version__ as __version__
from oxillama.compat.llama_cpp.llama import Llama
from oxillama.compat.llama_cpp.llama_cache import (
    BaseLlamaCache,
    LlamaCache,
    LlamaDiskCache,
    LlamaRAMCache,
    LlamaState,
)
from oxillama.compat.llama_cpp.llama_grammar import LlamaGrammar
from oxillama.compat.llama_cpp.llama_speculative import LlamaDraftModel
from oxillama.compat.llama_cpp.llama_tokenizer import BaseLlamaTokenizer, LlamaHFTokenizer, LlamaTokenizer
from oxillama.compat.llama_cpp.processors import (
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from oxillama.errors import ConfigError

MODULES = (
    *("llama_cpp", "llama", "llama_cache", "llama_chat_format", "llama_grammar", "llama_speculative"),
    *("llama_tokenizer", "llama_types"),
)
"""Modules that llama-cpp-python has, too."""

__all__ = [
    "BaseLlamaCache", "BaseLlamaTokenizer", "Llama", "LlamaCache", "LlamaDiskCache", "LlamaDraftModel",
    "LlamaGrammar", "LlamaHFTokenizer", "LlamaRAMCache", "LlamaState", "LlamaTokenizer", "LogitsProcessor",
    "LogitsProcessorList", "MinTokensLogitsProcessor", "StoppingCriteria", "StoppingCriteriaList", "install",
]  # fmt: skip


def install() -> ModuleType:
    """Make ``import llama_cpp`` and its submodules return this package; returns the package.

    Raises ConfigError if another ``llama_cpp`` was already imported.
    """
    here = sys.modules[__name__]
    found = sys.modules.get("llama_cpp", here)
    if found is not here:
        path = getattr(found, "__file__", None)
        raise ConfigError(f"llama_cpp: expected install() before the import of llama_cpp, got one of {path}")
    sys.modules["llama_cpp"] = here
    for name in MODULES:
        sys.modules[f"llama_cpp.{name}"] = importlib.import_module(f"{__name__}.{name}")
    return here


def __getattr__(name: str) -> Any:
    """Constants of the C interface, and names of types, loaded on first use."""
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    types = importlib.import_module(f"{__name__}.llama_types")
    return getattr(types if name in types.__all__ else importlib.import_module(f"{__name__}.llama_cpp"), name)
