"""Snapshots of sequences and of requests that go on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import Adaptation
from oxillama.engine import features
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.errors import ConfigError
from oxillama.sessions.codec import Plain
from oxillama.sessions.options import plain_options
from oxillama.sessions.request_state import RequestState
from oxillama.sessions.sequences import SequenceCopy, model_facts
from oxillama.sessions.snapshot import AdapterFacts, EngineSnapshot

Notes = Mapping[str, Any] | None
"""What a caller keeps with a snapshot, as what JSON can hold."""

DRAFTERS = ("lookup", "self", "auto", "off")
"""Values of ``speculate`` that are no paths."""


def snapshot_of_sequence(
    model: LoadedModel,
    copy: SequenceCopy,
    kind: str,
    adapters: Adaptation | None,
    notes: Notes = None,
    **request: Any,
) -> EngineSnapshot:
    """A snapshot of a copied sequence; ``request`` as the fields of `EngineSnapshot` for one."""
    model.metrics.snapshot_taken()
    applied = () if adapters is None else adapters.applied
    return EngineSnapshot(
        kind=kind,
        model=model_facts(model),
        engine=_with_whole_paths(plain_options(model.config)),
        tokens=np.array(copy.tokens, np.int32),
        n_cached=copy.n_cached,
        kv=copy.kv(model),
        state=copy.state,
        media=None if copy.given is None else features.load("state of media").of(copy.given),
        adapters=tuple(_adapter_facts(item.lora, item.scale, item.start) for item in applied),
        engine_adapters=tuple(_adapter_facts(lora, scale, 0) for lora, scale in model.adapters.stack),
        notes=dict(notes or {}),
        **request,
    )


def snapshot_of_request(model: LoadedModel, request: TextRequest, notes: Notes = None) -> EngineSnapshot:
    """A snapshot of a request that goes on. Raises ConfigError if it has ended."""

    def copy() -> tuple[SequenceCopy, RequestState, dict[str, Any]]:
        """All that the next step would change."""
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
    """Options whose paths hold from any working directory."""
    paths, none = ("tokenizer_path", "mmproj", "speculate"), (None, *DRAFTERS)
    names = [name for name in paths if plain.get(name) not in none]
    names += ["chat_template"] if os.path.isfile(plain.get("chat_template") or "") else []
    return plain | {name: os.path.abspath(plain[name]) for name in names}
