"""Probability distributions of rows of logits."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from oxillama._kernels import Kernels
from oxillama.engine.sampling.batch import GOOD, error_of, workspaces
from oxillama.errors import SamplingError


class Distribution:
    """The distribution of one row of logits.

    Args:
        logits: float32 (vocab,)

    Attributes:
        top: the token with the highest logit; the lowest id among equals.

    Raises:
        SamplingError: a logit is NaN or +inf, or every one is -inf.
    """

    def __init__(self, logits: np.ndarray, kernels: Kernels) -> None:
        self.logits: np.ndarray = np.ascontiguousarray(logits, np.float32)
        self.top: int = int(self.logits.argmax())
        (workspace,) = workspaces(kernels, len(self.logits))
        status = workspace.start(self.logits)
        if status != GOOD:
            raise error_of(status, len(self.logits))
        if self.logits[self.top] == -np.inf:
            raise SamplingError("logits: every token is masked")
        # log(sum(exp(logits)))
        self.total: float = float(self.logits[self.top]) - workspace.logprob(self.top)

    def logprob(self, token: int) -> float:
        """The natural logarithm of a token's probability; the same bits on every machine."""
        return float(self.logits[token]) - self.total

    @cached_property
    def logprobs(self) -> np.ndarray:
        """float64 (vocab,): natural logarithms of all probabilities, in double precision."""
        above = self.logits.astype(np.float64) - float(self.logits[self.top])
        found: np.ndarray = above - np.log(np.exp(above).sum())
        return found

    def divergence(self, other: Distribution) -> float:
        """KL(this || other) in nats."""
        return divergence(self.logprobs, other.logprobs)


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Kullback-Leibler divergence sum(p * ln(p / q)) in nats; tokens with p = 0 do not count.

    ``p``, ``q`` : float64 (vocab,), natural logarithms of the probabilities."""
    held = p > -np.inf
    return float(np.sum(np.exp(p[held]) * (p[held] - q[held])))
