"""How sequences and requests go on from snapshots.

What is restored is checked, and laid out as pages, before anything that lives is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import Adaptation, Applied
from oxillama.cache.kv import CHECKPOINTS
from oxillama.cache.kv_pool import KvCachePool
from oxillama.cache.positions import from_positions
from oxillama.config import GenerationOptions, SamplerConfig, checks
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import PER_TOKEN, Progress, TextRequest
from oxillama.engine.sequence import SeqState, Sequence
from oxillama.errors import ConfigError, ModelFileError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.grammar import GrammarState
from oxillama.sessions.plain import Stages, options_of
from oxillama.sessions.recorder import recorder_of
from oxillama.sessions.snapshot import AdapterFacts, EngineSnapshot, RequestFacts
from oxillama.sessions.taking import model_facts
from oxillama.sessions.values import refusals

Source = bytes | bytearray | memoryview | str | os.PathLike[str] | EngineSnapshot
"""A snapshot, its bytes, or the path of a file with them."""

Loras = Iterable[str | os.PathLike[str] | LoadedLora] | None
"""Where the adapters of a snapshot are, if they are not where they were."""

LATER = ("priority", "timeout", "window", "speculate")
"""Options of a request that decide no token of it."""


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


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a snapshot's file. Raises ModelFileError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelFileError(f"path: expected no NUL and no lone surrogate, got {path!r}") from error


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


def put(sequence: Sequence, snapshot: EngineSnapshot, data: list[np.ndarray]) -> None:
    """Gives an empty sequence what a snapshot has run; for the engine thread. Raises KvCacheFullError."""
    sequence.kv.restore(data, snapshot.n_cached)
    sequence.tokens = snapshot.tokens.tolist()
    sequence.cached_len = sequence.scheduled_len = snapshot.n_cached
    sequence.check()


def page_data(model: LoadedModel, kv: np.ndarray, state: np.ndarray | None, n: int) -> list[np.ndarray]:
    """What `PagedKvCache.restore` takes, or that of a recurrent cache.

    Parameters
    ----------
    kv : uint8, the keys and values that a row behind ``n`` tokens sees, by position, group after group.
    state : float32, the recurrent state after them; None for no tokens, or without recurrent layers.
    """
    pool, sizes, found, at = model.pool, model_facts(model).kv_bytes(n), [], 0
    if not sizes:
        found = [np.zeros((group.pages_for(n), group.page_bytes), np.uint8) for group in pool.groups]
    for group, size in zip(pool.groups, sizes):
        assert isinstance(group, KvCachePool)
        first, data = group.reach.first_seen(n), kv[at : at + size]
        found.append(from_positions(group.layout, group.page_size, data, first, n))
        at += size
    if pool.recurrent_states is None:
        return found
    floats = np.empty(0, np.float32) if state is None else state.astype(np.float32)
    return [*found, floats.view(np.uint8)]


def restored_request(
    model: LoadedModel,
    snapshot: EngineSnapshot,
    stages: Stages | None,
    loras: Loras,
    fields: Mapping[str, Any],
    attach: Callable[[TextRequest], object] | None = None,
) -> TextRequest:
    """The request of a snapshot, which has no pages yet; ``attach`` gives it a drafter of the caller's.

    Raises
    ------
    SnapshotIncompatible : the snapshot is of no request, or does not fit; or ``stages`` lacks a stage.
    ConfigError : a field decides tokens.
    """
    facts = snapshot.request
    if facts is None:
        raise SnapshotIncompatible(f"expected one of a generation, got one of kind {snapshot.kind}")
    for name in fields:
        if name not in LATER:
            raise ConfigError(f"{name}: cannot be changed, the rest of the text depends on it")
    check_fits(model, snapshot)
    with refusals():
        options = options_of(facts.options, stages)
        checks.instance("sampler", options.sampler, SamplerConfig)  # a request has had one
    if options.timeout is not None and facts.seconds_left is not None:
        options = replace(options, timeout=max(facts.seconds_left, checks.ABOVE_ZERO))
    options = replace(options, **fields)
    generated = snapshot.tokens[facts.n_prompt :].tolist()
    with refusals():
        _check_request(facts, options, snapshot)
    speculate = model.config.speculate if options.speculate is None else options.speculate
    drafts = attach is not None or speculate not in (None, "off")
    sequence = Sequence(
        model.pool,
        snapshot.tokens[: facts.n_prompt].tolist(),
        checkpoints=CHECKPOINTS if drafts else 0,
        adapters=adaptation(model, snapshot, loras),
    )
    request = model.text_request(sequence, options, key=None)  # its pages are not for others to share
    if attach is not None:
        attach(request)
    with refusals():
        constraint = request.sampler.constraint
        digest = constraint.grammar.digest.hex() if isinstance(constraint, GrammarState) else ""
        if digest != facts.grammar:
            raise SnapshotIncompatible("grammar: this version of the library compiles it to another one")
        request.sampler.restore(
            {
                "seed": facts.seed,
                "random": facts.random,
                "mu": facts.mu,
                "tokens": generated,
                "before": list(zip(*(values.tolist() for values in facts.before))),
            }
        )
        names = Progress.__dataclass_fields__.keys() - set(PER_TOKEN)
        logits = [] if facts.logits is None else list(facts.logits)
        recorder = recorder_of(request)
        if recorder is not None and facts.receipt_context is not None:
            recorder.go_on(facts.seed, facts.receipt_context, facts.links or [])
        request.go_on(
            Progress(
                **{name: getattr(facts, name) for name in names},
                logprobs=facts.logprobs or [],
                logits=logits,
                links=facts.links or [],
            ),
            generated,
        )
    sequence.state = SeqState.PREEMPTED  # it was admitted before, and counted
    speculation = request.parts.get("speculation")
    if speculation is not None and facts.speculation is not None:
        counts = dict(facts.speculation)
        random = counts.pop("random")
        if speculation.random is not None and random is not None:
            speculation.random.state = random
        speculation.stats = type(speculation.stats)(**counts)
    return request


def _check_request(facts: RequestFacts, options: GenerationOptions, snapshot: EngineSnapshot) -> None:
    """Raises SnapshotIncompatible unless the parts of a request agree with each other."""
    n, most = len(snapshot.tokens), facts.n_prompt + facts.limit
    if snapshot.n_cached >= n:
        raise SnapshotIncompatible(f"n_cached: expected less than {n}, as many tokens there are, got all")
    if n > most:
        raise SnapshotIncompatible(f"tokens: expected at most {most}, got {n}")
    asked = (options.n_top_logprobs is not None, options.keep_logits, options.receipt, options.receipt)
    kept = (facts.logprobs, facts.logits, facts.receipt_context, facts.links)
    if asked != tuple(part is not None for part in kept):
        raise SnapshotIncompatible(
            "request: expected the log-probabilities, logits and receipt that its options ask for"
        )
