"""Snapshots of sequences and requests: what is taken of them on the engine thread.

Taking one copies pages between two steps; the rest is done by the caller's thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.adapters.lora import LoadedLora
from oxillama.adapters.stack import Adaptation
from oxillama.atomic_file import replaced_file
from oxillama.cache.kv import PagedKvCache
from oxillama.cache.kv_pool import KvCachePool
from oxillama.cache.pool import CachePool
from oxillama.cache.positions import to_positions
from oxillama.cache.recurrent import RecurrentCache
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import PER_TOKEN, Progress, TextRequest
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError
from oxillama.grammar import GrammarState
from oxillama.models.page_groups import page_groups
from oxillama.sessions.container import Buffer
from oxillama.sessions.plain import plain_engine, plain_options
from oxillama.sessions.recorder import recorder_of
from oxillama.sessions.snapshot import AdapterFacts, EngineSnapshot, ModelFacts, RequestFacts

DRAFTERS = ("lookup", "self", "auto", "off")
"""Values of ``speculate`` that are no paths."""


@dataclass(frozen=True)
class Taken:
    """Copies of what a sequence has run: its pages of each group, and the recurrent state after them."""

    tokens: list[int]
    n_cached: int
    pages: list[np.ndarray]
    state: np.ndarray | None

    @classmethod
    def none(cls, pool: CachePool) -> Taken:
        """Of a sequence without tokens."""
        return cls([], 0, [np.empty((0, group.page_bytes), np.uint8) for group in pool.groups], None)

    @classmethod
    def of(cls, sequence: Sequence) -> Taken:
        """For the engine thread. Drafted tokens are left out."""
        tokens, kv = list(sequence.certain), sequence.kv
        n, state = min(sequence.cached_len, len(tokens)), None
        if isinstance(kv, RecurrentCache):
            slot = kv.state_after(n)
            state = None if slot is None else kv.states.read(slot)
            n = 0 if state is None else n
        return cls(tokens, n, PagedKvCache.snapshot(kv, n), state)


def write(path: str | os.PathLike[str], pieces: Iterable[Buffer]) -> None:
    """Writes a snapshot's file, which others see whole or not at all. Raises ModelFileError."""
    with replaced_file(Path(path)) as file:
        for piece in pieces:
            file.write(piece)


class Snapshotted:
    """A base of what snapshots are taken of."""

    def _taken(self, notes: Mapping[str, Any] | None = None) -> EngineSnapshot:
        """What `snapshot` gives the bytes of; for the classes that have one."""
        raise NotImplementedError

    def snapshot(self, *, compress: bool = False, notes: Mapping[str, Any] | None = None) -> bytes:
        """Where it is now, to go on from there in any process; it goes on itself, too.

        Parameters
        ----------
        compress : store with zlib what gets smaller by it.
        notes : what is to be kept with it, as what JSON can hold.

        Raises
        ------
        ConfigError : an option cannot be saved; a generation has ended, or goes on from a session.
        EngineClosed : the engine was closed.
        """
        return self._taken(notes).serialize(compress=compress)

    def snapshot_to_file(
        self,
        path: str | os.PathLike[str],
        *,
        compress: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """`snapshot`, to a file, which others see whole or not at all. Raises ModelFileError, too."""
        write(path, self._taken(notes).pieces(compress))


def model_facts(model: LoadedModel) -> ModelFacts:
    """What a snapshot says of its model."""
    spec, metadata, states = model.spec, model.file.metadata, model.pool.recurrent_states
    return ModelFacts(
        architecture=spec.family.name,
        name=str(metadata.get("general.name") or ""),
        path=os.path.abspath(model.file.paths[0]) if model.file.paths else "",
        fingerprint=model.fingerprint,
        tokenizer=model.tokenizer_digest,
        n_vocab=spec.n_vocab,
        kv_type=model.config.kv_type,
        page_groups=page_groups(replace(spec, part=None)) if spec.attending else (),
        state_floats=0 if states is None else states.all_floats,
    )


def kv_of(model: LoadedModel, taken: Taken) -> np.ndarray:
    """uint8 (bytes,): the keys and values that the next row sees, by position, group after group."""
    found, n = [np.empty(0, np.uint8)], taken.n_cached
    for group, pages in zip(model.pool.groups, taken.pages) if model.spec.attending else ():
        assert isinstance(group, KvCachePool)
        first = group.reach.first_seen(n)
        found.append(to_positions(group.layout, group.page_size, pages, first, n))
    return np.concatenate(found)


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
    applied = () if adapters is None else adapters.applied
    return EngineSnapshot(
        kind=kind,
        model=model_facts(model),
        engine=_with_whole_paths(plain_engine(model.config)),
        tokens=np.array(taken.tokens, np.int32),
        n_cached=taken.n_cached,
        kv=kv_of(model, taken),
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
    held = {name: value for name, value in vars(progress).items() if name not in PER_TOKEN}
    recorder = recorder_of(request)
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
            receipt_context=None if recorder is None else recorder.context_size,
            links=None if recorder is None else progress.links,
        ),
    )


def _taken_of_request(
    model: LoadedModel, request: TextRequest
) -> tuple[Taken, Progress, dict[str, Any], dict[str, Any]]:
    """On the engine thread: all that the next step would change."""
    if request.finish_reason is not None:
        raise ConfigError(f"generation: expected one that goes on, got one with {request.finish_reason!r}")
    model.scheduler.recover()
    drafts, left = None, None
    speculation = request.parts.get("speculation")
    if speculation is not None:
        random, stats = speculation.random, speculation.stats
        drafts = {"random": None if random is None else random.state, **vars(stats)}
    if request.timeout is not None:
        left = request.deadline - model.scheduler.clock()
    constraint = request.sampler.constraint
    digest = constraint.grammar.digest.hex() if isinstance(constraint, GrammarState) else ""
    facts = {"seconds_left": left, "grammar": digest, "speculation": drafts}
    return Taken.of(request.sequence), request.progress(), request.sampler.state(), facts


def _adapter_facts(lora: LoadedLora, scale: float, start: int) -> AdapterFacts:
    path = "" if lora.path is None else os.path.abspath(lora.path)
    return AdapterFacts(lora.fingerprint.hex(), float(scale), start, lora.name, path, lora.everywhere)


def _with_whole_paths(plain: dict[str, Any]) -> dict[str, Any]:
    """Options whose paths hold from any working directory."""
    names = [name for name in ("tokenizer_path", "speculate") if plain.get(name) not in (None, *DRAFTERS)]
    return plain | {name: os.path.abspath(plain[name]) for name in names}
