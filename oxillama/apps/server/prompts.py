"""Limits of texts, which are checked before a text is tokenized."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from oxillama.apps.server.errors import fault, prompt_too_long
from oxillama.apps.server.pieces import ENCODER, PARTS
from oxillama.apps.server.processes import NoProcess
from oxillama.apps.server.workers import pools
from oxillama.engine.engine import InferenceEngine
from oxillama.text.chat.bridge import TokenizerBridge

T = TypeVar("T")

LEAST = 1 << 20
"""Bytes of text that may always be tokenized."""

TOKEN_BYTES = 16
"""Bytes of text for each token of the context that may be tokenized."""

LONG = 1 << 15
"""Characters of a text from which it is tokenized in a process."""

LOSSLESS = ("bpe", "spm")
"""Kinds of vocabularies whose tokens hold every byte of a text."""

_longest: weakref.WeakKeyDictionary[TokenizerBridge, int] = weakref.WeakKeyDictionary()


def longest_token(tokenizer: TokenizerBridge) -> int:
    """Bytes of the longest token; 0 for a vocabulary whose tokens may stand for any number of bytes."""
    if tokenizer not in _longest:
        known = getattr(getattr(tokenizer, "vocab", None), "kind", "") in LOSSLESS
        _longest[tokenizer] = max(map(len, tokenizer.vocab_bytes()), default=0) if known else 0
    return _longest[tokenizer]


def check_text(engine: InferenceEngine, text: str, name: str, *, fits: bool = True) -> None:
    """Raises ApiError for a text that is too long to be tokenized.

    Args:
        name: the field that has the text.
        fits: whether its tokens must fit the context.
    """
    n_bytes = len(text)  # lower bound
    context = engine.context_size
    if fits and n_bytes > LEAST // 64:
        longest = longest_token(engine.tokenizer)
        least = n_bytes // (2 * longest) if longest else 0  # normalized text is half as long at worst
        if least > context:
            raise prompt_too_long(name, least, context, 1)
    most = max(LEAST, TOKEN_BYTES * context)
    if n_bytes > most:
        raise fault(name, f"expected at most {most} characters, got {n_bytes}", "text_too_long")


def check_messages(engine: InferenceEngine, messages: Sequence[Any], name: str) -> None:
    """Raises ApiError if the last message is longer than the context: rendering it would take long, too.

    Earlier messages, and an answer to continue, are not looked at: a template may leave them out.
    """
    last = messages[-1] if messages and isinstance(messages[-1], Mapping) else {}
    if last.get("role") == "assistant":
        return
    content = last.get("content")
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str) and len(text) > LEAST // 64:
            check_text(engine, text.strip(), name)


def packed_tokens(job: Callable[[], list[int]]) -> array[int]:
    """The tokens that a job makes, in a compact form for pickling."""
    return array("i", job())


def written_tokens(job: Callable[[], list[int]], of_pieces: TokenizerBridge | None = None) -> list[bytes]:
    """The JSON of the tokens that a job makes, in pieces; with their texts if a tokenizer is given.

    A text that is not UTF-8 is a list of its bytes.
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
    """A token and its text, or its bytes if they are not UTF-8."""
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
        """The JSON of the ids that `encode` returns, in pieces; ``with_pieces`` adds each token's text."""
        job = partial(TokenizerBridge.encode, self._engine.tokenizer, text, *how)
        arguments = job, self._engine.tokenizer if with_pieces else None
        found = self._in_process(text, written_tokens, *arguments)
        return written_tokens(*arguments) if found is None else found

    def _tokens(self, encode: Callable[..., list[int]], text: str, *how: Any, **named: Any) -> list[int]:
        job = partial(encode, self._engine.tokenizer, text, *how, **named)
        found = self._in_process(text, packed_tokens, job)
        return job() if found is None else found.tolist()

    def _in_process(self, text: str, make: Callable[..., T], *arguments: Any) -> T | None:
        """The result of ``make`` in a process for a long text; None if this thread has to call ``make``.

        Raises ApiError as `check_text`.
        """
        check_text(self._engine, text, self._name, fits=self._fits)
        if len(text) >= LONG:
            with suppress(NoProcess):
                return pools().processes.run(make, *arguments)
        return None


def bounded(engine: InferenceEngine, name: str = "prompt", *, fits: bool = True) -> Any:
    """The tokenizer of an engine, for texts of clients."""
    return BoundedTokenizer(engine, name, fits)
