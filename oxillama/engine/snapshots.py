"""Snapshots of sequences and requests: what is taken of them on the engine thread, and how they go on.

Taking one copies pages between two steps; the rest is done by the caller's thread. What is restored is
checked, and laid out as pages, before anything that lives is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import Adaptation, Applied
from oxillama.atomic_file import replaced_file
from oxillama.cache.positions import from_positions, to_positions
from oxillama.cache.recurrent import CHECKPOINTS, RecurrentCache
from oxillama.config import checks
from oxillama.engine.loading import LoadedModel
from oxillama.engine.plain import Stages, options_of, plain_engine, plain_options
from oxillama.engine.request import Progress, TextRequest
from oxillama.engine.sequence import SeqState, Sequence
from oxillama.errors import ConfigError, ModelFileError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.grammar import GrammarState
from oxillama.session.snapshot import AdapterFacts, EngineSnapshot, ModelFacts, RequestFacts
from oxillama.session.values import refusals

Source = bytes | bytearray | memoryview | str | os.PathLike[str] | EngineSnapshot
"""A snapshot, its bytes, or the path of a file with them."""

Loras = Iterable[str | os.PathLike[str] | LoadedLora] | None
"""Where the adapters of a snapshot are, if they are not where they were."""

DRAFTERS = ("lookup", "auto", "off")
"""Values of ``speculate`` that are no paths."""

LATER = ("priority", "timeout", "window", "speculate")
"""Options of a request that decide no token of it."""


@dataclass(frozen=True)
class Taken:
    """Copies of what a sequence has run: its pages, and the recurrent state after them."""

    tokens: list[int]
    n_cached: int
    pages: np.ndarray
    state: np.ndarray | None

    @classmethod
    def of(cls, sequence: Sequence) -> Taken:
        """For the engine thread. Drafted tokens are left out."""
        tokens, kv = list(sequence.certain), sequence.kv
        n, state = min(sequence.cached_len, len(tokens)), None
        if isinstance(kv, RecurrentCache):
            slot = kv.state_after(n)
            state = None if slot is None else kv.states.slot(slot).copy()
            n = 0 if state is None else n
        pages = kv.pages[: kv.pool.pages_for(n)]
        copies = np.array([kv.pool.page(page) for page in pages], np.uint8)
        return cls(tokens, n, copies.reshape(-1, kv.pool.page_bytes), state)


# --- taking ---------------------------------------------------------------------------------------------


def model_facts(model: LoadedModel) -> ModelFacts:
    """What a snapshot says of its model."""
    spec, metadata, layout = model.spec, model.file.metadata, model.pool.layout
    heads = [spec.layers[i].n_kv_heads for i in spec.attending]
    return ModelFacts(
        architecture=spec.family.name,
        name=str(metadata.get("general.name") or ""),
        path=os.path.abspath(model.file.paths[0]) if model.file.paths else "",
        fingerprint=model.fingerprint,
        tokenizer=model.tokenizer_digest,
        n_vocab=spec.n_vocab,
        kv_type=model.config.kv_type,
        kv_heads=(1,) * spec.n_layers if spec.latent is not None else tuple(heads),
        key_dim=layout.key_dim,
        value_dim=layout.value_dim,
        state_floats=model.runner.model.state_floats,
    )


def snapshot_of(
    model: LoadedModel,
    taken: Taken,
    kind: str,
    adapters: Adaptation | None,
    notes: Mapping[str, Any] | None = None,
    request: RequestFacts | None = None,
) -> EngineSnapshot:
    """A snapshot of what was taken."""
    model.metrics.snapshot_taken()
    facts, layout, page_size = model_facts(model), model.pool.layout, model.config.page_size
    kv = np.empty(0, np.uint8)
    if facts.kv_heads:
        kv = to_positions(layout, facts.kv_heads, page_size, taken.pages, taken.n_cached)
    applied = () if adapters is None else adapters.applied
    return EngineSnapshot(
        kind=kind,
        model=facts,
        engine=_with_whole_paths(plain_engine(model.config)),
        tokens=np.array(taken.tokens, np.int32),
        n_cached=taken.n_cached,
        kv=kv,
        state=taken.state,
        adapters=tuple(_adapter_facts(item.lora, item.scale, item.start) for item in applied),
        engine_adapters=tuple(_adapter_facts(lora, scale, 0) for lora, scale in model.adapters.stack),
        request=request,
        notes=dict(notes or {}),
    )


def snapshot_of_request(
    model: LoadedModel, request: TextRequest, notes: Mapping[str, Any] | None = None
) -> EngineSnapshot:
    """A snapshot of a request that goes on. Raises ConfigError if it has ended."""
    taken, progress, sampler, facts = model.call(lambda: _taken_of_request(model, request))
    before = sampler["before"]
    asked = request.n_top_logprobs is not None
    n = len(taken.tokens) - progress.n_prompt
    kept = np.array(progress.logits, np.float32).reshape(n, -1 if n else 0)
    held = {name: value for name, value in vars(progress).items() if name not in ("logprobs", "logits")}
    return snapshot_of(
        model,
        taken,
        "generation",
        request.sequence.adapters,
        notes,
        RequestFacts(
            **held,
            **facts,
            options=_with_whole_paths(plain_options(request.options)),
            seed=sampler["seed"],
            random=sampler["random"],
            mu=float(sampler["mu"]),
            before=(
                np.array([random for random, _ in before], np.uint64),
                np.array([mu for _, mu in before], np.float64),
            ),
            logprobs=progress.logprobs if asked else None,
            logits=kept if request.options.keep_logits else None,
        ),
    )


def _taken_of_request(
    model: LoadedModel, request: TextRequest
) -> tuple[Taken, Progress, dict[str, Any], dict[str, Any]]:
    """On the engine thread: all that the next step would change."""
    if request.finish_reason is not None:
        raise ConfigError(f"generation: expected one that goes on, got one with {request.finish_reason!r}")
    if request.recorder is not None:
        raise ConfigError("receipt: a text with a receipt cannot go on from a snapshot")
    model.scheduler.recover()
    drafts, left = None, None
    if request.speculation is not None:
        random, stats = request.speculation.random, request.speculation.stats
        drafts = {"random": None if random is None else random.state, **vars(stats)}
    if request.timeout is not None:
        left = request.deadline - model.scheduler.clock()
    constraint = request.sampler.constraint
    digest = constraint.grammar.digest.hex() if isinstance(constraint, GrammarState) else ""
    facts = {"seconds_left": left, "grammar": digest, "speculation": drafts}
    return Taken.of(request.sequence), request.progress(), request.sampler.state(), facts


def write(snapshot: EngineSnapshot, path: str | os.PathLike[str], compress: bool = False) -> None:
    """Writes a snapshot's file, which others see whole or not at all. Raises ModelFileError."""
    with replaced_file(Path(path)) as file:
        for piece in snapshot.pieces(compress):
            file.write(piece)


