"""Takes snapshots of sequences and of running requests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from oxillama.base.atomic_file import exists
from oxillama.engine import features
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.errors import ConfigError
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import Adaptation
from oxillama.sessions.codec import Plain
from oxillama.sessions.options import plain_options
from oxillama.sessions.request_state import RequestState
from oxillama.sessions.sequences import SequenceCopy, model_facts
from oxillama.sessions.snapshot import AdapterFacts, EngineSnapshot

Notes = Mapping[str, Any] | None
"""The caller's own data in a snapshot; values must be JSON-serializable."""

DRAFTERS = ("lookup", "self", "auto", "off")
"""Values of ``speculate`` that are not paths."""


CORPUS = "draft_corpus"


def named_files(plain: Plain) -> Iterator[tuple[str, str]]:
    """The names and the values of options that are paths of files to read; an adapter is no option."""
    words = {"speculate": DRAFTERS, "packed": ("auto", "make", "off")}
    for name in ("tokenizer_path", "mmproj", "speculate", "packed"):
        path = plain.get(name)
        if isinstance(path, str) and path not in words.get(name, ()):
            yield name, path
    template = plain.get("chat_template")
    if isinstance(template, str) and exists(template):  # else the name of a template
        yield "chat_template", template
    texts = plain.get(CORPUS)
    for text in [texts] if isinstance(texts, str) else texts or ():
        if isinstance(text, str):
            yield CORPUS, text


def snapshot_of_sequence(
    model: LoadedModel,
    copy: SequenceCopy,
    kind: str,
    adapters: Adaptation | None,
    notes: Notes = None,
    **request: Any,
) -> EngineSnapshot:
    """A snapshot of a copied sequence; ``request`` holds the request fields of `EngineSnapshot`, if any."""
    model.feature("metrics").snapshot_taken()
    applied = () if adapters is None else adapters.applied
    return EngineSnapshot(
        kind=kind,
        model=model_facts(model),
        engine=_with_whole_paths(plain_options(model.config)),
        tokens=np.array(copy.tokens, np.int32),
        n_cached=copy.n_cached,
        kv=copy.kv(model),
        state=copy.state,
        media=None if copy.embeddings is None else features.load("state of media").of(copy.embeddings),
        adapters=tuple(_adapter_facts(item.lora, item.scale, item.start) for item in applied),
        engine_adapters=tuple(
            _adapter_facts(lora, scale, 0) for lora, scale in model.feature("adapters").stack
        ),
        notes=dict(notes or {}),
        **request,
    )


def snapshot_of_request(model: LoadedModel, request: TextRequest, notes: Notes = None) -> EngineSnapshot:
    """A snapshot of a running request. Raises ConfigError if the request has ended."""

    def copy() -> tuple[SequenceCopy, RequestState, dict[str, Any]]:
        """Copy everything that the next step would change."""
        reason = request.finish_reason
        if reason is not None:
            raise ConfigError(f"generation: expected one that goes on, got one with {reason!r}")
        model.scheduler.recover()
        parts = {name: part.state() for name, part in request.parts.items() if name in features.STATES}
        return SequenceCopy.of(request.sequence), RequestState.of(request, model.scheduler.clock()), parts

    copied, state, parts = model.call(copy)
    options = _with_whole_paths(plain_options(request.options))
    of_request = {"options": options, "request": state, "parts": parts}
    return snapshot_of_sequence(model, copied, "generation", request.sequence.adapters, notes, **of_request)


def _adapter_facts(lora: LoadedLora, scale: float, start: int) -> AdapterFacts:
    path = "" if lora.path is None else os.path.abspath(lora.path)
    return AdapterFacts(lora.fingerprint.hex(), float(scale), start, lora.name, path, lora.everywhere)


def _with_whole_paths(plain: Plain) -> Plain:
    """The options with absolute paths."""
    found: Plain = {name: os.path.abspath(path) for name, path in named_files(plain) if name != CORPUS}
    if plain.get(CORPUS):
        found[CORPUS] = [os.path.abspath(path) for name, path in named_files(plain) if name == CORPUS]
    return plain | found
