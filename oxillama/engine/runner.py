"""Runs batches: from sequences to the flat batch, through the model, to logits."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Listed

import numpy as np

from oxillama.batch import Batch
from oxillama.cache.pages import PagePool
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.models import Decoder


class Runner:
    """The model, its buffers and its threads. One forward pass at a time, from any thread."""

    def __init__(self, model: Decoder, pool: PagePool, n_threads: int) -> None:
        self.model = model
        self.pool = pool
        self.n_threads = n_threads
        self._work = model.workspace()
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
        spec = self.model.spec
        if not states and (self.model.output is None or not spec.causal):
            raise ConfigError(f"model: {spec.family.name} is an encoder, it has no logits; it can embed")
        with self._lock:
            self._ensure_pages(parts)
            batch = self._batch(parts, all_logits)
            kv = self.model.kernels.attention.PagedBatch(
                self.pool.shape, self.pool.addresses, batch.tables, batch.row_start, batch.starts
            )
            run = self.model.states if states else self.model.forward
            rows = run(batch, kv, self._work, self.n_threads)
            for sequence, n in parts:
                sequence.advance(n)
        return rows

    def _ensure_pages(self, parts: Listed[tuple[Sequence, int]]) -> None:
        """Allocates the pages that the rows need: for all sequences, or for none."""
        try:
            for sequence, n in parts:
                assert 0 < n <= sequence.pending
                sequence.ensure_pages(sequence.cached_len + n)
        except KvCacheFullError:
            for sequence, _ in parts:  # those before it give back what they took
                sequence.truncate(len(sequence.tokens))
            raise

    def _batch(self, parts: Listed[tuple[Sequence, int]], all_logits: bool) -> Batch:
        counts = [n for _, n in parts]
        row_start = np.zeros(len(parts) + 1, np.int32)
        np.cumsum(counts, out=row_start[1:])
        tables = np.zeros((len(parts), max(len(s.pages) for s, _ in parts)), np.int32)
        for i, (sequence, _) in enumerate(parts):
            tables[i, : len(sequence.pages)] = sequence.pages
        spans = [(s, s.cached_len, s.cached_len + n) for s, n in parts]
        return Batch(
            tokens=np.concatenate([np.array(s.tokens[a:b], np.int32) for s, a, b in spans]),
            positions=np.concatenate([np.arange(a, b, dtype=np.int32) for _, a, b in spans]),
            row_start=row_start,
            tables=tables,
            wanted=np.arange(row_start[-1]) if all_logits else row_start[1:].astype(np.int64) - 1,
        )
