"""Compares two models' distributions over the tokens of a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.apps.evaluation.distributions import Distribution
from oxillama.apps.evaluation.logits_file import LogitsFile
from oxillama.apps.evaluation.perplexity import Count, Perplexity, standard_error
from oxillama.apps.evaluation.windows import (
    WINDOW,
    Windows,
    check_windows,
    run_windows,
    windows_of,
)
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError
from oxillama.text.tokenizer.tokenizer import first_token

QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.0)
"""The quantiles of the divergences in a report."""

GROUPS = 4
"""The number of groups of tokens by the base's highest probability, each with figures in a report."""


@dataclass(frozen=True)
class Comparison:
    """Two models' results for the same tokens; the first model is the base. Arrays have a value per token.

    Attributes:
        base, other: perplexities.
        divergences: float64, KL(base || other) in nats.
        agrees: bool, whether both models have the same top token.
        confidence: float64, the base's probability of its top token.
    """

    base: Perplexity
    other: Perplexity
    divergences: np.ndarray
    agrees: np.ndarray
    confidence: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """float64: for each token of the text, the other model's probability minus the base's."""
        apart: np.ndarray = np.exp(-self.other.losses) - np.exp(-self.base.losses)
        return apart.ravel()

    def quantile(self, q: float) -> float:
        """The ``q`` quantile of the divergences."""
        return float(np.quantile(self.divergences, q))

    @property
    def ratio(self) -> tuple[float, float]:
        """The other model's perplexity / the base's perplexity, and its standard error."""
        apart = self.other.losses - self.base.losses
        value = math.exp(float(apart.mean()))
        return value, value * standard_error(apart)

    def groups(self) -> list[tuple[float, float, float, float]]:
        """Groups of tokens by ascending confidence: the lowest and the highest confidence, the mean
        divergence, and the share of tokens with the same top token."""
        order = np.argsort(self.confidence, kind="stable")
        return [
            (
                float(self.confidence[part].min()),
                float(self.confidence[part].max()),
                float(self.divergences[part].mean()),
                float(self.agrees[part].mean()),
            )
            for part in np.array_split(order, min(GROUPS, len(order)))
        ]

    def summary(self) -> dict[str, Any]:
        """All figures as plain data."""
        ratio, ratio_error = self.ratio
        names = ("low", "high", "mean_kl", "top1")
        return {
            "tokens": int(self.divergences.size),
            "window": self.base.window,
            "perplexity_base": self.base.value,
            "perplexity_base_error": self.base.error,
            "perplexity": self.other.value,
            "perplexity_error": self.other.error,
            "perplexity_ratio": ratio,
            "perplexity_ratio_error": ratio_error,
            "mean_kl": float(self.divergences.mean()),
            "mean_kl_error": standard_error(self.divergences),
            "kl_quantiles": {f"{q:g}": self.quantile(q) for q in QUANTILES},
            "top1": float(self.agrees.mean()),
            "top1_error": standard_error(self.agrees.astype(np.float64)),
            "mean_difference": float(self.differences.mean()),
            "rms_difference": float(np.sqrt((self.differences**2).mean())),
            "by_confidence": [dict(zip(names, group)) for group in self.groups()],
        }


def compare(
    base: InferenceEngine | LogitsFile,
    other: InferenceEngine,
    text: str | None = None,
    *,
    window: int = WINDOW,
    windows: int | None = None,
    progress: Count | None = None,
) -> Comparison:
    """Compare a model with a base over the scored tokens of a text (`windows_of`).

    Args:
        base: a model, or a file of its logits, which contains the text's tokens.
        text, window, windows: as for `perplexity`; with a file, omit ``text``; the file sets the window size.
        progress: called with (windows done, total windows).

    Raises:
        ConfigError: the vocabularies differ; or as `windows_of`; or both a file and a text are given, or
            neither. And the errors of `perplexity`.
    """
    if isinstance(base, LogitsFile):
        if text is not None:
            raise ConfigError("text: expected none with a file of logits, which holds its tokens")
        check_vocabularies(base.n_vocab, other.tokenizer.n_vocab)
        check_windows(other, base.windows.size)
        count = base.windows.count if windows is None else min(windows, base.windows.count)
        size = base.windows.size
        found = Windows(base.windows.tokens[: count * size], size, first_token(other.tokenizer))

        def stored(window: int, number: int) -> Distribution:
            return base.row(window * found.scored + number, other.model.kernels)

        return compared(range(count), stored, other, found, progress)
    if text is None:
        raise ConfigError("text: expected a text that both models read, got none")
    check_vocabularies(base.tokenizer.n_vocab, other.tokenizer.n_vocab)
    found = windows_of(other, text, window, windows)
    if found != windows_of(base, text, window, windows):
        raise ConfigError("text: expected models with the same tokens for it, got others")
    known = np.empty((found.scored, base.tokenizer.n_vocab), np.float32)

    def keep(window: int, first: int, rows: np.ndarray) -> None:
        known[first : first + len(rows)] = rows

    def kept(window: int, number: int) -> Distribution:
        return Distribution(known[number], base.model.kernels)

    return compared(run_windows(base, found, keep), kept, other, found, progress)


def check_vocabularies(base: int, other: int) -> None:
    """Raise ConfigError if the vocabularies differ in size."""
    if base != other:
        raise ConfigError(f"model: expected a vocabulary of {base} tokens, as the base has, got {other}")


def compared(
    runs: Iterable[int],
    row_of: Callable[[int, int], Distribution],
    other: InferenceEngine,
    windows: Windows,
    progress: Count | None,
) -> Comparison:
    """Compare a model with a base, window by window.

    Args:
        runs: yields the number of each window when the base's rows of it are known.
        row_of: the base's row, by the number of the window and of the scored token in it.
    """
    shape, kernels = (windows.count, windows.scored), other.model.kernels
    base_losses, losses, divergences, confidence = (np.zeros(shape) for _ in range(4))
    agrees = np.zeros(shape, bool)
    targets = [windows.targets(number) for number in range(windows.count)]

    def take(window: int, first: int, rows: np.ndarray) -> None:
        for i, row in enumerate(rows, first):
            found, known, target = Distribution(row, kernels), row_of(window, i), targets[window][i]
            base_losses[window, i] = -known.logprob(target)
            losses[window, i] = -found.logprob(target)
            divergences[window, i] = known.divergence(found)
            agrees[window, i] = known.top == found.top
            confidence[window, i] = math.exp(known.logprob(known.top))

    for window, _ in zip(runs, run_windows(other, windows, take)):
        if progress is not None:
            progress(window + 1, windows.count)
    return Comparison(
        Perplexity(base_losses, windows.size),
        Perplexity(losses, windows.size),
        divergences.ravel(),
        agrees.ravel(),
        confidence.ravel(),
    )
