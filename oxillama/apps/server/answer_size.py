"""The size of an answer: it is bounded before the answer is made.

Texts, tokens, log-probabilities and components of vectors have limits each. Their product has a limit here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.running import Delta, deltas, results
from oxillama.base.config import GenerationOptions
from oxillama.engine.completion import Completion
from oxillama.engine.generation import Generation

MOST_BYTES = 256 << 20
"""Bytes of an answer; of a stream, bytes of the log-probabilities that its texts hold."""

LOGPROB_BYTES = 96
"""Bytes of JSON for a token with its log-probability, about."""

LOGPROB_HELD_BYTES = 32
"""Bytes that a text holds for a token with its log-probability, about."""

TOKEN_BYTES = 256
"""Bytes that a text holds for a token with log-probabilities, beside those, about."""

LOGPROB_OBJECT_BYTES = 400
"""Bytes of the objects that JSON is made of for a token with its log-probability, about."""

NUMBER_BYTES = 24
"""Bytes of JSON for a component of a vector, about."""


def check_size(n_bytes: int, fields: str) -> None:
    """Raises ApiError for an answer that would be larger than `MOST_BYTES`.

    Args:
        fields: of the body, whose values the size follows from.
    """
    if n_bytes > MOST_BYTES:
        most, found = MOST_BYTES >> 20, -(-n_bytes >> 20)
        message = f"{fields}: expected an answer of at most {most} MiB, got {found} MiB or more"
        raise ApiError(400, message, param=fields.partition(",")[0], code="answer_too_large")


def check_texts(options: GenerationOptions, n_texts: int) -> None:
    """Raises ApiError if texts may have more log-probabilities than fit into an answer.

    One text has the limit of `within` alone, since few texts are as long as ``max_tokens``.
    """
    if options.n_top_logprobs is not None and n_texts > 1 and options.max_tokens is not None:
        each = LOGPROB_BYTES * (1 + options.n_top_logprobs)
        check_size(n_texts * options.max_tokens * each, "n, max_tokens, top_logprobs")


async def within(generations: Sequence[Generation], value_bytes: int = LOGPROB_BYTES) -> AsyncIterator[Delta]:
    """The deltas of generations. Raises ApiError when their log-probabilities take more than `MOST_BYTES`.

    Args:
        value_bytes: that each log-probability takes.
    """
    n_bytes = 0
    async with aclosing(deltas(generations)) as found:
        async for delta in found:
            if delta.logprobs:
                top = generations[delta.index].options.n_top_logprobs or 0
                n_bytes += len(delta.logprobs) * (TOKEN_BYTES + (1 + top) * value_bytes)
                check_size(n_bytes, "max_tokens, top_logprobs")
            yield delta


async def whole_texts(generations: Sequence[Generation]) -> list[Completion]:
    """All texts, whole. Raises as `within` and `results`."""
    if any(each.options.n_top_logprobs is not None for each in generations):
        async for _ in within(generations):
            pass
    return await results(generations)
