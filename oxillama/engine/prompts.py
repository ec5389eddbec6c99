"""What a prompt may be, and the token ids that it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from typing import Any, TypeVar

import numpy as np

from oxillama.config import checks
from oxillama.errors import ConfigError, PromptError
from oxillama.tokenizer.bridge import TokenizerBridge

T = TypeVar("T")
Prompt = str | Listed[int] | np.ndarray
"""Text, or token ids that are taken as they are (no BOS is added to those)."""


def prompt_tokens(prompt: Prompt, tokenizer: TokenizerBridge, n_vocab: int, most: int) -> list[int]:
    """The token ids of a prompt.

    Parameters
    ----------
    n_vocab : ids must lie below.
    most : tokens that there is room for.

    Raises
    ------
    PromptError : the prompt is empty, too long, or neither text nor token ids of the vocabulary.
    TokenizerError : the text is not valid unicode.
    """
    if isinstance(prompt, str):
        if not prompt:
            raise PromptError("prompt: is empty")
        tokens = tokenizer.encode(prompt)
    else:
        tokens = checked_tokens(prompt, n_vocab)
    if len(tokens) > most:
        raise PromptError(f"prompt: expected at most {most} tokens for the context, got {len(tokens)}")
    return tokens


def checked_tokens(tokens: Any, n_vocab: int) -> list[int]:
    """Token ids as ints. Raises PromptError unless they are a sequence or array of ids below ``n_vocab``."""
    found = checks.items(tokens) if isinstance(tokens, (Listed, np.ndarray)) else None
    if found is None:
        raise PromptError(f"prompt: expected text or token ids, got {type(tokens).__name__}")
    wrong = next((t for t in found if not checks.is_token(t) or t >= n_vocab), None)
    if wrong is not None:
        raise PromptError(f"prompt: expected token ids below {n_vocab}, got {checks.shown(wrong)}")
    if not found:
        raise PromptError("prompt: has no tokens")
    return [int(t) for t in found]


def listed(values: Iterable[T], name: str = "prompts") -> list[T]:
    """A list of prompts or texts. Raises ConfigError for one text, which would be a list of its letters."""
    if isinstance(values, (str, bytes, bytearray, Mapping)) or not isinstance(values, Iterable):
        raise ConfigError(f"{name}: expected a list of {name}, got {type(values).__name__}")
    return list(values)
