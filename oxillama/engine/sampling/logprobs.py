"""Log-probabilities of tokens, computed only when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.base.config import checks
from oxillama.engine.sampling.batch import (
    GOOD,
    SampledToken as SampledToken,
    TokenLogprobs as TokenLogprobs,
    as_logits,
    error_of,
    workspaces,
)
from oxillama.errors import SamplingError


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

    Args:
        logits: float32 (vocab,)

    Raises:
        SamplingError: a logit is NaN or +inf, every one is -inf, or the token is not in the vocabulary.
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


class Likeliest(Sequence[tuple[int, float]]):
    """(id, logprob) of tokens, in arrays: 12 bytes a token, where a tuple of tuples takes 112.

    Equals a tuple with the same items.
    """

    def __init__(self, ids: np.ndarray, logprobs: np.ndarray) -> None:
        self._ids = np.asarray(ids, np.int32)
        self._logprobs = np.asarray(logprobs, np.float64)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._ids.tolist(), self._logprobs.tolist())

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | Likeliest) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def likeliest(workspace: Any, top: int) -> Sequence[tuple[int, float]]:
    """(id, logprob) of the likeliest candidates; no others are left in the workspace."""
    return Likeliest(*workspace.top(min(top, checks.INT_MAX))) if top > 0 else ()
