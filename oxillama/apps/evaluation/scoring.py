"""Scores continuations: their log-probabilities after their contexts.

Continuations of one context run their common part once; contexts with a common prefix share the
prefix cache. By the contract, neither this nor the batch size changes a bit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np

from oxillama.apps.evaluation.distributions import Distribution
from oxillama.apps.evaluation.logits import Logits
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.shared_prompts import share_prompt
from oxillama.errors import PromptError
from oxillama.sessions.chain import START, LogitsChain

BATCH_SIZE = 64
"""Sequences run at a time: as many as an engine admits."""

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context and of a continuation, both nonempty."""


@dataclass(frozen=True)
class Score:
    """A model's score of a continuation.

    Attributes:
        logprobs: natural logarithm of the probability of each token.
        greedy: for each token, whether it is the top token (the lowest id among equals).
        links: links of the hash chain over each token's logits (`LogitsChain`).
    """

    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    links: tuple[bytes, ...]

    @property
    def logprob(self) -> float:
        """The log-probability of the whole continuation."""
        return math.fsum(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the top token."""
        return all(self.greedy)


class Run:
    """A sequence to run: a context, and continuations that differ only in their last token."""

    def __init__(self, context: tuple[int, ...], middle: tuple[int, ...], hashes: bool) -> None:
        self.tokens: list[int] = [*context, *middle]
        self.first: int = len(context) - 1
        self.middle = middle
        self.last: dict[int, tuple[float, bool]] = {}
        self._hashes = hashes
        self._logprobs = [0.0] * len(middle)
        self._greedy = [False] * len(middle)
        self._links = [b""] * (len(middle) + 1)

    def take(self, position: int, rows: np.ndarray, engine: InferenceEngine) -> None:
        """Record the logits from a position on."""
        for i, row in enumerate(rows, position - self.first):
            found = Distribution(row, engine.model.kernels)
            if self._hashes:
                chain = LogitsChain()
                chain.digest = self._links[i - 1] if i else START
                self._links[i] = chain.add(found.logits)
            if i < len(self.middle):
                token = self.middle[i]
                self._logprobs[i], self._greedy[i] = found.logprob(token), found.top == token
            else:
                self.last = {token: (found.logprob(token), found.top == token) for token in self.last}

    def score(self, token: int) -> Score:
        """The score of the continuation that ends with ``token``."""
        logprob, is_greedy = self.last[token]
        links = tuple(self._links) if self._hashes else ()
        return Score((*self._logprobs, logprob), (*self._greedy, is_greedy), links)


def scores(
    engine: InferenceEngine,
    pairs: Sequence[Pair],
    *,
    batch_size: int = BATCH_SIZE,
    hashes: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Score]:
    """Score pairs of a context and a continuation.

    Args:
        batch_size: sequences run at a time.
        hashes: whether to hash the logits, for receipts.
        progress: called with (sequences done, total sequences).

    Raises:
        PromptError: a context or a continuation is empty, or the pair exceeds the engine's context size.
        ConfigError: the model is an encoder, or a token is not in the vocabulary.
        KvCacheFullError, SamplingError: as `InferenceEngine.stream`.
    """
    engine.model.runner.check_logits()
    runs: dict[tuple[tuple[int, ...], tuple[int, ...]], Run] = {}
    for number, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise PromptError(f"pair {number}: expected a context and a continuation, got none")
        engine.model.prompt_tokens([*context, *continuation], free=-1)  # the last token is not run
        key = (tuple(context), tuple(continuation[:-1]))
        if key not in runs:
            runs[key] = Run(*key, hashes)
        runs[key].last[continuation[-1]] = (0.0, False)
    ordered = [runs[key] for key in sorted(runs)]
    for done in run_all(engine, ordered, batch_size):
        if progress is not None:
            progress(done, len(ordered))
    return [
        runs[tuple(context), tuple(continuation[:-1])].score(continuation[-1])
        for context, continuation in pairs
    ]


def run_all(engine: InferenceEngine, runs: list[Run], batch_size: int) -> Iterator[int]:
    """Run sequences, ``batch_size`` at a time; yields the number done."""
    running: deque[Logits] = deque()
    done = 0
    for group in groups(runs, batch_size):
        while len(running) + len(group) > batch_size:
            running.popleft().wait()
            done += 1
            yield done
        running += submitted(engine, group)
    while running:
        running.popleft().wait()
        done += 1
        yield done


def groups(runs: list[Run], most: int) -> Iterator[list[Run]]:
    """Consecutive runs with the same context, at most ``most`` in a group."""
    for _, same in groupby(runs, context_of):
        while group := list(islice(same, most)):
            yield group


def context_of(run: Run) -> list[int]:
    return run.tokens[: run.first + 1]


def submitted(engine: InferenceEngine, group: list[Run]) -> list[Logits]:
    """Submit sequences with one context; the first one runs the common part."""
    model = engine.model
    model.feature("shared prompts")
    made = []
    for run in group:

        def take(position: int, rows: np.ndarray, run: Run = run) -> None:
            run.take(position, rows, engine)

        adapters = model.adaptation(None, run.tokens)
        made.append(Logits(model, run.tokens, run.first, take, adapters, shares=True))
    requests = [logits.request for logits in made]
    share_prompt(requests, group[0].first)
    model.thread.submit(*requests, limited=False)
    return made
