"""Windows of a text: so many tokens each, each run from an empty context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from oxillama.config import checks
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError, PromptError
from oxillama.evaluation.logits import Logits
from oxillama.tokenizer.first_token import first_token

WINDOW = 512
"""Tokens of a window: llama-perplexity's default."""

RowsOf = Callable[[int, int, np.ndarray], object]
"""Called with the number of a window, the number of a scored token in it, and float32 (rows, vocab): the
logits that this token and the following ones are scored by."""


@dataclass(frozen=True)
class Windows:
    """A text in windows, as llama-perplexity divides it.

    The first half of a window is context. Each later token but the first of them is scored. A last part of
    the text that fills no window is left out.

    Attributes
    ----------
    tokens : ids of all windows, one after the other, as the text has them.
    size : tokens of a window.
    bos : stands in the place of each window's first token; None where the vocabulary puts none before a text.
    """

    tokens: Sequence[int]
    size: int
    bos: int | None

    @property
    def count(self) -> int:
        """Windows."""
        return len(self.tokens) // self.size

    @property
    def first_row(self) -> int:
        """Position in a window of the first row of logits that scores a token."""
        return self.size // 2

    @property
    def scored(self) -> int:
        """Tokens of a window that are scored."""
        return self.size - 1 - self.first_row

    def context(self, number: int) -> list[int]:
        """The tokens of a window that are run: all but the last, which only is scored."""
        start = number * self.size
        found = list(self.tokens[start : start + self.size - 1])
        return found if self.bos is None else [self.bos, *found[1:]]

    def targets(self, number: int) -> list[int]:
        """The tokens of a window that are scored."""
        start = number * self.size
        return list(self.tokens[start + self.first_row + 1 : start + self.size])


def windows_of(engine: InferenceEngine, text: str, size: int = WINDOW, most: int | None = None) -> Windows:
    """The windows of a text.

    Parameters
    ----------
    most : windows; None for all.

    Raises
    ------
    ConfigError : a number is out of range, the window does not fit the context, or the model is an encoder.
    PromptError : the text has fewer tokens than two windows, which llama-perplexity asks for.
    TokenizerError : the text is not valid unicode.
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
    """Raises ConfigError if the windows do not fit the context, or the model is an encoder."""
    engine.model.runner.check_logits()
    if size > engine.context_size:
        raise ConfigError(f"window: expected up to {engine.context_size} tokens (context_size), got {size}")


def run_windows(engine: InferenceEngine, windows: Windows, take: RowsOf) -> Iterator[int]:
    """Runs the windows, one after the other; yields the number of each that has been run.

    ``take`` is called by the engine thread. Raises KvCacheFullError, and what ``take`` raises.
    """
    adapters = engine.model.adaptation(None, None)
    for number in range(windows.count):

        def rows(position: int, found: np.ndarray, number: int = number) -> None:
            take(number, position - windows.first_row, found)

        logits = Logits(engine.model, windows.context(number), windows.first_row, rows, adapters)
        engine.model.thread.submit(logits.request, limited=False)
        logits.wait()
        yield number
