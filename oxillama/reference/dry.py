"""DRY (p-e-w, 2024): penalizes tokens that would extend a repetition, the more the longer it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from oxillama.base.config import SamplerConfig
from oxillama.reference.candidates import LARGEST, Candidates
from oxillama.reference.floats import F32, log_double
from oxillama.text.tokenizer.tokenizer import Tokenizer

MOST_REST = 20
"""The maximum number of tokens of a breaker after its first."""


def breaker_sequences(
    breakers: Iterable[str | tuple[int, ...]], tokenizer: Tokenizer | None
) -> list[tuple[int, ...]]:
    """The token sequences that end a repetition.

    A text stands for every token that contains it, and for every token that ends with a prefix of it,
    followed by the tokens of the rest. Texts need the tokenizer.
    """
    found: list[tuple[int, ...]] = []
    for breaker in breakers:
        if not isinstance(breaker, str):
            found.append(tuple(breaker))
            continue
        assert tokenizer is not None
        text = breaker.encode()
        for token, piece in enumerate(tokenizer.vocab_bytes()):
            if text in piece:
                found.append((token,))
                continue
            for n in range(1, len(text)):
                if piece.endswith(text[:n]):
                    rest = tokenizer.encode(text[n:].decode(errors="ignore"), add_special=False)
                    found.append((token, *rest[:MOST_REST]))
    return found


def unbroken(latest: Sequence[int], breakers: Iterable[tuple[int, ...]]) -> int:
    """The number of tokens (latest first) after the latest breaker."""
    for i in range(len(latest)):
        rests = [
            len(breaker) - 1
            for breaker in breakers
            if len(breaker) - 1 <= i and list(breaker) == [latest[i - j] for j in range(len(breaker))]
        ]
        if rests:
            return i - max(rests)
    return len(latest)


def penalize(
    c: Candidates, history: Sequence[int], config: SamplerConfig, breakers: Sequence[tuple[int, ...]]
) -> None:
    """Subtract multiplier * base^(length - allowed) from each token that would extend a repetition.

    The exponent is limited so that the power fits a float; powers are computed by squaring in float64.
    """
    n, allowed = config.dry_range, config.dry_allowed_length
    latest = list(reversed(history if n < 0 else history[max(0, len(history) - n) :]))
    limit = unbroken(latest, breakers)
    if len(latest) <= allowed or limit < allowed:
        return
    lengths: dict[int, int] = {}
    for k in range(1, len(latest)):
        length = 0
        while k + length < len(latest) and latest[length] == latest[k + length]:
            length += 1
        length = min(length, limit)
        if length >= allowed:
            lengths[latest[k - 1]] = max(length, lengths.get(latest[k - 1], 0))
    alone = {breaker[0] for breaker in breakers if len(breaker) == 1}
    most = int(88.7228391 / log_double(config.dry_base)) if config.dry_base > 1.000001 else 0
    for i, token in enumerate(c.ids.tolist()):
        if token not in lengths or token in alone or c.x[i] == -np.inf:
            continue
        exponent = lengths[token] - allowed
        loss = config.dry_multiplier * power(config.dry_base, min(exponent, most) if most else exponent)
        c.x[i] = np.clip(c.x[i] - F32(min(loss, LARGEST)), -F32(LARGEST), F32(LARGEST))
    c.is_ranked = False


def power(base: float, n: int) -> float:
    """base^n by squaring, in float64."""
    found = 1.0
    while n:
        found = found * base if n & 1 else found
        base, n = base * base, n >> 1
    return found
