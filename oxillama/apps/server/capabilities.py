"""What a model can do, for the lists of several interfaces: by its file, and by the chat template in use."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from oxillama.apps.server.models import Hosted
from oxillama.errors import OxiLlamaError
from oxillama.gguf.model_file import ModelFile
from oxillama.text.chat.bridge import templates_of
from oxillama.text.chat.known_templates import with_template
from oxillama.text.toolcalls.formats import WITH_TOOLS, grammar_of_template

VERBS = {"image": "vision", "audio": "audio"}
"""Ollama's words for what a model takes."""

FIM = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")


def templates(hosted: Hosted, metadata: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates that a model uses, by name. The server's options may replace the file's templates.

    Args:
        metadata: of the model's file.

    Raises ConfigError if the template of a model that is not loaded cannot be read.
    """
    if hosted.engine is not None:
        return hosted.engine.tokenizer.templates
    own = hosted.chat_template
    return templates_of(metadata if own is None else with_template(metadata, own))


def capabilities_of(hosted: Hosted, metadata: Mapping[str, Any]) -> list[str]:
    """The capabilities of a model, in Ollama's words. ``metadata`` is of the model's file."""
    architecture = metadata.get("general.architecture")
    if f"{architecture}.decision.type" in metadata:
        return ["decision"]
    if f"{architecture}.pooling_type" in metadata:
        return ["embedding"]
    found = templates(hosted, metadata)
    usual = found.get("default", "")
    is_there = {
        "completion": True,
        "tools": grammar_of_template(found.get(WITH_TOOLS, usual)).has_calls,
        "insert": any(key in metadata for key in FIM),
        "thinking": grammar_of_template(usual).reasoning is not None,
    }
    return [name for name, is_so in is_there.items() if is_so] + [VERBS[each] for each in hosted.takes]


def capabilities(hosted: Hosted) -> list[str]:
    """`capabilities_of` with the metadata of the file; of a model whose file cannot be read "completion"."""
    if hosted.engine is not None:
        return capabilities_of(hosted, hosted.engine.model.file.metadata)
    if hosted.path is not None:
        with suppress(OxiLlamaError, OSError), ModelFile.open(hosted.path) as file:
            return capabilities_of(hosted, file.metadata)
    return ["completion"]
