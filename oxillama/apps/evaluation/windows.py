"""Divides a text into windows of equal size, each run from an empty context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from oxillama.apps.evaluation.logits import Logits
from oxillama.base.config import checks
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError, PromptError
from oxillama.text.tokenizer.tokenizer import first_token

WINDOW = 512
"""The default window size in tokens, as in llama-perplexity."""

RowsOf = Callable[[int, int, np.ndarray], object]
"""Called with the number of a window, the number of a scored token in it, and float32 (rows, vocab): the
logits that score this token and the following ones."""


@dataclass(frozen=True)
class Windows:
    """A text in windows, divided as in llama-perplexity.

    The first half of a window is context. In the second half, each token but the first is scored. Tokens
    after the last full window are left out.

    Attributes:
        tokens: ids of all windows, concatenated.
        size: size of a window in tokens.
        bos: replaces each window's first token; None if the vocabulary adds no BOS.
    """

    tokens: Sequence[int]
    size: int
    bos: int | None

    @property
    def count(self) -> int:
        """The number of windows."""
        return len(self.tokens) // self.size

    @property
    def first_row(self) -> int:
        """The position in a window of the first logits that score a token."""
        return self.size // 2

    @property
    def scored(self) -> int:
        """The number of scored tokens in a window."""
        return self.size - 1 - self.first_row

    def context(self, number: int) -> list[int]:
        """The tokens of a window to run: all but the last, which is only scored."""
        start = number * self.size
        found = list(self.tokens[start : start + self.size - 1])
        return found if self.bos is None else [self.bos, *found[1:]]

    def targets(self, number: int) -> list[int]:
        """The scored tokens of a window."""
        start = number * self.size
        return list(self.tokens[start + self.first_row + 1 : start + self.size])


def windows_of(engine: InferenceEngine, text: str, size: int = WINDOW, most: int | None = None) -> Windows:
    """Divide a text into windows.

    Args:
        most: maximum number of windows; None: all.

    Raises:
        ConfigError: a number is out of range, a window exceeds the context, or the model is an encoder.
        PromptError: the text has fewer tokens than two windows, the minimum in llama-perplexity.
        TokenizerError: the text is not valid Unicode.
    """
    size = checks.integer("window", size, 4)
    if most is not None:
        checks.integer("windows", most, 1)
    check_windows(engine, size)
    tokens = engine.tokenizer.encode(text)
    if len(tokens) < 2 * size:
        raise PromptError(f"text: expected at least {2 * size} tokens, two windows, got {len(tokens)}")
    n_windows = min(len(tokens) // size, most or len(tokens))
    return Windows(tokens[: n_windows * size], size, first_token(engine.tokenizer))


def check_windows(engine: InferenceEngine, size: int) -> None:
    """Raise ConfigError if a window exceeds the context, or the model is an encoder."""
    engine.model.runner.check_logits()
    if size > engine.context_size:
        raise ConfigError(f"window: expected up to {engine.context_size} tokens (context_size), got {size}")


def run_windows(engine: InferenceEngine, windows: Windows, take: RowsOf) -> Iterator[int]:
    """Run the windows one by one; yields the number of each finished window.

    ``take`` is called on the engine thread. Raises KvCacheFullError, and the errors of ``take``.
    """
    adapters = engine.model.adaptation(None, None)
    for number in range(windows.count):

        def rows(position: int, found: np.ndarray, number: int = number) -> None:
            take(number, position - windows.first_row, found)

        logits = Logits(engine.model, windows.context(number), windows.first_row, rows, adapters)
        engine.model.thread.submit(logits.request, limited=False)
        logits.wait()
        yield number
