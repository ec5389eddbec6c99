"""How engines, sessions and generations go on from snapshots, in any process.

A snapshot has the model's fingerprint and not the model. What is restored is checked, and laid out as pages,
before anything that runs is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import Adaptation, Applied
from oxillama.cache.recurrent import CHECKPOINTS
from oxillama.config import EngineConfig, GenerationOptions, SamplerConfig, checks
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.engine.sequence import SeqState, Sequence
from oxillama.errors import ConfigError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.sessions.capture import Notes, snapshot_of_sequence
from oxillama.sessions.container import read_bytes, refusals
from oxillama.sessions.options import Stages, options_of
from oxillama.sessions.sequences import SequenceCopy, model_facts, page_data, restore_sequence
from oxillama.sessions.session import Session
from oxillama.sessions.snapshot import AdapterFacts, EngineSnapshot
from oxillama.speculation.state import Speculation

Source = bytes | bytearray | memoryview | str | os.PathLike[str] | EngineSnapshot
"""A snapshot, its bytes, or the path of a file with them."""

Loras = Iterable[str | os.PathLike[str] | LoadedLora] | None
"""Where the adapters of a snapshot are, if they are not where they were."""

LATER = ("priority", "timeout", "window", "speculate")
"""Options of a request that decide no token of it."""

DECIDES_BITS = ("kv_type", "compute", "quantize")
"""Options of an engine that a snapshot goes on with as they were."""


class Engine(Protocol):
    """What `resume` makes."""

    @property
    def model(self) -> LoadedModel: ...
    def close(self) -> None: ...


E = TypeVar("E", bound=Engine)


def read(source: Source) -> EngineSnapshot:
    """A snapshot, checked against itself.

    Raises
    ------
    ModelFileError : its file cannot be read.
    SnapshotIncompatible : it is damaged, or is none.
    """
    if isinstance(source, EngineSnapshot):
        return source
    if isinstance(source, (bytes, bytearray, memoryview)):
        return EngineSnapshot.deserialize(source)
    if not isinstance(source, (str, os.PathLike)):
        raise checks.refuse("snapshot", "bytes, or the path of a file", source)
    return EngineSnapshot.deserialize(read_bytes(source))


# --- engines --------------------------------------------------------------------------------------------


def snapshot_of_engine(model: LoadedModel, session: Session | None, notes: Notes = None) -> EngineSnapshot:
    """A snapshot of an engine's options and of its own session, if it has one, for `resume`.

    Requests and other sessions are not part of it: they have snapshots of their own.
    """
    if session is not None:
        return replace(session.capture(notes), kind="engine")
    empty = model.call(lambda: SequenceCopy.empty(model.pool))
    return snapshot_of_sequence(model, empty, "engine", model.adapters.adaptation(None, None), notes)


def resume(
    make: Callable[[EngineConfig], E],
    snapshot: Source,
    model_path: str | os.PathLike[str] | None,
    fields: Mapping[str, Any],
    loras: Loras = None,
    stages: Stages | None = None,
) -> tuple[E, Session | None]:
    """An engine like the one of a snapshot, and the session that was its own; see `InferenceEngine.resume`.

    Parameters
    ----------
    make : makes an engine.
    fields : of `EngineConfig`, in place of those of the snapshot.
    """
    taken = read(snapshot)
    with refusals():
        saved = options_of(EngineConfig, taken.engine, stages)
    for name in DECIDES_BITS:
        wanted = getattr(saved, name)
        found = fields.get(name, wanted)
        if found != wanted:
            raise ConfigError(f"{name}: expected {wanted}, as the snapshot has, got {found}")
    path = model_path if model_path is not None else taken.model.path
    if not path:
        raise ConfigError("model_path: expected a path, for a snapshot of a model from bytes")
    engine = make(replace(saved, **{"adapters": (), **fields, "model_path": path}))
    try:
        model = engine.model
        check_fits(model, taken)
        defaults = () if "adapters" in fields else taken.engine_adapters
        for lora, facts in zip(loaded(model, defaults, loras), defaults):
            model.adapters.stack.push(lora, facts.scale)
        return engine, None if taken.kind == "generation" else restore_session(model, taken, loras)
    except BaseException:
        engine.close()
        raise


def check_fits(model: LoadedModel, snapshot: EngineSnapshot) -> None:
    """Raises SnapshotIncompatible unless the model gives the bits that a snapshot goes on with."""
    wanted, found = snapshot.model, model_facts(model)
    if wanted.fingerprint != found.fingerprint:
        ours, theirs = dict(found.fingerprint.settings), dict(wanted.fingerprint.settings)
        parts = [] if wanted.fingerprint.content == found.fingerprint.content else ["other content"]
        names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        parts += [f"{name} expected {theirs.get(name)}, got {ours.get(name)}" for name in names]
        raise ModelFingerprintMismatch(
            wanted.fingerprint.display(), found.fingerprint.display(), "; ".join(parts)
        )
    for name in ("tokenizer", "kv_type", "n_vocab", "page_groups", "state_floats"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        if ours != theirs:
            raise SnapshotIncompatible(f"{name}: expected {theirs or 'none'}, got {ours or 'none'}")
    n, most = len(snapshot.tokens), model.context_size
    if n > most:
        raise SnapshotIncompatible(f"context_size: expected at least {n}, for as many tokens, got {most}")


# --- adapters -------------------------------------------------------------------------------------------


def adaptation(model: LoadedModel, snapshot: EngineSnapshot, loras: Loras) -> Adaptation | None:
    """The adapters of a snapshot's sequence. Raises SnapshotIncompatible for one that is not there."""
    found = loaded(model, snapshot.adapters, loras)
    items = [
        Applied(lora, model.adapters.bound(lora), facts.scale, facts.start)
        for lora, facts in zip(found, snapshot.adapters)
    ]
    return Adaptation(items) if items else None


