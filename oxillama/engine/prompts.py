"""What a prompt may be, and the token ids that it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
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
        return checked_tokens(prompt, n_vocab, most)
    check_room(len(tokens), most)
    return tokens


def check_room(n: float, most: int) -> None:
    """Raises PromptError if there are more tokens than there is room for."""
    if n > most:
        raise PromptError(f"prompt: expected at most {most} tokens for the context, got {n}")


def checked_tokens(tokens: Any, n_vocab: int, most: int, *, least: int = 1) -> list[int]:
    """Token ids as ints.

    Raises PromptError unless they are a sequence or array of ``least`` to ``most`` ids below ``n_vocab``."""
    found = None
    if tokens.ndim > 0 if isinstance(tokens, np.ndarray) else isinstance(tokens, Listed):
        check_room(checks.length(tokens), most)  # before it is listed: a range may be of any length
        found = checks.items(tokens)
    if found is None:
        raise PromptError(f"prompt: expected text or token ids, got {type(tokens).__name__}")
    for token in found:
        if not checks.is_token(token) or token >= n_vocab:
            raise PromptError(f"prompt: expected token ids below {n_vocab}, got {checks.shown(token)}")
    if len(found) < least:
        raise PromptError("prompt: has no tokens")
    return [int(t) for t in found]


def listed(values: Iterable[T], name: str = "prompts") -> list[T]:
    """A list of prompts, texts or messages. Raises ConfigError for one text, which would be a list of its
    letters."""
    if isinstance(values, (str, bytes, bytearray, Mapping)) or not isinstance(values, Iterable):
        raise ConfigError(f"{name}: expected a list of {name}, got {type(values).__name__}")
    if isinstance(values, Sized) and checks.length(values) > checks.MOST_ITEMS:  # a range
        raise ConfigError(f"{name}: expected at most {checks.MOST_ITEMS}, got {checks.shown(values)}")
    return list(values)
