"""One request: a sequence that is to be continued, how, and what has come of it so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from typing import Any

import numpy as np

from oxillama.cache.pages import PagePool
from oxillama.cache.radix import Node
from oxillama.engine.sequence import Sequence
from oxillama.engine.stop_text import StopText
from oxillama.errors import ConfigError
from oxillama.sampling.chain import Sampler
from oxillama.sampling.logprobs import SampledToken
from oxillama.tokenizer.bridge import TokenizerBridge


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
    top_logprobs : how many of the likeliest tokens to note beside each token; None for no log-probabilities.

    Attributes
    ----------
    pieces : text that has not been read yet.
    ahead : pieces that may be in store; with as many the request pauses. 0 while nobody asks.
    tokens : ids generated so far, an ending token included.
    logprobs : of each of these, raw and processed; None unless they were asked for.
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
        top_logprobs: int | None = None,
    ) -> None:
        self.sequence = Sequence(pool, prompt, checkpoints=0)  # it never goes back
        self.prompt = list(prompt)
        self.sampler = sampler
        self.key = key
        self.priority = priority
        self.timeout = timeout
        self.pieces: deque[str] = deque()
        self.ahead: float = 0
        self.tokens: list[int] = []
        self.logits: list[np.ndarray] | None = [] if keep_logits else None
        self.logprobs: list[SampledToken] | None = None if top_logprobs is None else []
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
        self._top_logprobs = top_logprobs
        self._left = max_tokens
        self._room = context_size - len(prompt)
        self._ends = tokenizer.eog_ids
        self._n_vocab = tokenizer.n_vocab
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
        token = self._sample(logits)
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

    def _sample(self, logits: np.ndarray) -> int:
        """The next token; the same one whether log-probabilities are noted or not.

        Rows of a table that is padded beyond the vocabulary stand for no token and are never chosen.
        """
        history, logits = self.sequence.tokens, logits[: self._n_vocab]
        if self.logprobs is None or self._top_logprobs is None:
            return self.sampler.sample(logits, history)
        sampled = self.sampler.sample_with_logprobs(logits, history, self._top_logprobs)
        self.logprobs.append(sampled)
        return sampled.token

    def finish(self, reason: str, error: BaseException | None = None) -> None:
        """Ends it: text that was held back is shown. Its pages are for the scheduler to free."""
        if not self._stopped and error is None:
            shown, found = self._stop.push(self._decoder.flush())
            shown += "" if found else self._stop.flush()
            self.pieces += [shown] if shown else []
        self.finish_reason, self.error = reason, error


def wanted_logprobs(logprobs: bool, top_logprobs: int | None, n_vocab: int) -> int | None:
    """How many of the likeliest tokens to note with each; None without log-probabilities."""
    if not isinstance(logprobs, bool):
        raise ConfigError(f"logprobs: needs True or False, got {logprobs!r}")
    if top_logprobs is None:
        return 0 if logprobs else None
    integer = isinstance(top_logprobs, int) and not isinstance(top_logprobs, bool)
    if not integer or not 0 <= top_logprobs <= n_vocab:
        raise ConfigError(f"top_logprobs: needs an integer, 0 to {n_vocab}, got {top_logprobs!r}")
    return top_logprobs


def refuse_logprobs(options: Mapping[str, Any], instead: str) -> None:
    """Raises ConfigError where log-probabilities are asked of what gives only text."""
    if options.get("logprobs") or options.get("top_logprobs") is not None:
        raise ConfigError(f"logprobs: are not part of a text, expected a call of {instead}")