def loaded(model: LoadedModel, wanted: Iterable[AdapterFacts], loras: Loras) -> list[LoadedLora]:
    """The adapters of a snapshot: those that are given, those the model has, or from where they were.

    Raises
    ------
    ModelFileError, GGUFError, LoadError : one cannot be loaded.
    SnapshotIncompatible : one has other content.
    """
    given = [
        lora if isinstance(lora, LoadedLora) else model.adapters.load(os.fspath(lora)) for lora in loras or ()
    ]
    known = {lora.fingerprint.hex(): lora for lora in (*model.adapters.known(), *given)}
    found = []
    for facts in wanted:
        lora = known.get(facts.fingerprint)
        if lora is None:
            if not facts.path:
                raise SnapshotIncompatible(
                    f"adapters: expected {facts.name} ({facts.fingerprint[:16]}), got none"
                )
            lora = known[facts.fingerprint] = LoadedLora.load(facts.path, everywhere=facts.everywhere)
        if lora.fingerprint.hex() != facts.fingerprint:
            raise SnapshotIncompatible(
                f"adapters: expected {facts.path} with the fingerprint {facts.fingerprint[:16]}, "
                f"got {lora.fingerprint.hex()[:16]}"
            )
        found.append(model.adapters.load(lora))
    return found


# --- sessions and generations ---------------------------------------------------------------------------


def restore_session(model: LoadedModel, snapshot: Source, loras: Loras = None) -> Session:
    """A session that goes on where another one was; see `InferenceEngine.restore_session`."""
    taken = read(snapshot)
    if taken.kind == "generation":
        raise SnapshotIncompatible("expected one of a session, got one of a generation")
    check_fits(model, taken)
    adapters = adaptation(model, taken, loras)
    data = page_data(model, taken.kv, taken.state, taken.n_cached)
    session = Session(model, model.config.sampler, adapters)
    try:
        session.replace_sequence(taken.tokens.tolist(), taken.n_cached, data)
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
    speculation: Speculation | None = None,
) -> Generation:
    """A generation that goes on where another one was; see `InferenceEngine.resume_generation`.

    ``speculation`` replaces what its options ask for.
    """
    taken = read(snapshot)
    request = _restored_request(model, taken, stages, loras, fields, speculation)
    data = page_data(model, taken.kv, taken.state, taken.n_cached)
    generation = Generation(model, request, callback)

    def begin() -> None:
        model.loop.check_room(0, 1)
        restore_sequence(request.sequence, taken.tokens.tolist(), taken.n_cached, data)
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
    speculation: Speculation | None,
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
    drafts = speculation is not None or model.drafter(options.speculate) is not None
    adapters = adaptation(model, snapshot, loras)
    sequence = Sequence(
        model.pool, tokens[:n_prompt], checkpoints=CHECKPOINTS if drafts else 0, adapters=adapters
    )
    request = model.text_request(sequence, options, key=None)  # its pages are not for others to share
    if speculation is not None:
        request.speculation = speculation
    with refusals():
        request.restore(state, tokens[n_prompt:])
    sequence.state = SeqState.PREEMPTED  # it was admitted before, and counted
    return request
