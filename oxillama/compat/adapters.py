"""The adapters of an engine, by functions. Each takes effect with the requests that follow."""

from __future__ import annotations

import os

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import LoraStack
from oxillama.config import checks
from oxillama.engine.engine import InferenceEngine


def apply_lora(
    engine: InferenceEngine, lora: LoadedLora | str | os.PathLike[str], scale: float = 1.0
) -> None:
    """Pushes an adapter, or the one at a path, on the stack of requests that name none of their own.

    Raises
    ------
    ModelFileError, GGUFError : the file cannot be read, or is no GGUF file.
    LoadError : it holds no adapter, or one that does not fit the model.
    ConfigError : ``scale`` is no finite number, or only some layers of the model are here.
    """
    ((loaded, checked),) = engine.adapters.loaded([(lora, scale)])
    engine.adapters.stack.push(loaded, checked)


def apply_lora_stack(engine: InferenceEngine, stack: LoraStack) -> None:
    """`apply_lora` of each adapter of a stack, with its scale; of all of them, or none if one does not fit.

    Raises
    ------
    LoadError : an adapter does not fit the model.
    ConfigError : ``stack`` is no `LoraStack`.
    """
    items = checks.instance("stack", stack, LoraStack).items
    for lora, scale in engine.adapters.loaded(list(items)) if items else ():
        engine.adapters.stack.push(lora, scale)


def unapply_all_loras(engine: InferenceEngine) -> None:
    """Removes all adapters of the stack. Requests that run keep theirs."""
    engine.adapters.stack.clear()
