"""Runs GGUF language models on CPUs: the same bits every time.

The folders are floors. Imports go down only; each folder's docstring says what it holds:

    apps         programs: command line, server, batch, Ray, quantize, convert, evaluation, doctor, demo
    reference    the contract a second time, in NumPy alone
    compat       the names of other libraries
    speculation  drafts: tokens proposed for the model to verify
    sessions     sequences run by hand, snapshots, receipts
    engine       requests, scheduler, runner, cache, sampling, and features of requests
    models       architectures, layers, weights, adapters, media encoders
    text         tokenizer, grammars, chat templates, tool calls
    gguf         model files and where they come from
    _kernels     the compiled code
    base         options, tables of formats and targets, small tools

To read the code, follow a request: `base.config`, `gguf`, `text.tokenizer`, `engine.engine`, `engine.loop`,
`models.decoder`, `engine.sampling`.
"""

from __future__ import annotations

import sys

if sys.argv[1:2] == ["serve"] and sys.argv[0].rpartition("/")[2] in ("-m", "oxillama"):
    from oxillama.base.early_signals import hold

    hold()  # before the other imports, during which a signal would end the process with a traceback

import importlib
import logging
from types import SimpleNamespace
from typing import Any

import lazy_loader

_getattr, _dir, __all__ = lazy_loader.attach_stub(__name__, __file__)

_FOLDERS = {"config": "oxillama.base.config", "demo": "oxillama.apps.demo"}
"""Modules of lower folders that users name as `oxillama.config` and `oxillama.demo`."""

logging.getLogger("oxillama").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(_FOLDERS[name])
    if name in ("Busy", "SsmStatePool"):
        name = importlib.import_module("oxillama.base.moved").new_name(name)
    return _getattr(name)


def _find_moved(name: str, path: Any = None, target: Any = None) -> Any:
    """The spec of a module under its earlier name, which no other finder finds."""
    if name.startswith("oxillama.") and not name.startswith(("oxillama.base.", "oxillama._kernels.")):
        return importlib.import_module("oxillama.base.moved").MovedModules.find_spec(name)
    return None


sys.meta_path.append(SimpleNamespace(find_spec=_find_moved))  # type: ignore[arg-type]


_FIRST = """
    AnswerCut AsyncEngine Completion ConfigError Decision EngineConfig EngineSnapshot Generation
    GenerationOptions Grammar InferenceEngine LoadedLora OxiLlamaError Receipt SampledToken SamplerConfig
    SchedulerConfig Session SpeculationStats Timings TokenizerBridge Usage Verification config demo errors
    pack_model quantize_model
"""
"""What a completion of ``oxillama.`` offers; all names of `__all__` can be imported."""


def __dir__() -> list[str]:
    return sorted([*_FIRST.split(), *(name for name in globals() if name.startswith("__"))])
