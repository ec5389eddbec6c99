"""What a sampler and its log-probabilities are made of, as values and arrays that a snapshot holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from oxillama.base.config import checks
from oxillama.engine.sampling.logprobs import SampledToken, TokenLogprobs
from oxillama.engine.sampling.sampler import Sampler, as_tokens
from oxillama.errors import SamplingError

UINT64 = 2**64 - 1


@dataclass(frozen=True, eq=False)
class SamplerState:
    """The state of a sampler but for its options, its grammar and its tokens.

    Attributes:
        seed, random, mu: as in `Sampler.state`.
        randoms, mus: uint64 (n,), float64 (n,): ``random`` and ``mu`` before each of the n generated tokens.
    """

    seed: Annotated[int, (0, UINT64)]
    random: Annotated[int, (1, UINT64)]
    mu: float
    randoms: Annotated[np.ndarray, "<u8", 1]
    mus: Annotated[np.ndarray, "<f8", 1]

    @classmethod
    def of(cls, sampler: Sampler) -> SamplerState:
        """The state of a sampler."""
        state = sampler.state()
        randoms, mus = zip(*state["before"]) if state["before"] else ((), ())
        return cls(
            state["seed"], state["random"], state["mu"], np.array(randoms, np.uint64), np.array(mus, float)
        )

    def restore(self, sampler: Sampler, tokens: list[int]) -> None:
        """Takes a sampler with the same options to this state.

        Args:
            tokens: ids that were generated.

        Raises:
            SamplingError: the state is not of so many tokens, or the grammar refuses them.
        """
        if not len(self.randoms) == len(self.mus) == len(tokens):
            raise SamplingError(f"sampler: expected the states before {len(tokens)} tokens, got others")
        before = list(zip(self.randoms.tolist(), self.mus.tolist()))
        sampler.restore(
            {"seed": self.seed, "random": self.random, "mu": self.mu, "tokens": tokens, "before": before}
        )


@dataclass(frozen=True, eq=False)
class LogprobArrays:
    """The log-probabilities of n tokens, each in the model's distribution and in the one it was drawn from.

    Attributes:
        logprobs: float64 (n, 2).
        n_top: int32 (n, 2): of how many of the likeliest tokens there are log-probabilities.
        top, top_logprobs: int32 (m,), float64 (m,): these, one distribution after the other; m is the sum of
            ``n_top``.
    """

    logprobs: Annotated[np.ndarray, "<f8", 2]
    n_top: Annotated[np.ndarray, "<i4", 2]
    top: Annotated[np.ndarray, "<i4", 1]
    top_logprobs: Annotated[np.ndarray, "<f8", 1]

    @classmethod
    def of(cls, sampled: list[SampledToken]) -> LogprobArrays:
        """The arrays of these tokens."""
        both = [part for token in sampled for part in (token.raw, token.processed)]
        tops = [pair for part in both for pair in part.top]
        return cls(
            np.array([part.logprob for part in both], float).reshape(-1, 2),
            np.array([len(part.top) for part in both], np.int32).reshape(-1, 2),
            np.array([token for token, _ in tops], np.int32),
            np.array([logprob for _, logprob in tops], float),
        )

    def sampled(self, tokens: list[int], n_vocab: int) -> list[SampledToken]:
        """The log-probabilities of these tokens. Raises SamplingError if the arrays are of others."""
        n, counts = len(tokens), self.n_top.ravel().tolist()
        if (
            not self.logprobs.shape == self.n_top.shape == (n, 2)
            or min(counts, default=0) < 0
            or not sum(counts) == len(self.top) == len(self.top_logprobs)
            or not all(0 <= token < n_vocab for token in self.top.tolist())
            or np.isnan(self.logprobs).any()
            or np.isnan(self.top_logprobs).any()
        ):
            raise SamplingError(f"logprobs: expected those of {n} tokens, got others")
        tops = iter(zip(self.top.tolist(), self.top_logprobs.tolist()))
        parts = (
            TokenLogprobs(tokens[i // 2], logprob, tuple(next(tops) for _ in range(count)))
            for i, (logprob, count) in enumerate(zip(self.logprobs.ravel().tolist(), counts))
        )
        return [SampledToken(raw.token, raw, next(parts)) for raw in parts]


def restore_sampler(sampler: Sampler, state: dict[str, Any]) -> None:
    """See `Sampler.restore`."""
    tokens, before = checked_state(state)
    constraint = sampler.constraint
    if constraint is not None:
        constraint = constraint.fork()
        constraint.rollback(sampler.n_generated)
        for token in tokens[len(tokens) - len(before) :].tolist():
            constraint.advance(token)
    sampler.constraint = constraint
    sampler.seed = state["seed"]
    sampler.mu = float(state["mu"])
    sampler.random.state = state["random"]
    sampler._tokens, sampler._n, sampler._before = tokens, len(tokens), before


def checked_state(state: dict[str, Any]) -> tuple[np.ndarray, list[tuple[int, float]]]:
    """The tokens of a `Sampler.state`, and the pairs before the generated ones. Raises SamplingError."""

    def is_random(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**64

    def is_number(value: Any) -> bool:
        is_finite = isinstance(value, (int, float)) and abs(value) < checks.FLOAT_MAX
        return is_finite and not isinstance(value, bool)

    try:
        tokens, before = state["tokens"], [(random, mu) for random, mu in state["before"]]
        good = (
            isinstance(state["seed"], int)
            and is_random(state["random"])
            and is_number(state["mu"])
            and all(map(checks.is_token, tokens))
            and len(before) <= len(tokens)
            and all(is_random(random) and is_number(mu) for random, mu in before)
        )
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise SamplingError(f"state: expected what Sampler.state gave, got {error!r}") from error
    if not good:
        raise SamplingError("state: expected what Sampler.state gave, got other values")
    return as_tokens("state", list(tokens)), before
