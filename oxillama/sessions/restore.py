"""Restores engines, sessions and generations from snapshots, in any process.

A snapshot contains the model's fingerprint, not the model. Everything is checked and laid out in pages
before any running state is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from oxillama.base.atomic_file import exists
from oxillama.base.config import EngineConfig, GenerationOptions, SamplerConfig, checks
from oxillama.engine import features
from oxillama.engine.cache.kv import CHECKPOINTS
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.engine.sequence import SeqState, Sequence
from oxillama.errors import ConfigError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.models.weights.packer import Progress
from oxillama.sessions.adapters import Loras, adaptation, loaded
from oxillama.sessions.capture import Notes, named_files, snapshot_of_sequence
from oxillama.sessions.container import refusals
from oxillama.sessions.options import Stages, options_of
from oxillama.sessions.sequences import SequenceCopy, model_facts, page_data, restore_sequence
from oxillama.sessions.session import Session
from oxillama.sessions.snapshot import EngineSnapshot, Source, read

LATER = ("priority", "max_decode_wait_ms", "timeout", "window", "speculate")
"""Options of a request that do not affect its tokens, and may be changed."""

DECIDES_BITS = ("kv_type", "compute", "quantize")
"""Options of an engine that affect the bits, and may not be changed."""


E = TypeVar("E", bound=InferenceEngine)


# --- engines --------------------------------------------------------------------------------------------


def snapshot_of_engine(model: LoadedModel, session: Session | None, notes: Notes = None) -> EngineSnapshot:
    """A snapshot of an engine's options and of one session, for `resume`; None: an empty session.

    Running requests and other sessions are not included; they have snapshots of their own.
    """
    if session is not None:
        return replace(session.capture(notes), kind="engine")
    empty = model.call(lambda: SequenceCopy.empty(model.pool))
    return snapshot_of_sequence(model, empty, "engine", model.adaptation(None, None), notes)


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
    """An engine with a snapshot's options, and the snapshot's session, ready to continue.

    For a generation's snapshot, an engine like the one it ran in, and no session: `InferenceEngine.restore`
    then continues the generation.

    Args:
        kind: class of the engine.
        snapshot: bytes, or the path of a file.
        model_path: where the model is now; None: the path in the snapshot.
        loras: the snapshot's adapters, or their paths, if the files have moved.
        stages: the sampler's Python stages, by their names in the snapshot (``module.qualname``).
        config: fields of `EngineConfig` that replace the snapshot's.

    Raises:
        SnapshotIncompatible: the snapshot is damaged or does not fit; or ``stages`` lacks a stage (named).
        ModelFingerprintMismatch: the model differs.
        ConfigError: a field would change the bits.
        ModelFileError, GGUFError, LoadError, TokenizerError: as `InferenceEngine`; or the snapshot's file
            cannot be read.
    """
    taken = read(snapshot)
    saved = saved_config(taken, stages, replaced=config)
    for name in DECIDES_BITS:
        wanted = getattr(saved, name)
        found = config.get(name, wanted)
        if found != wanted:
            raise ConfigError(f"{name}: expected {wanted}, as the snapshot has, got {found}")
    path = model_path if model_path is not None else taken.model.path
    if not path:
        raise ConfigError("model_path: expected a path, for a snapshot of a model from bytes")
    engine = kind(replace(saved, **{"adapters": (), **config, "model_path": path}), progress=progress)
    try:
        model = engine.model
        check_fits(model, taken)
        defaults = () if "adapters" in config else taken.engine_adapters
        for lora, facts in zip(loaded(model, defaults, loras), defaults):
            model.feature("adapters").stack.push(lora, facts.scale)
        return engine, None if taken.kind == "generation" else restore_session(model, taken, loras)
    except BaseException:
        engine.close()
        raise


def saved_config(
    snapshot: EngineSnapshot, stages: Stages | None = None, replaced: Iterable[str] = ()
) -> EngineConfig:
    """The options of the engine of a snapshot. Files of the fields in ``replaced`` are not looked at.

    Raises SnapshotIncompatible for malformed options, a missing stage, and a path of something else than a
    regular file: reading a pipe or a device may never end.
    """
    with refusals():
        found = options_of(EngineConfig, snapshot.engine, stages)
    for name, path in named_files(snapshot.engine):
        if name not in replaced and exists(path) and not os.path.isfile(path):
            raise SnapshotIncompatible(f"{name}: expected a regular file, got {path}")
    return found


def check_fits(model: LoadedModel, snapshot: EngineSnapshot) -> None:
    """Raise SnapshotIncompatible unless the model computes the same bits as the snapshot's model."""
    wanted, found = snapshot.model, model_facts(model)
    if wanted.kv_type != found.kv_type:  # checked first: the fingerprint's message would be less clear
        raise SnapshotIncompatible(f"kv_type: expected {wanted.kv_type}, got {found.kv_type}")
    if wanted.fingerprint != found.fingerprint:
        ours, theirs = ({"contract": "1", **dict(facts.fingerprint.settings)} for facts in (found, wanted))
        parts = [] if wanted.fingerprint.content == found.fingerprint.content else ["other content"]
        names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        parts += [f"{name} expected {theirs.get(name)}, got {ours.get(name)}" for name in names]
        raise ModelFingerprintMismatch(
            wanted.fingerprint.display(), found.fingerprint.display(), "; ".join(parts)
        )
    for name in ("tokenizer", "n_vocab", "page_groups", "state_floats"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        if ours != theirs:
            raise SnapshotIncompatible(f"{name}: expected {theirs or 'none'}, got {ours or 'none'}")
    n, most = len(snapshot.tokens), model.context_size
    if n > most:
        raise SnapshotIncompatible(f"context_size: expected at least {n}, for as many tokens, got {most}")


def input_embeddings_of(model: LoadedModel, snapshot: EngineSnapshot) -> Any:
    """The input embeddings of a snapshot's sequence, or None. Raises SnapshotIncompatible."""
    if snapshot.media is None:
        return None
    with refusals():
        return snapshot.media.embeddings(model)


# --- sessions and generations ---------------------------------------------------------------------------


def restore(
    model: LoadedModel,
    snapshot: Source,
    fields: Mapping[str, Any],
    loras: Loras = None,
    stages: Stages | None = None,
    callback: Callable[[str], object] | None = None,
) -> Session | Generation:
    """Restore the session or the generation of a snapshot; see `InferenceEngine.restore`."""
    taken = read(snapshot)
    if taken.kind == "generation":
        return restore_generation(model, taken, fields, loras, stages, callback)
    for name in fields:
        raise ConfigError(f"{name}: is no option of a session")
    return restore_session(model, taken, loras)


def restore_session(model: LoadedModel, snapshot: Source, loras: Loras = None) -> Session:
    """Restore the session of a snapshot; see `InferenceEngine.restore`."""
    taken = read(snapshot)
    if taken.kind == "generation":
        raise SnapshotIncompatible("expected one of a session, got one of a generation")
    check_fits(model, taken)
    adapters = adaptation(model, taken, loras)
    data, embeddings = (
        page_data(model, taken.kv, taken.state, taken.n_cached),
        input_embeddings_of(model, taken),
    )
    session = Session(model, model.config.sampler, adapters)
    try:
        session.replace_sequence(taken.tokens.tolist(), taken.n_cached, data, embeddings)
    except BaseException:
        session.close()
        raise
    return session


def restore_generation(
    model: LoadedModel,
    snapshot: Source,
    fields: Mapping[str, Any],
    loras: Loras = None,
    stages: Stages | None = None,
    callback: Callable[[str], object] | None = None,
    attach: Callable[[TextRequest], object] | None = None,
) -> Generation:
    """Restore the generation of a snapshot; see `InferenceEngine.restore`.

    ``attach`` : called with the request, to give it the caller's own drafter.
    """
    taken = read(snapshot)
    request = _restored_request(model, taken, stages, loras, fields, attach)
    data = page_data(model, taken.kv, taken.state, taken.n_cached)
    generation = Generation(model, request, callback)

    def begin() -> None:
        model.loop.check_room(request.tenant)
        embeddings = request.sequence.embeddings
        restore_sequence(request.sequence, taken.tokens.tolist(), taken.n_cached, data, embeddings)
        try:
            model.loop.add(request)
        except BaseException:
            request.sequence.release()
            raise

    model.call(begin)
    return generation


def _restored_request(
    model: LoadedModel,
    snapshot: EngineSnapshot,
    stages: Stages | None,
    loras: Loras,
    fields: Mapping[str, Any],
    attach: Callable[[TextRequest], object] | None,
) -> TextRequest:
    """The request of a snapshot, without pages.

    Raises:
        SnapshotIncompatible: the snapshot has no request or does not fit; or ``stages`` lacks a stage.
        ConfigError: a field would change the tokens.
    """
    state = snapshot.request
    if state is None:
        raise SnapshotIncompatible(f"expected one of a generation, got one of kind {snapshot.kind}")
    for name in fields:
        if name not in LATER:
            raise ConfigError(f"{name}: cannot be changed, the rest of the text depends on it")
    check_fits(model, snapshot)
    tokens, n_prompt = snapshot.tokens.tolist(), state.n_prompt
    with refusals():
        options = options_of(GenerationOptions, snapshot.options, stages)
        checks.instance("sampler", options.sampler, SamplerConfig)  # every request has one
        checks.integer("n_prompt", n_prompt, 1, len(tokens))
    if snapshot.n_cached >= len(tokens):
        raise SnapshotIncompatible(f"n_cached: expected less than the {len(tokens)} tokens, got all")
    if len(tokens) > n_prompt + state.limit:
        raise SnapshotIncompatible(f"tokens: expected at most {n_prompt + state.limit}, got {len(tokens)}")
    if options.timeout is not None and state.seconds_left is not None:
        options = replace(options, timeout=max(state.seconds_left, checks.ABOVE_ZERO))
    options = replace(options, **fields)
    speculate = model.config.speculate if options.speculate is None else options.speculate
    drafts = attach is not None or speculate not in (None, "off")
    adapters = adaptation(model, snapshot, loras)
    sequence = Sequence(
        model.pool,
        tokens[:n_prompt],
        checkpoints=CHECKPOINTS if drafts else 0,
        adapters=adapters,
        embeddings=input_embeddings_of(model, snapshot),
    )
    request = model.text_request(sequence, options, key=None)  # no key: its pages are not shared
    if attach is not None:
        attach(request)
    with refusals():
        state.restore(request, tokens[n_prompt:])
        for name, part in request.parts.items():
            if name in features.STATES:
                part.restore(snapshot.parts.get(name))
    sequence.state = SeqState.PREEMPTED  # the request was admitted and counted before
    return request
