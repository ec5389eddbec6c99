"""Computes the logits of given tokens in the engine's batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.engine.handle import Handle
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import Request
from oxillama.engine.sequence import Output, Sequence
from oxillama.errors import EngineClosed
from oxillama.models.adapters.stack import Adaptation

TakeRows = Callable[[int, np.ndarray], object]
"""Called on the engine thread with a position and float32 (rows, vocab), the logits from this position on.
The rows are valid only during the call. After a preemption, rows are passed again."""


class LogitsRequest(Request):
    """A request for a sequence's logits from a position on.

    Args:
        first_wanted: position of the first row for ``take``.
        take: called with the rows of each pass, cut to the vocabulary.
        key: as for `Request`.
    """

    output = Output.ALL_LOGITS

    def __init__(
        self, sequence: Sequence, first_wanted: int, take: TakeRows, n_vocab: int, *, key: bytes | None
    ) -> None:
        super().__init__(sequence, key=key)
        self.first_wanted: int = first_wanted
        self._take = take
        self._n_vocab = n_vocab

    def take_rows(self, rows: np.ndarray) -> str | None:
        start = self.sequence.cached_len - len(rows)
        skipped = max(0, self.first_wanted - start)
        self._take(start + skipped, rows[skipped:, : self._n_vocab])
        return None if self.sequence.pending else "done"


class Logits(Handle):
    """A handle of tokens whose logits are to be computed; not submitted yet.

    Args:
        first_wanted, take: as for `LogitsRequest`.
        shares: whether to use the prefix cache for tokens before ``first_wanted``.
    """

    def __init__(
        self,
        model: LoadedModel,
        tokens: list[int],
        first_wanted: int,
        take: TakeRows,
        adapters: Adaptation | None = None,
        *,
        shares: bool = False,
    ) -> None:
        sequence = Sequence(model.pool, tokens, checkpoints=0, adapters=adapters)
        key = model.prefix_key() if shares else None
        request = LogitsRequest(sequence, first_wanted, take, model.tokenizer.n_vocab, key=key)
        super().__init__(model.thread, request, model)

    @property
    def request(self) -> Request:
        """The request to submit."""
        return self._request

    def wait(self) -> None:
        """Wait until ``take`` has received all rows.

        Raises the errors of the model and of ``take``; EngineClosed if the engine was closed first.
        """
        try:
            while self.finish_reason is None:
                self._event()
        except BaseException:
            self.cancel()
            raise
        if self.finish_reason != "done":
            raise EngineClosed("engine: was closed before all tokens were run")
