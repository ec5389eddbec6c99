"""How engines, sessions and generations go on from snapshots, in any process.

A snapshot has the model's fingerprint and not the model. What is restored is checked, and laid out as pages,
before anything that runs is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from oxillama.cache.kv import CHECKPOINTS
from oxillama.config import EngineConfig, GenerationOptions, SamplerConfig, checks
from oxillama.engine import features
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.engine.sequence import SeqState, Sequence
from oxillama.errors import ConfigError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.sessions.adapters import Loras, adaptation, loaded
from oxillama.sessions.capture import Notes, snapshot_of_sequence
from oxillama.sessions.container import refusals
from oxillama.sessions.options import Stages, options_of
from oxillama.sessions.sequences import SequenceCopy, model_facts, page_data, restore_sequence
from oxillama.sessions.session import Session
from oxillama.sessions.snapshot import EngineSnapshot, Source, read
from oxillama.weights.packer import Progress

LATER = ("priority", "max_decode_wait_ms", "timeout", "window", "speculate")
"""Options of a request that decide no token of it."""

DECIDES_BITS = ("kv_type", "compute", "quantize")
"""Options of an engine that a snapshot goes on with as they were."""


E = TypeVar("E", bound=InferenceEngine)


# --- engines --------------------------------------------------------------------------------------------


def snapshot_of_engine(model: LoadedModel, session: Session | None, notes: Notes = None) -> EngineSnapshot:
    """A snapshot of an engine's options and of a session of it, for `resume`; None for an empty session.

    Requests and other sessions are not part of it: they have snapshots of their own.
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
    """An engine like the one of a snapshot, and the session of the snapshot, which goes on there.

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
        saved = options_of(EngineConfig, taken.engine, stages)
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
            model.adapters.stack.push(lora, facts.scale)
        return engine, None if taken.kind == "generation" else restore_session(model, taken, loras)
    except BaseException:
        engine.close()
        raise


def check_fits(model: LoadedModel, snapshot: EngineSnapshot) -> None:
    """Raises SnapshotIncompatible unless the model gives the bits that a snapshot goes on with."""
    wanted, found = snapshot.model, model_facts(model)
    if wanted.kv_type != found.kv_type:  # the fingerprint may depend on the type, and would say less
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


def given_of(model: LoadedModel, snapshot: EngineSnapshot) -> Any:
    """The given rows of a snapshot's sequence, None for none. Raises SnapshotIncompatible."""
    if snapshot.media is None:
        return None
    with refusals():
        return snapshot.media.given(model)


# --- sessions and generations ---------------------------------------------------------------------------


def restore(
    model: LoadedModel,
    snapshot: Source,
    fields: Mapping[str, Any],
    loras: Loras = None,
    stages: Stages | None = None,
    callback: Callable[[str], object] | None = None,
) -> Session | Generation:
    """The session or the generation of a snapshot, which goes on; see `InferenceEngine.restore`."""
    taken = read(snapshot)
    if taken.kind == "generation":
        return restore_generation(model, taken, fields, loras, stages, callback)
    for name in fields:
        raise ConfigError(f"{name}: is no option of a session")
    return restore_session(model, taken, loras)


def restore_session(model: LoadedModel, snapshot: Source, loras: Loras = None) -> Session:
    """The session of a snapshot, which goes on; see `InferenceEngine.restore`."""
    taken = read(snapshot)
    if taken.kind == "generation":
        raise SnapshotIncompatible("expected one of a session, got one of a generation")
    check_fits(model, taken)
    adapters = adaptation(model, taken, loras)
    data, given = page_data(model, taken.kv, taken.state, taken.n_cached), given_of(model, taken)
    session = Session(model, model.config.sampler, adapters)
    try:
        session.replace_sequence(taken.tokens.tolist(), taken.n_cached, data, given)
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
    """The generation of a snapshot, which goes on; see `InferenceEngine.restore`.

    ``attach`` gives its request a drafter of the caller's.
    """
    taken = read(snapshot)
    request = _restored_request(model, taken, stages, loras, fields, attach)
    data = page_data(model, taken.kv, taken.state, taken.n_cached)
    generation = Generation(model, request, callback)

    def begin() -> None:
        model.loop.check_room(request.tenant)
        given = request.sequence.given
        restore_sequence(request.sequence, taken.tokens.tolist(), taken.n_cached, data, given)
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
    """The request of a snapshot, which has no pages yet.

    Raises
    ------
    SnapshotIncompatible : the snapshot is of no request, or does not fit; or ``stages`` lacks a stage.
    ConfigError : a field decides tokens.
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
        checks.instance("sampler", options.sampler, SamplerConfig)  # a request has had one
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
        given=given_of(model, snapshot),
    )
    request = model.text_request(sequence, options, key=None)  # its pages are not for others to share
    if attach is not None:
        attach(request)
    with refusals():
        state.restore(request, tokens[n_prompt:])
        for name, part in request.parts.items():
            if name in features.STATES:
                part.restore(snapshot.parts.get(name))
    sequence.state = SeqState.PREEMPTED  # it was admitted before, and counted
    return request
