"""What the chain needs of the parts that others write: stages in Python, and grammars."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike


class SamplerStage(Protocol):
    """A stage of one's own: any callable of this signature, placed in `SamplerConfig.order`."""

    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray, /) -> ArrayLike | None:
        """Other logits for the candidates; -inf drops one.

        Parameters
        ----------
        ids : int32 (n,), the candidates' tokens, in no particular order. Not to be changed.
        logits : float32 (n,), which may be changed in place.
        history : int32 (tokens,), prompt included. Not to be changed.

        Returns
        -------
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
