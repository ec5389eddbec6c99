"""Engines, sessions and generations go on from snapshots; see `docs/sessions.md`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from oxillama.config import SamplerConfig
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.errors import ConfigError
from oxillama.sessions.plain import Stages, engine_of
from oxillama.sessions.restoring import (
    Loras,
    Source,
    check_fits,
    loaded,
    page_data,
    put,
    read,
    restored_request,
)
from oxillama.sessions.session import Session
from oxillama.sessions.snapshot import EngineSnapshot
from oxillama.sessions.values import refusals
from oxillama.weights.packer import Progress

E = TypeVar("E", bound=InferenceEngine)

DECIDES_BITS = ("kv_type", "compute", "quantize")
"""Options of an engine that a snapshot goes on with as they were."""


def resume(
    kind: type[E],
    snapshot: Source,
    model_path: str | os.PathLike[str] | None = None,
    *,
    loras: Loras = None,
    stages: Stages | None = None,
    progress: Progress | None = None,
    **config: Any,
) -> tuple[E, Session | None]:
    """An engine like the one that a snapshot was taken of, and the session that goes on there.

    Of a generation's snapshot, an engine like the one it ran in, and no session: `InferenceEngine.restore`
    goes on with the generation.

    Parameters
    ----------
    kind : class of the engine.
    snapshot : bytes, or the path of a file.
    model_path : where the model is now; None for where it was.
    loras : the adapters of the snapshot, or where they are now, if they are not where they were.
    stages : the sampler's stages written in Python, by the names that the snapshot has for them
        (``module.qualname``).
    config : fields of `EngineConfig`, in place of those of the snapshot.

    Raises
    ------
    SnapshotIncompatible : it is damaged, or does not fit; ``stages`` lacks a stage, which is named.
    ModelFingerprintMismatch : it is of another model. ConfigError : a field would change the bits.
    ModelFileError, GGUFError, LoadError, TokenizerError : as `InferenceEngine`; or the snapshot's file
        cannot be read.
    """
    taken = read(snapshot)
    with refusals():
        saved = engine_of(taken.engine, stages)
    for name in DECIDES_BITS:
        wanted = getattr(saved, name)
        found = config.get(name, wanted)
        if found != wanted:
            raise ConfigError(f"{name}: expected {wanted}, as the snapshot has, got {found}")
    path = model_path if model_path is not None else taken.model.path
    if not path:
        raise ConfigError("model_path: expected a path, for a snapshot of a model from bytes")
    chosen: dict[str, Any] = {"adapters": (), **config, "model_path": path}
    engine = kind(replace(saved, **chosen), progress=progress)
    try:
        check_fits(engine.model, taken)
        defaults = () if "adapters" in config else taken.engine_adapters
        for lora, facts in zip(loaded(engine.model, defaults, loras), defaults):
            engine.model.adapters.stack.push(lora, facts.scale)
        own = None
        if taken.kind != "generation":
            own = Session.restored(engine.model, engine.config.sampler, taken, loras)
    except BaseException:
        engine.close()
        raise
    return engine, own


def restored(
    model: LoadedModel,
    sampler: SamplerConfig,
    snapshot: Source,
    loras: Loras,
    stages: Stages | None,
    callback: Callable[[str], object] | None,
    fields: Mapping[str, Any],
) -> Session | Generation:
    """See `InferenceEngine.restore`; ``sampler`` is the engine's."""
    taken = read(snapshot)
    if taken.kind == "generation":
        return resumed_generation(model, taken, stages, loras, callback, fields)
    for name in fields:
        raise ConfigError(f"{name}: is no option of a session")
    return Session.restored(model, sampler, taken, loras)


def resumed_generation(
    model: LoadedModel,
    taken: EngineSnapshot,
    stages: Stages | None,
    loras: Loras,
    callback: Callable[[str], object] | None,
    fields: Mapping[str, Any],
    attach: Callable[[TextRequest], object] | None = None,
) -> Generation:
    """The generation of a snapshot, under way; ``attach`` gives it a drafter of the caller's."""
    request = restored_request(model, taken, stages, loras, fields, attach)
    data = page_data(model, taken.kv, taken.state, taken.n_cached)
    found = Generation(model, request, callback)
    found._begin_with(request.had)

    def begin() -> None:
        model.loop.check_room(0, 1)
        put(request.sequence, taken, data)
        try:
            model.loop.add(request)
        except BaseException:
            request.sequence.release()
            raise

    model.call(begin)
    return found


def engine_snapshot(
    engine: InferenceEngine, own: Session | None, notes: Mapping[str, Any] | None = None
) -> EngineSnapshot:
    """The options of an engine, and its own session, for `resume`; None for an empty session.

    Requests and other sessions are not part of it: they have a `snapshot` of their own.
    """
    if own is not None:
        return replace(own._taken(notes), kind="engine")
    with engine.session() as empty:
        return replace(empty._taken(notes), kind="engine")
