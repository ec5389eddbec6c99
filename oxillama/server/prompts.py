"""Texts that become tokens: how long they may be, which is decided before they are tokenized."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from oxillama.engine.engine import InferenceEngine
from oxillama.server.errors import ApiError, prompt_too_long
from oxillama.server.json_text import ENCODER
from oxillama.server.pieces import PARTS
from oxillama.server.processes import NoProcess
from oxillama.server.workers import pools
from oxillama.tokenizer.bridge import TokenizerBridge

T = TypeVar("T")

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


def written_tokens(job: Callable[[], list[int]], of_pieces: TokenizerBridge | None = None) -> list[bytes]:
    """The JSON of the tokens that a job makes, in pieces; with their texts if a tokenizer is given.

    A text that is no UTF-8 is a list of its bytes.
    """
    known: dict[int, str] = {}
    tokens, pieces = job(), ['{"tokens":[']
    for start in range(0, len(tokens), PARTS):
        part = tokens[start : start + PARTS]
        for token in part:
            if token not in known:
                known[token] = ENCODER.encode(token if of_pieces is None else described(of_pieces, token))
        pieces[-1] += ("," if start else "") + ",".join([known[token] for token in part])
        pieces.append("")
    pieces[-1] += "]}"
    return [piece.encode() for piece in pieces]


def described(tokenizer: TokenizerBridge, token: int) -> dict[str, Any]:
    """A token and its text, or its bytes if they are no text."""
    data = tokenizer.token_bytes(token)
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}


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

    def written(self, text: str, *how: Any, with_pieces: bool) -> list[bytes]:
        """The JSON of what `encode` returns, in pieces; with the text of each token if it is wanted."""
        of_pieces = self._engine.tokenizer if with_pieces else None
        return self._made(
            text,
            partial(TokenizerBridge.encode, self._engine.tokenizer, text, *how),
            written_tokens,
            of_pieces,
        )

    def _tokens(self, encode: Callable[..., list[int]], text: str, *how: Any, **named: Any) -> list[int]:
        return self._made(
            text, partial(encode, self._engine.tokenizer, text, *how, **named), packed_tokens
        ).tolist()

    def _made(self, text: str, job: Callable[[], list[int]], make: Callable[..., T], *more: Any) -> T:
        """What a function makes of a job that encodes a text; where the text is long, in a process."""
        check_text(self._engine, text, self._name, fits=self._fits)
        if len(text) >= LONG:
            with suppress(NoProcess):
                return pools().processes.run(make, job, *more)
        return make(job, *more)


def bounded(engine: InferenceEngine, name: str = "prompt", *, fits: bool = True) -> Any:
    """The tokenizer of an engine, for texts of clients."""
    return BoundedTokenizer(engine, name, fits)
