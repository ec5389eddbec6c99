"""Perplexity of a text, as defined by llama-perplexity (tools/perplexity in llama.cpp).

The perplexity is exp(mean(-ln p)) over all scored tokens (see `windows`). Its uncertainty is the standard
error of the mean, times the perplexity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oxillama.apps.evaluation.distributions import Distribution
from oxillama.apps.evaluation.logits_file import LogitsWriter
from oxillama.apps.evaluation.windows import WINDOW, Windows, run_windows, windows_of
from oxillama.engine.engine import InferenceEngine

Count = Callable[[int, int], None]
"""Called with (windows done, total windows)."""


@dataclass(frozen=True)
class Perplexity:
    """The losses of a text's scored tokens.

    Attributes:
        losses: float64 (windows, scored tokens), -ln p of each.
        window: size of a window in tokens.
    """

    losses: np.ndarray
    window: int

    @property
    def value(self) -> float:
        """The perplexity."""
        return math.exp(self.mean_loss)

    @property
    def mean_loss(self) -> float:
        """mean(-ln p), in nats."""
        return float(self.losses.mean())

    @property
    def error(self) -> float:
        """The uncertainty of the perplexity: one standard error."""
        return standard_error(self.losses) * self.value

    @property
    def running(self) -> list[float]:
        """The perplexity after each window."""
        sums = np.cumsum(self.losses.sum(axis=1))
        n = self.losses.shape[1]
        return [math.exp(total / (n * (i + 1))) for i, total in enumerate(sums.tolist())]


def standard_error(values: np.ndarray) -> float:
    """The standard error of the mean of some values; 0 for a single value."""
    spread = float((values**2).mean() - values.mean() ** 2)
    return math.sqrt(max(spread, 0.0) / (values.size - 1)) if values.size > 1 else 0.0


def perplexity(
    engine: InferenceEngine,
    text: str,
    *,
    window: int = WINDOW,
    windows: int | None = None,
    writer: Callable[[Windows], LogitsWriter] | None = None,
    progress: Count | None = None,
) -> Perplexity:
    """Compute the perplexity of a text.

    Args:
        window: size of a window in tokens; its second half is scored.
        windows: maximum number of windows; None: all.
        writer: makes a writer for the logits of all scored tokens; None: logits are not written.
        progress: called with (windows done, total windows).

    Raises:
        ConfigError, PromptError, TokenizerError: as `windows_of`.
        KvCacheFullError: there are not enough pages for a window.
        SamplingError: a logit is NaN.
    """
    found = windows_of(engine, text, window, windows)
    return measure(engine, found, None if writer is None else writer(found), progress)


def measure(
    engine: InferenceEngine, windows: Windows, writer: LogitsWriter | None, progress: Count | None
) -> Perplexity:
    """Compute the perplexity of windows; optionally write their logits."""
    losses = np.zeros((windows.count, windows.scored))
    kernels, targets = engine.model.kernels, [windows.targets(i) for i in range(windows.count)]

    def take(number: int, first: int, rows: np.ndarray) -> None:
        for i, row in enumerate(rows, first):
            distribution = Distribution(row, kernels)
            losses[number, i] = -distribution.logprob(targets[number][i])
            if writer is not None:
                writer.add(number * windows.scored + i, distribution)

    for number in run_windows(engine, windows, take):
        if progress is not None:
            progress(number + 1, windows.count)
    return Perplexity(losses, windows.size)
