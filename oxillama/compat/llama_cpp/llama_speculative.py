"""Draft models by llama-cpp-python's names."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import numpy.typing as npt


class LlamaDraftModel(abc.ABC):
    """Predicts the next tokens. `Llama` accepts only `LlamaPromptLookupDecoding`."""

    @abc.abstractmethod
    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """int32 (n,): the predicted tokens after ``input_ids``."""


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Predicts the continuation of an earlier occurrence of the last tokens (Saxena, 2023).

    For `Llama` it means ``speculate="lookup"`` with ``draft_max=num_pred_tokens``; the engine chooses the
    length of the n-gram itself.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = max_ngram_size
        self.num_pred_tokens = num_pred_tokens

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: npt.NDArray[np.intc], max_ngram_size: int, num_pred_tokens: int
    ) -> npt.NDArray[np.intc]:
        """int32 (n,): the tokens after the first occurrence of the longest final n-gram; (0,) without one."""
        tokens = input_ids.tolist()
        for size in range(min(max_ngram_size, len(tokens) - 1), 0, -1):
            ending = tokens[-size:]
            for at in range(len(tokens) - size):
                if tokens[at : at + size] == ending:
                    start = at + size
                    return np.array(tokens[start : start + num_pred_tokens], np.intc)
        return np.array([], np.intc)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)
