"""What sampling needs of other parts: stages in Python, grammars, and the samplers of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from oxillama._kernels import Kernels

History = Sequence[int] | np.ndarray
"""The tokens so far, prompt included."""


class SamplerStage(Protocol):
    """A stage of one's own: any callable of this signature, placed in `SamplerConfig.order`."""

    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray, /) -> ArrayLike | None:
        """Other logits for the candidates; -inf drops one.

        Args:
            ids: int32 (n,), the candidates' tokens, in no particular order. Not to be changed.
            logits: float32 (n,), which may be changed in place.
            history: int32 (tokens,), prompt included. Not to be changed.

        Returns:
            array_like (n,), or None if ``logits`` was changed in place
        """


class TokenConstraint(Protocol):
    """The state of a grammar: which tokens may come next."""

    def mask(self) -> np.ndarray:
        """uint32 (vocab / 32, rounded up): a bit for each token, lowest first, set if it may come next."""

    def advance(self, token: int) -> None:
        """Goes on past a token that the mask allows."""

    def rollback(self, n: int) -> None:
        """Takes the last n tokens back."""

    def fork(self) -> TokenConstraint:
        """An independent copy."""


class RowSampler(Protocol):
    """What `sample_batch` needs of a `Sampler`."""

    kernels: Kernels

    def row(self, logits: np.ndarray, history: History | None) -> tuple[Any, ...] | None:
        """A row for the kernel, random numbers drawn; None if there are stages in Python."""

    def take(self, status: int, token: int, logprob: float, vocab: int) -> int:
        """Takes what the kernel chose for a `row` into the state."""

    def sample(self, logits: np.ndarray, history: History | None = None) -> int:
        """The next token, stage by stage where there are stages in Python."""

    def sample_with_logprobs(self, logits: np.ndarray, history: History | None, top: int) -> Any:
        """`sample`, with log-probabilities."""

    def abandon(self) -> None:
        """Gives back the random numbers of a choice that was not made."""

    def rollback(self, n: int) -> None:
        """Takes the last n tokens back."""
