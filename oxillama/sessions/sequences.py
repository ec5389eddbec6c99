"""Copies a sequence's KV cache out of its pages, and lays copies out as pages again.

Copies are made on the engine thread between two steps; the rest is done in the caller's thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from oxillama.engine.cache.kv import PagedKvCache
from oxillama.engine.cache.kv_pool import KvCachePool
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.cache.positions import from_positions, to_positions
from oxillama.engine.cache.recurrent import RecurrentCache
from oxillama.engine.loading import LoadedModel
from oxillama.engine.sequence import Sequence
from oxillama.errors import ModelFileError
from oxillama.models.page_groups import page_groups
from oxillama.sessions.snapshot import ModelFacts


@dataclass(frozen=True)
class SequenceCopy:
    """A copy of a sequence's tokens and cache.

    Attributes:
        tokens, n_cached: ids, and how many of them were run.
        pages: uint8 (pages, bytes) for each group.
        state: float32, the recurrent state after these tokens; None without one.
        embeddings: `Sequence.embeddings`, which is immutable.
    """

    tokens: list[int]
    n_cached: int
    pages: list[np.ndarray]
    state: np.ndarray | None
    embeddings: Any = None

    @classmethod
    def empty(cls, pool: CachePool) -> SequenceCopy:
        """The copy of a sequence without tokens."""
        return cls([], 0, [np.empty((0, group.page_bytes), np.uint8) for group in pool.groups], None)

    @classmethod
    def of(cls, sequence: Sequence) -> SequenceCopy:
        """Copy a sequence, on the engine thread. Drafted tokens are left out."""
        tokens, kv = list(sequence.accepted), sequence.kv
        n, state = min(sequence.cached_len, len(tokens)), None
        if isinstance(kv, RecurrentCache):
            slot = kv.state_after(n)
            state = None if slot is None else kv.states.read(slot)
            n = 0 if state is None else n
        return cls(tokens, n, PagedKvCache.snapshot(kv, n), state, sequence.embeddings)

    def kv(self, model: LoadedModel) -> np.ndarray:
        """uint8 (bytes,): the keys and values that the next token attends to, by position, group by group."""
        found, n = [np.empty(0, np.uint8)], self.n_cached
        for group, pages in zip(model.pool.groups, self.pages) if model.spec.attending else ():
            assert isinstance(group, KvCachePool)
            first = group.reach.first_seen(n)
            found.append(to_positions(group.layout, group.page_size, pages, first, n))
        return np.concatenate(found)


def page_data(model: LoadedModel, kv: np.ndarray, state: np.ndarray | None, n: int) -> list[np.ndarray]:
    """The argument of `PagedKvCache.restore`, or of a recurrent cache's `restore`.

    Args:
        kv: uint8, the keys and values that a row after ``n`` tokens attends to, by position, group after
            group.
        state: float32, the recurrent state after ``n`` tokens; None without tokens or recurrent layers.
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


def restore_sequence(
    sequence: Sequence, tokens: list[int], n_cached: int, data: list[np.ndarray], embeddings: Any = None
) -> None:
    """Give a sequence tokens, the pages of the tokens that were run (`page_data`), and input embeddings.

    Runs on the engine thread. Raises KvCacheFullError; the sequence is then unchanged.
    """
    sequence.kv.restore(data, n_cached)
    sequence.tokens = tokens
    sequence.embeddings = embeddings
    sequence.cached_len = sequence.scheduled_len = n_cached
    sequence.check()


def tokenizer_digest(model: LoadedModel) -> str:
    """Hexadecimal BLAKE3 of the file ``tokenizer_path``; "" if the tokenizer is from the model's file.

    Raises ModelFileError if the file cannot be read."""
    path = model.config.tokenizer_path
    if path is None:
        return ""
    try:
        return blake3(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def model_facts(model: LoadedModel) -> ModelFacts:
    """The facts of a model that a snapshot stores."""
    spec, metadata, states = model.spec, model.file.metadata, model.pool.recurrent_states
    return ModelFacts(
        architecture=spec.family.name,
        name=str(metadata.get("general.name") or ""),
        path=os.path.abspath(model.file.paths[0]) if model.file.paths else "",
        fingerprint=model.fingerprint,
        tokenizer=model.feature("tokenizer digest"),
        n_vocab=spec.n_vocab,
        kv_type=model.config.kv_type,
        page_groups=page_groups(replace(spec, part=None)) if spec.attending else (),
        state_floats=0 if states is None else states.all_floats,
    )
