"""Loads drafters from files of their own, whose architecture says which (`models/families/drafters.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from oxillama.base.config import EngineConfig
from oxillama.engine.building import load_weights, new_pool
from oxillama.engine.runner import Runner
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import read_spec
from oxillama.models.drafts.assistant import Assistant
from oxillama.models.drafts.dflash import DFlash
from oxillama.models.drafts.eagle3 import Eagle3
from oxillama.speculation.assistant import AssistantDrafter
from oxillama.speculation.block_drafter import BlockDrafter
from oxillama.speculation.drafters import Drafter
from oxillama.speculation.mtp import NextTokenDrafter
from oxillama.speculation.token_map import same_tokens
from oxillama.text.tokenizer.tokenizer import Tokenizer

log: logging.Logger = logging.getLogger(__name__)


def eagle3_drafter(
    name: str, head: Eagle3, target: Runner, config: EngineConfig, tokenizer: Tokenizer
) -> NextTokenDrafter:
    """A drafter whose rows are one position behind their tokens, so that the first token has none."""
    runner = Runner(head, new_pool(head, config), target.n_threads)
    return NextTokenDrafter(head, runner, tokenizer, name, follows_zeros=False)


KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "eagle3": (Eagle3, eagle3_drafter),
    "gemma4-assistant": (Assistant, AssistantDrafter),
    "dflash": (DFlash, BlockDrafter),
}
"""The model and the drafter of each architecture."""


def load_draft_file(
    name: str, file: ModelFile, target: Runner, tokenizer: Tokenizer, config: EngineConfig
) -> Drafter:
    """The drafter of an open file, for the model of ``target`` with its ``tokenizer``.

    Raises:
        ConfigError: the model is in several processes.
        GGUFError, LoadError, TokenizerError: the file cannot be loaded, or does not fit the model; the
            message names the field.
    """
    model = target.model
    if target.depth > 1 or model.spec.part is not None:
        raise ConfigError(f"speculate: {name} reads the states of all layers, which a pipeline divides")
    spec = read_spec(file, model.spec)
    if "tokenizer.ggml.tokens" in file.metadata and not same_tokens(
        Tokenizer.from_metadata(file.metadata), tokenizer
    ):
        raise LoadError(f"tokenizer.ggml.tokens: expected the model's {tokenizer.n_vocab} tokens, got others")
    weights = load_weights(file, model.kernels, config, None)
    made, drafter = KINDS[spec.family.name]
    head = made(spec, weights, model)
    for linear in head.linears():
        linear.pack()
    unused = [*weights.unused(), *spec.unread]
    if unused:
        log.warning("%s: has no use for %s", name, ", ".join(unused))
    target.tapped = tuple(sorted({*target.tapped, *head.tapped} - {model.spec.n_layers}))
    found: Drafter = drafter(name, head, target, config, tokenizer)
    return found