# --- going on -------------------------------------------------------------------------------------------


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
    try:
        with open(source, "rb") as file:
            return EngineSnapshot.deserialize(file.read())
    except OSError as error:
        raise ModelFileError(f"{source}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, SnapshotIncompatible):
            raise
        raise ModelFileError(f"path: expected no NUL and no lone surrogate, got {source!r}") from error


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
    for name in ("tokenizer", "kv_type", "n_vocab", "kv_heads", "key_dim", "value_dim", "state_floats"):
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


def put(sequence: Sequence, snapshot: EngineSnapshot, data: np.ndarray) -> None:
    """Gives an empty sequence what a snapshot has run; for the engine thread. Raises KvCacheFullError."""
    sequence.kv.restore(data, snapshot.n_cached)
    sequence.tokens = snapshot.tokens.tolist()
    sequence.cached_len = sequence.scheduled_len = snapshot.n_cached
    sequence.check()


def page_data(model: LoadedModel, snapshot: EngineSnapshot) -> np.ndarray:
    """What `PagedKvCache.restore` takes, or that of a recurrent cache."""
    pool, n, heads = model.pool, snapshot.n_cached, snapshot.model.kv_heads
    if heads:
        pages = from_positions(pool.layout, heads, pool.page_size, snapshot.kv, n)
    else:
        pages = np.zeros((pool.pages_for(n), pool.page_bytes), np.uint8)
    if not snapshot.model.state_floats:
        return pages
    state = np.empty(0, np.float32) if snapshot.state is None else snapshot.state.astype(np.float32)
    return np.concatenate([pages.reshape(-1), state.view(np.uint8)])


def restored_request(
    model: LoadedModel,
    snapshot: EngineSnapshot,
    stages: Stages | None,
    loras: Loras,
    fields: Mapping[str, Any],
) -> TextRequest:
    """The request of a snapshot, which has no pages yet.

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
    if options.timeout is not None and facts.seconds_left is not None:
        options = replace(options, timeout=max(facts.seconds_left, checks.ABOVE_ZERO))
    options = replace(options, **fields)
    generated = snapshot.tokens[facts.n_prompt :].tolist()
    with refusals():
        _check_request(facts, options.n_top_logprobs, options.keep_logits, snapshot)
    checkpoints = CHECKPOINTS if model.drafter(options.speculate) is not None else 0
    sequence = Sequence(
        model.pool,
        snapshot.tokens[: facts.n_prompt].tolist(),
        checkpoints=checkpoints,
        adapters=adaptation(model, snapshot, loras),
    )
    request = model.text_request(sequence, options, key=None)  # its pages are not for others to share
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
        names = Progress.__dataclass_fields__.keys() - {"logprobs", "logits"}
        logits = [] if facts.logits is None else list(facts.logits)
        request.go_on(
            Progress(
                **{name: getattr(facts, name) for name in names}, logprobs=facts.logprobs or [], logits=logits
            ),
            generated,
        )
    sequence.state = SeqState.PREEMPTED  # it was admitted before, and counted
    if request.speculation is not None and facts.speculation is not None:
        counts = dict(facts.speculation)
        random = counts.pop("random")
        if request.speculation.random is not None and random is not None:
            request.speculation.random.state = random
        request.speculation.stats = type(request.speculation.stats)(**counts)  # type: ignore[arg-type]
    return request


def _check_request(
    facts: RequestFacts, n_top: int | None, keep_logits: bool, snapshot: EngineSnapshot
) -> None:
    """Raises SnapshotIncompatible unless the parts of a request agree with each other."""
    n, most = len(snapshot.tokens), facts.n_prompt + facts.limit
    if snapshot.n_cached >= n:
        raise SnapshotIncompatible(f"n_cached: expected less than {n}, as many tokens there are, got all")
    if n > most:
        raise SnapshotIncompatible(f"tokens: expected at most {most}, got {n}")
    if (n_top is None) != (facts.logprobs is None) or keep_logits != (facts.logits is not None):
        raise SnapshotIncompatible(
            "request: expected the log-probabilities and logits that its options ask for"
        )


def _adapter_facts(lora: LoadedLora, scale: float, start: int) -> AdapterFacts:
    path = "" if lora.path is None else os.path.abspath(lora.path)
    return AdapterFacts(lora.fingerprint.hex(), float(scale), start, lora.name, path, lora.everywhere)


def _with_whole_paths(plain: dict[str, Any]) -> dict[str, Any]:
    """Options whose paths hold from any working directory."""
    names = [name for name in ("tokenizer_path", "speculate") if plain.get(name) not in (None, *DRAFTERS)]
    return plain | {name: os.path.abspath(plain[name]) for name in names}
