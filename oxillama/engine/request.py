"""One request: a sequence that is to be continued, how, and what has come of it so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Listed

import numpy as np

from oxillama.cache.pages import PagePool
from oxillama.cache.prefix import Node
from oxillama.engine.sequence import Sequence
from oxillama.engine.stop_text import StopText
from oxillama.sampling.chain import Sampler
from oxillama.tokenizer import TokenizerBridge


class Request:
    """What the scheduler runs. Its owner reads `pieces`; everything else belongs to whoever leads a step.

    Parameters
    ----------
    key : of the prefix cache's tree for it.
    max_tokens : most tokens to generate.
    stop : strings that end the text.
    context_size : most tokens in the sequence.
    priority : higher goes first.
    timeout : seconds from its submission after which it ends, finished or not; None for never.
    keep_logits : whether to keep the logits that each token was chosen from.

    Attributes
    ----------
    pieces : text that has not been read yet.
    ahead : pieces that may be in store; with as many the request pauses. 0 while nobody asks.
    tokens : ids generated so far, an ending token included.
    finish_reason, error : why it ended; None while it goes on.
    listener : called, by the thread that leads the step, when there is something new to read.
    """

    def __init__(
        self,
        pool: PagePool,
        tokenizer: TokenizerBridge,
        sampler: Sampler,
        prompt: Listed[int],
        *,
        key: bytes = b"",
        max_tokens: int,
        stop: Listed[str] = (),
        context_size: int,
        priority: int = 0,
        timeout: float | None = None,
        keep_logits: bool = False,
    ) -> None:
        self.sequence = Sequence(pool, prompt)
        self.prompt = list(prompt)
        self.sampler = sampler
        self.key = key
        self.priority = priority
        self.timeout = timeout
        self.pieces: deque[str] = deque()
        self.ahead: float = 0
        self.tokens: list[int] = []
        self.logits: list[np.ndarray] | None = [] if keep_logits else None
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        self.cancelled = False
        self.listener: Callable[[], object] | None = None
        # for the scheduler and the metrics
        self.arrival = 0
        self.n_cached = 0  # tokens of the prompt that the prefix cache had
        self.submitted_at = self.admitted_at = self.first_token_at = self.last_token_at = math.nan
        self.deadline = math.inf
        self.node: Node | None = None
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self._left = max_tokens
        self._room = context_size - len(prompt)
        self._ends = tokenizer.eog_ids
        self._stop = StopText(stop)
        self._stopped = False  # a stop string was found: what follows is not shown
        self._decoder = tokenizer.stream_decoder(continuing=True)

    @property
    def wanted(self) -> bool:
        """Whether its reader wants more than there is."""
        return len(self.pieces) < self.ahead

    @property
    def limit(self) -> str | None:
        """ "length" if no token more may be generated."""
        return "length" if self._left <= 0 or self._room <= 0 else None

    def take(self, logits: np.ndarray) -> str | None:
        """Samples a token and adds it and its text; the reason if it was the last. May raise whatever
        the sampler raises."""
        token = self.sampler.sample(logits, self.sequence.tokens)
        if self.logits is not None:
            self.logits.append(logits.copy())
        self.sequence.tokens.append(token)
        self.tokens.append(token)
        self._left -= 1
        self._room -= 1
        if token in self._ends:
            return "stop"
        shown, self._stopped = self._stop.push(self._decoder.push(token))
        if shown:
            self.pieces.append(shown)
        return "stop" if self._stopped else self.limit

    def finish(self, reason: str, error: BaseException | None = None) -> None:
        """Ends it: text that was held back is shown. Its pages are for the scheduler to free."""
        if not self._stopped and error is None:
            shown, found = self._stop.push(self._decoder.flush())
            shown += "" if found else self._stop.flush()
            self.pieces += [shown] if shown else []
        self.finish_reason, self.error = reason, error
