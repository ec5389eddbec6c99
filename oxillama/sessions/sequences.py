"""What a sequence has run: copied from its pages, and laid out as pages again.

Copies are made on the engine thread between two steps; the rest is done by the caller's thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from oxillama.cache.kv import PagedKvCache
from oxillama.cache.kv_pool import KvCachePool
from oxillama.cache.pool import CachePool
from oxillama.cache.positions import from_positions, to_positions
from oxillama.cache.recurrent import RecurrentCache
from oxillama.engine.loading import LoadedModel
from oxillama.engine.sequence import Sequence
from oxillama.errors import ModelFileError
from oxillama.models.page_groups import page_groups
from oxillama.sessions.snapshot import ModelFacts


@dataclass(frozen=True)
class SequenceCopy:
    """Copies of what a sequence has run.

    Attributes
    ----------
    tokens, n_cached : ids, and how many of them were run.
    pages : of each group, uint8 (pages, bytes).
    state : float32, the recurrent state after these tokens; None where there is none.
    given : `Sequence.given`, which never changes.
    """

    tokens: list[int]
    n_cached: int
    pages: list[np.ndarray]
    state: np.ndarray | None
    given: Any = None

    @classmethod
    def empty(cls, pool: CachePool) -> SequenceCopy:
        """Of a sequence without tokens."""
        return cls([], 0, [np.empty((0, group.page_bytes), np.uint8) for group in pool.groups], None)

    @classmethod
    def of(cls, sequence: Sequence) -> SequenceCopy:
        """For the engine thread. Drafted tokens are left out."""
        tokens, kv = list(sequence.certain), sequence.kv
        n, state = min(sequence.cached_len, len(tokens)), None
        if isinstance(kv, RecurrentCache):
            slot = kv.state_after(n)
            state = None if slot is None else kv.states.read(slot)
            n = 0 if state is None else n
        return cls(tokens, n, PagedKvCache.snapshot(kv, n), state, sequence.given)

    def kv(self, model: LoadedModel) -> np.ndarray:
        """uint8 (bytes,): the keys and values that the next row sees, by position, group after group."""
        found, n = [np.empty(0, np.uint8)], self.n_cached
        for group, pages in zip(model.pool.groups, self.pages) if model.spec.attending else ():
            assert isinstance(group, KvCachePool)
            first = group.reach.first_seen(n)
            found.append(to_positions(group.layout, group.page_size, pages, first, n))
        return np.concatenate(found)


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


def restore_sequence(
    sequence: Sequence, tokens: list[int], n_cached: int, data: list[np.ndarray], given: Any = None
) -> None:
    """Gives a sequence tokens, the pages of those that were run (`page_data`), and given rows.

    For the engine thread. Raises KvCacheFullError; the sequence is then as it was.
    """
    sequence.kv.restore(data, n_cached)
    sequence.tokens = tokens
    sequence.given = given
    sequence.cached_len = sequence.scheduled_len = n_cached
    sequence.check()


def tokenizer_digest(model: LoadedModel) -> str:
    """Hexadecimal BLAKE3 of ``tokenizer_path``; "" for the tokenizer of the model's file.

    Raises ModelFileError if the file cannot be read."""
    path = model.config.tokenizer_path
    if path is None:
        return ""
    try:
        return blake3(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def model_facts(model: LoadedModel) -> ModelFacts:
    """What a snapshot says of its model."""
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
