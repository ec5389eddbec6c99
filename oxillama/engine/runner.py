"""Runs batches: from sequences to the flat batch, through the model, to logits."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Listed

import numpy as np

from oxillama.cache.kv import PagedKvCache
from oxillama.cache.pages import PagePool
from oxillama.cache.recurrent import RecurrentCache
from oxillama.cache.recurrent_states import RecurrentStatePool
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.models import Decoder
from oxillama.models.batch import Batch
from oxillama.models.thread_tuner import ThreadTuner


class Runner:
    """The model, its buffers and its threads. One forward pass at a time, from any thread."""

    def __init__(self, model: Decoder, pool: PagePool, n_threads: int) -> None:
        self.model = model
        self.pool = pool
        if model.state_floats:
            pool.recurrent_states = RecurrentStatePool(pool, model.state_floats)
        self.tuner = ThreadTuner(n_threads)
        self._work = model.workspace()
        self._tables = BlockTables()
        self._lock = threading.Lock()

    def forward(
        self, parts: Listed[tuple[Sequence, int]], all_logits: bool = False, states: bool = False
    ) -> np.ndarray:
        """Runs the next tokens of some sequences together.

        Parameters
        ----------
        parts : sequences, each with how many of its pending tokens to run (at least 1).
        all_logits : logits of every row; otherwise of the last row of each sequence.
        states : hidden states after the last norm instead of logits.

        Returns
        -------
        float32 (rows or sequences, vocab), or the width of the hidden states.

        Raises
        ------
        ConfigError : logits of a model whose positions see what comes later.
        KvCacheFullError : there are no pages for them; no sequence has changed.
        """
        schedule(parts)
        try:
            rows = self.run([sequence for sequence, _ in parts], all_logits, states)
        except BaseException:
            for sequence, _ in parts:
                sequence.rollback()
            raise
        for sequence, _ in parts:
            sequence.commit()
        return rows

    def run(
        self, sequences: Listed[Sequence], wanted: bool | Listed[bool], states: bool = False
    ) -> np.ndarray:
        """Runs what is scheduled of some sequences together; it is then for the caller to `commit`.

        Parameters
        ----------
        wanted : logits of every row (True), of the last row of each sequence (False), or of the last row of
            the sequences that are marked.
        states : hidden states in place of logits.

        Returns
        -------
        float32 (wanted, vocab or n_embd).

        Raises
        ------
        ConfigError : logits of a model whose positions see what comes later.
        """
        if not states:
            self.check_logits()
        with self._lock:
            batch = self._batch(sequences, wanted)
            kv = self.model.kernels.attention.PagedBatch(
                self.pool.shape, self.pool.addresses, batch.tables, batch.row_start, batch.starts
            )
            run = self.model.hidden_states if states else self.model.forward
            rows = run(batch, kv, self._work, self.tuner)
            for sequence in sequences:
                if isinstance(sequence.kv, RecurrentCache):
                    sequence.kv.end(sequence.scheduled_len)
            return rows

    def check_logits(self) -> None:
        """Raises ConfigError if the model has none, or its positions see what comes later."""
        spec = self.model.spec
        if self.model.output is None or not spec.causal:
            raise ConfigError(f"model: {spec.family.name} is an encoder, it has no logits; it can embed")

    def _batch(self, sequences: Listed[Sequence], wanted: bool | Listed[bool]) -> Batch:
        row_start = np.zeros(len(sequences) + 1, np.int32)
        np.cumsum([s.scheduled_len - s.cached_len for s in sequences], out=row_start[1:])
        tokens: list[int] = []
        positions: list[int] = []
        for s in sequences:
            tokens += s.tokens[s.cached_len : s.scheduled_len]
            positions += range(s.cached_len, s.scheduled_len)
        last = row_start[1:].astype(np.int64) - 1
        if isinstance(wanted, bool):
            rows = np.arange(row_start[-1], dtype=np.int64) if wanted else last
        else:
            rows = last[np.asarray(wanted, bool)]
        return Batch(
            tokens=np.array(tokens, np.int32),
            positions=np.array(positions, np.int32),
            row_start=row_start,
            tables=self._tables.of([s.kv for s in sequences]),
            wanted=rows,
            recurrent_states=_states(sequences) if self.model.state_floats else None,
        )


def _states(sequences: Listed[Sequence]) -> np.ndarray:
    """int64 (2, sequences): addresses of the states that they begin with, and of those they leave."""
    found = [s.kv.begin(s.cached_len) for s in sequences if isinstance(s.kv, RecurrentCache)]
    addresses: np.ndarray = np.array(found, np.int64).T.copy()
    return addresses


def schedule(parts: Listed[tuple[Sequence, int]]) -> None:
    """Makes place for the rows of all sequences, or of none. Raises KvCacheFullError."""
    done = []
    try:
        for sequence, n in parts:
            sequence.schedule(n)
            done.append(sequence)
    except KvCacheFullError:
        for sequence in done:
            sequence.rollback()
        raise


class BlockTables:
    """The block tables of a batch as one array, of which a row is written only when it changes."""

    def __init__(self) -> None:
        self._array = np.zeros((0, 0), np.int32)
        self._rows: list[tuple[PagedKvCache, int]] = []

    def of(self, caches: Listed[PagedKvCache]) -> np.ndarray:
        """int32 (caches, width), valid until the next call."""
        width = max(len(kv.pages) for kv in caches)
        n_rows, n_columns = self._array.shape
        if len(caches) > n_rows or width > n_columns:
            shape = (max(len(caches), n_rows), max(width + width // 2, n_columns))
            self._array, self._rows = np.zeros(shape, np.int32), []
        del self._rows[len(caches) :]
        for i, kv in enumerate(caches):
            if i < len(self._rows) and self._rows[i][0] is kv and self._rows[i][1] == kv.version:
                continue
            self._array[i, : len(kv.pages)] = kv.pages
            self._rows[i : i + 1] = [(kv, kv.version)]
        return self._array[: len(caches)]
