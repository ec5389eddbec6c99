"""Texts that become tokens: how long they may be, which is decided before they are tokenized."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from oxillama.engine.engine import InferenceEngine
from oxillama.server.errors import ApiError, prompt_too_long
from oxillama.server.processes import NoProcess
from oxillama.server.workers import pools
from oxillama.tokenizer.bridge import TokenizerBridge

LEAST = 1 << 20
"""Bytes of text that may always be tokenized."""

TOKEN_BYTES = 16
"""Bytes of text for each token of the context that may be tokenized."""

LONG = 1 << 15
"""Characters of a text from which it is tokenized in a process."""

LOSSLESS = ("bpe", "spm")
"""Kinds of vocabularies of which each byte of a text is in a token."""

_longest: weakref.WeakKeyDictionary[TokenizerBridge, int] = weakref.WeakKeyDictionary()


def longest_token(tokenizer: TokenizerBridge) -> int:
    """Bytes of the longest token; 0 for a vocabulary whose tokens may stand for any number of bytes."""
    if tokenizer not in _longest:
        known = getattr(getattr(tokenizer, "vocab", None), "kind", "") in LOSSLESS
        _longest[tokenizer] = max(map(len, tokenizer.vocab_bytes()), default=0) if known else 0
    return _longest[tokenizer]


def check_text(engine: InferenceEngine, text: str, name: str, *, fits: bool = True) -> None:
    """Raises ApiError for a text that is too long to be tokenized.

    Parameters
    ----------
    name : of the field that it stands in.
    fits : whether its tokens must fit the context.
    """
    n_bytes = len(text)  # at least
    context = engine.context_size
    if fits and n_bytes > LEAST // 64:
        longest = longest_token(engine.tokenizer)
        least = n_bytes // (2 * longest) if longest else 0  # of normalized text, half as long at worst
        if least > context:
            raise prompt_too_long(name, least, context, 1)
    most = max(LEAST, TOKEN_BYTES * context)
    if n_bytes > most:
        raise ApiError(
            400,
            f"{name}: expected at most {most} characters, got {n_bytes}",
            param=name,
            code="text_too_long",
        )


def packed_tokens(job: Callable[[], list[int]]) -> array[int]:
    """The tokens that a job makes, as few bytes."""
    return array("i", job())


class BoundedTokenizer:
    """The tokenizer of an engine, which refuses texts that are too long before it tokenizes them.

    Raises ApiError as `check_text`.
    """

    def __init__(self, engine: InferenceEngine, name: str, fits: bool) -> None:
        self._engine, self._name, self._fits = engine, name, fits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.tokenizer, name)

    def encode(self, text: str, *how: Any, **named: Any) -> list[int]:
        """As `TokenizerBridge.encode`."""
        return self._tokens(TokenizerBridge.encode, text, *how, **named)

    def encode_rendered(self, text: str, *how: Any, **named: Any) -> list[int]:
        """As `TokenizerBridge.encode_rendered`."""
        return self._tokens(TokenizerBridge.encode_rendered, text, *how, **named)

    def _tokens(self, encode: Callable[..., list[int]], text: str, *how: Any, **named: Any) -> list[int]:
        """The tokens of a text, of which a process makes many."""
        check_text(self._engine, text, self._name, fits=self._fits)
        job = partial(encode, self._engine.tokenizer, text, *how, **named)
        if len(text) < LONG:
            return job()
        try:
            return pools().processes.run(packed_tokens, job).tolist()
        except NoProcess:
            return job()


def bounded(engine: InferenceEngine, name: str = "prompt", *, fits: bool = True) -> Any:
    """The tokenizer of an engine, for texts of clients."""
    return BoundedTokenizer(engine, name, fits)
