"""Logits of given tokens, in the batches of an engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.adapters.stack import Adaptation
from oxillama.engine.handle import Handle
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import Request
from oxillama.engine.runner import Output
from oxillama.engine.sequence import Sequence
from oxillama.errors import EngineClosed

TakeRows = Callable[[int, np.ndarray], object]
"""Called by the engine thread with a position and float32 (rows, vocab), the logits from there on. The rows
are valid during the call. After a preemption, rows come again."""


class LogitsRequest(Request):
    """A sequence whose logits are wanted from a position on.

    Parameters
    ----------
    first_wanted : position of the first row that ``take`` gets.
    take : gets the rows of each pass. Columns of a table that is padded beyond the vocabulary are cut off.
    key : as for `Request`.
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
    """Tokens whose logits are being computed; it is not submitted yet.

    Parameters
    ----------
    first_wanted, take : as for `LogitsRequest`.
    shares : whether tokens before ``first_wanted`` come from the prefix cache, and go there.
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
        """What is to be submitted."""
        return self._request

    def wait(self) -> None:
        """Waits until all rows have been taken.

        Raises what the model or ``take`` raised; EngineClosed if the engine was closed before.
        """
        try:
            while self.finish_reason is None:
                self._event()
        except BaseException:
            self.cancel()
            raise
        if self.finish_reason != "done":
            raise EngineClosed("engine: was closed before all tokens were run")
