"""Log-probabilities of tokens, computed only when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.config import checks
from oxillama.errors import SamplingError
from oxillama.sampling.chain import GOOD, as_logits, error_of, workspaces


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a token, and the likeliest tokens.

    Attributes
    ----------
    token : its id.
    logprob : natural logarithm of its probability; -inf if it was not a candidate.
    top : (id, logprob) of the likeliest tokens, in descending order, the lower id first among equals.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class SampledToken:
    """A sampled token and its log-probabilities.

    Attributes
    ----------
    token : its id.
    raw : in the model's own distribution.
    processed : in the distribution it was drawn from, after every stage.
    """

    token: int
    raw: TokenLogprobs
    processed: TokenLogprobs


def sampled_token(
    token: int, logprob: float, workspace: Any, logits: np.ndarray, top: int, kernels: Kernels
) -> SampledToken:
    """A token that was sampled from ``logits``, in whose ``workspace`` its candidates are left."""
    processed = TokenLogprobs(token, logprob, likeliest(workspace, top))
    return SampledToken(token, token_logprobs(logits, token, top, kernels), processed)


def token_logprobs(
    logits: np.ndarray, token: int, top: int = 0, kernels: Kernels | None = None
) -> TokenLogprobs:
    """Log-probability of a token in the distribution that logits stand for, and the ``top`` likeliest.

    Parameters
    ----------
    logits : float32 (vocab,)

    Raises
    ------
    SamplingError : a logit is NaN or +inf, every one is -inf, or the token is not in the vocabulary.
    """
    logits = as_logits(logits)
    top = checks.integer("top", top, 0)
    if not checks.is_token(token) or token >= len(logits):
        raise SamplingError(f"token: {checks.shown(token)} is not in the vocabulary of {len(logits)}")
    (workspace,) = workspaces(kernels or best(), len(logits))
    status = workspace.start(logits)
    if status != GOOD:
        raise error_of(status, len(logits))
    if logits.max() == -np.inf:
        raise SamplingError("logits: every token is masked")
    return TokenLogprobs(int(token), workspace.logprob(token), likeliest(workspace, top))


def likeliest(workspace: Any, top: int) -> tuple[tuple[int, float], ...]:
    """(id, logprob) of the likeliest candidates; no others are left in the workspace."""
    if top < 1:
        return ()
    ids, logprobs = workspace.top(min(top, checks.INT_MAX))
    return tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))
