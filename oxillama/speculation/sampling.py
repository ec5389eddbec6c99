"""Sampling of drafts: a sampler draws tokens on trial; each is then accepted or replaced.

Two rules accept a drafted token. *Seeded*: the sampler draws the next token as without a draft, and the
drafted token is accepted if it is the same. *Rejection* (Leviathan et al., 2023; Chen et al., 2023): a token
drafted with probability q is accepted with probability min(1, p / q); otherwise a token is drawn from the
residual max(0, p - q), the highest acceptance rate possible. Both rules keep the model's
distribution; only the seeded rule also gives the same tokens as the same seed without drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oxillama.engine.sampling.batch import GOOD, workspaces
from oxillama.engine.sampling.logprobs import SampledToken, sampled_token
from oxillama.engine.sampling.sampler import Distribution, Sampler, Xorshift64
from oxillama.engine.sequence import Sequence
from oxillama.errors import GrammarError, SamplingError


class DraftSampler:
    """Samples drafted tokens with a request's sampler, which is rewound afterwards.

    Args:
        sampler: the sampler that will choose the final tokens.
        random: random numbers for drafts of the rejection rule, independent of the sampler's own; None for
            the seeded rule.
        pays: called with the draft model's probability of each sampled token; returns whether another token
            pays.

    Attributes:
        distributions: the distribution that each token was drawn from; rejection rule only.
        is_done: whether a further token does not pay. All tokens so far are verified: leaving one out
            depending on its value would change the distribution of the rejection rule.
    """

    def __init__(
        self,
        sampler: Sampler,
        random: Xorshift64 | None = None,
        pays: Callable[[float], bool] | None = None,
    ) -> None:
        self.sampler = sampler
        self.distributions: list[Distribution] = []
        self.is_done: bool = False
        self._random = random
        self._pays = pays
        self._n_generated = sampler.n_generated
        self._is_greedy = sampler.chain.takes_highest and sampler.constraint is None

    def sample(self, row: np.ndarray, history: list[int], chance: float | None = None) -> int | None:
        """Draw a token after ``history`` from a draft model's logits ``row`` (vocab,); None if none is
        possible. ``chance`` is the drafter's estimate of its acceptance, None for the token's probability.

        User-defined sampler stages are not called, because their state cannot be rewound.
        """
        try:
            token = self._sampled(row, history)
        except (SamplingError, GrammarError):  # perhaps the grammar allows no likely token
            return None
        if self._pays is not None and chance is not None:
            self.is_done = not self._pays(chance)
        elif self._pays is not None:
            (workspace,) = workspaces(self.sampler.chain.kernels, len(row))
            workspace.start(row)
            self.is_done = not self._pays(math.exp(workspace.logprob(token)))
        return token

    def _sampled(self, row: np.ndarray, history: list[int]) -> int:
        if self.sampler.chain.has_callables:
            return self._certain(int(row.argmax()))
        if self._random is None:
            return int(row.argmax()) if self._is_greedy else self.sampler.sample(row, history)
        drawn_from = self.sampler.distribution(row, history)
        token = draw(*drawn_from, self._random.uniform())
        self.sampler.accept(token)
        self.distributions.append(drawn_from)
        return token

    def copied(self, tokens: list[int]) -> list[int]:
        """Use tokens that were not sampled, for example by prompt lookup."""
        return [self._certain(token) for token in tokens]

    def _certain(self, token: int) -> int:
        if self._random is not None:
            self.distributions.append((np.array([token], np.int32), np.ones(1)))
        return token

    def rewind(self) -> None:
        """Rewind the sampler to its state before the draft."""
        self.sampler.truncate(self._n_generated)


class RejectionSampler(Sampler):
    """A request's sampler by the rejection rule: verifies the next drafted token, if there is one.

    Args:
        sampler: the request's sampler, which this object replaces.
        sequence: the request's sequence, with the drafted tokens.
        distributions: the distributions that the tokens of the last draft were drawn from.
        random: random numbers for draws from residuals.
    """

    def __init__(
        self, sampler: Sampler, sequence: Sequence, distributions: list[Distribution], random: Xorshift64
    ) -> None:
        self.__dict__.update(vars(sampler))
        self._sequence, self._distributions, self._residuals = sequence, distributions, random

    def row(self, logits: np.ndarray, history: Any) -> tuple[Any, ...] | None:
        return None if self._sequence.n_drafts else super().row(logits, history)

    def sample(self, logits: np.ndarray, history: Any = None) -> int:
        if not self._sequence.n_drafts:
            return super().sample(logits, history)
        token = self._verified(logits, history, None)
        assert isinstance(token, int)
        return token

    def sample_with_logprobs(self, logits: np.ndarray, history: Any = None, top: int = 0) -> SampledToken:
        if not self._sequence.n_drafts:
            return super().sample_with_logprobs(logits, history, top)
        found = self._verified(logits, history, top)
        assert isinstance(found, SampledToken)
        return found

    def _verified(self, logits: np.ndarray, history: Any, top: int | None) -> int | SampledToken:
        """The next drafted token if accepted, else its replacement."""
        n = self._sequence.n_drafts
        drafted, draft, random = self._sequence.tokens[-n], self._distributions[-n], self._residuals
        return sample_drafted(
            self, logits, history, lambda target, u: accept_or_replace(target, draft, drafted, u, random), top
        )


def sample_drafted(
    sampler: Sampler,
    logits: np.ndarray,
    history: Any,
    verdict: Callable[[Distribution, float], tuple[int, float]],
    top: int | None = None,
) -> int | SampledToken:
    """Like `Sampler.sample` or `Sampler.sample_with_logprobs`, but ``verdict`` chooses the token.

    Args:
        verdict: called with the distribution that `Sampler.sample` would draw from and a uniform number;
            returns the token and its probability.
        top: number of top tokens in the log-probabilities; None: return the token only.
    """
    try:
        workspace, u = sampler.apply(logits, history)
        found: Distribution | None = workspace.distribution()
        if found is None:
            raise SamplingError("logits: every token is masked")
        token, probability = verdict(found, u)
    except BaseException:
        sampler.abandon()
        raise
    logprob = math.log(probability)
    sampler.take(GOOD, token, logprob, workspace.vocab)
    if top is None:
        return token
    return sampled_token(token, logprob, workspace, logits, top, sampler.chain.kernels)


def draw(ids: np.ndarray, probabilities: np.ndarray, u: float) -> int:
    """The token at the quantile ``u`` in [0, 1] of the distribution; probabilities need not sum to 1."""
    sums = probabilities.cumsum()
    at = int(np.searchsorted(sums, u * sums[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def accept_or_replace(
    target: Distribution, draft: Distribution, token: int, u: float, random: Xorshift64
) -> tuple[int, float]:
    """The token with probability min(1, p / q), else a token of the residual; and its probability p.

    Args:
        target, draft: the distributions p and q.
        token: the drafted token, drawn from ``draft``.
        u: uniform in [0, 1), not used elsewhere.
        random: draws from the residual.
    """
    ids, p = target
    q = np.zeros(max(int(ids.max()), int(draft[0].max())) + 1)
    q[draft[0]] = draft[1]
    at = np.flatnonzero(ids == token)
    if len(at) and u * q[token] < p[at[0]]:
        return token, float(p[at[0]])
    residual = np.maximum(p - q[ids], 0.0)
    chosen = draw(ids, residual if residual.any() else p, random.uniform())
    return chosen, float(p[np.flatnonzero(ids == chosen)[0]])
