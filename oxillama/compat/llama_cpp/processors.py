"""The caller's functions of a generation, and the penalties, as sampler stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

LogitsProcessor = Callable[[npt.NDArray[np.intc], npt.NDArray[np.single]], npt.NDArray[np.single]]
"""Called with int32 (tokens,) and float32 (vocab,) logits; returns the logits to sample from."""

StoppingCriteria = Callable[[npt.NDArray[np.intc], npt.NDArray[np.single]], bool]
"""Called with the tokens so far and the logits after them; True ends the text before the next token."""


class LogitsProcessorList(list[LogitsProcessor]):
    """Processors that are called in order."""

    def __call__(
        self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]
    ) -> npt.NDArray[np.single]:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Criteria; the text ends when any one returns True."""

    def __call__(self, input_ids: npt.NDArray[np.intc], logits: npt.NDArray[np.single]) -> bool:
        return any(criterion(input_ids, logits) for criterion in self)


class MinTokensLogitsProcessor:
    """Bans a token until ``min_tokens`` tokens are generated; the first call receives the prompt."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(
        self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]
    ) -> npt.NDArray[np.single]:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


class ProcessorStage:
    """Processors as a sampler stage: they receive logits of the whole vocabulary, -inf for banned tokens."""

    def __init__(self, processors: Sequence[LogitsProcessor], n_vocab: int) -> None:
        self.processors: LogitsProcessorList = LogitsProcessorList(processors)
        self.n_vocab = n_vocab

    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> np.ndarray:
        scores = np.full(self.n_vocab, -np.inf, np.float32)
        scores[ids] = logits
        found: np.ndarray = np.asarray(self.processors(history, scores), np.float32)[ids]
        return found


class PenaltyStage:
    """Penalties for the last generated tokens. Unlike in `SamplerConfig`, the prompt does not count.

    Args:
        n_prompt: number of prompt tokens.
        window: number of generated tokens that count; negative: all.
        repeat, frequency, presence: as ``repetition_penalty`` and so on of `SamplerConfig`.
    """

    def __init__(self, n_prompt: int, window: int, repeat: float, frequency: float, presence: float) -> None:
        self.n_prompt: int = n_prompt
        self.window: int = window
        self.repeat: float = repeat
        self.frequency: float = frequency
        self.presence: float = presence

    def __call__(self, ids: np.ndarray, logits: np.ndarray, history: np.ndarray) -> None:
        recent = history[self.n_prompt :]
        recent = recent if self.window < 0 else recent[max(0, len(recent) - self.window) :]
        tokens, counts = np.unique(recent, return_counts=True)
        order = np.argsort(ids, kind="stable")
        places = np.searchsorted(ids, tokens, sorter=order)
        here = places < len(ids)
        here[here] = ids[order[places[here]]] == tokens[here]
        at, counts = order[places[here]], counts[here]
        found = logits[at]
        found = np.where(found <= 0, found * np.float32(self.repeat), found / np.float32(self.repeat))
        logits[at] = found - (counts * np.float32(self.frequency) + np.float32(self.presence))
