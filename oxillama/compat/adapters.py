"""Functions that change an engine's default adapters. A change applies to requests submitted afterwards."""

from __future__ import annotations

import os

from oxillama.base.config import checks
from oxillama.engine.engine import InferenceEngine
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import LoraStack


def apply_lora(
    engine: InferenceEngine, lora: LoadedLora | str | os.PathLike[str], scale: float = 1.0
) -> None:
    """Push an adapter, given or at a path, on the stack of default adapters.

    Raises:
        ModelFileError, GGUFError: the file cannot be read, or is not a GGUF file.
        LoadError: the file contains no adapter, or the adapter does not fit the model.
        ConfigError: ``scale`` is not finite, or only some layers of the model are loaded.
    """
    ((loaded, checked),) = engine.adapters.loaded([(lora, scale)])
    engine.adapters.stack.push(loaded, checked)


def apply_lora_stack(engine: InferenceEngine, stack: LoraStack) -> None:
    """Push each adapter of a stack with its scale; pushes none if any adapter does not fit.

    Raises:
        LoadError: an adapter does not fit the model.
        ConfigError: ``stack`` is not a `LoraStack`.
    """
    items = checks.instance("stack", stack, LoraStack).items
    for lora, scale in engine.adapters.loaded(list(items)) if items else ():
        engine.adapters.stack.push(lora, scale)


def unapply_all_loras(engine: InferenceEngine) -> None:
    """Remove all default adapters. Running requests keep theirs."""
    engine.adapters.stack.clear()
