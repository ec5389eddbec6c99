"""Probabilities that rows of logits stand for."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import SamplingError
from oxillama.sampling.chain import GOOD, error_of, workspaces


class Distribution:
    """The distribution that one row of logits stands for.

    Parameters
    ----------
    logits : float32 (vocab,)

    Attributes
    ----------
    top : the likeliest token, of equals that with the lowest id.

    Raises
    ------
    SamplingError : a logit is NaN or +inf, or every one is -inf.
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
        # the logarithm of the sum of all exponentials
        self.total: float = float(self.logits[self.top]) - workspace.logprob(self.top)

    def logprob(self, token: int) -> float:
        """Natural logarithm of a token's probability, the same bits on every machine."""
        return float(self.logits[token]) - self.total

    @cached_property
    def logprobs(self) -> np.ndarray:
        """float64 (vocab,): natural logarithms of all probabilities, in double precision."""
        above = self.logits.astype(np.float64) - float(self.logits[self.top])
        found: np.ndarray = above - np.log(np.exp(above).sum())
        return found


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Kullback-Leibler divergence in nats, sum of p ln(p / q). Tokens that p excludes do not count.

    ``p``, ``q`` : float64 (vocab,), natural logarithms of the probabilities."""
    held = p > -np.inf
    return float(np.sum(np.exp(p[held]) * (p[held] - q[held])))
