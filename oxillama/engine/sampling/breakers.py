"""The tokens that break a repetition, for DRY: texts of `dry_sequence_breakers` as tokens of a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from oxillama.errors import ConfigError
from oxillama.text.tokenizer.tokenizer import Tokenizer

MAX_TAIL = 20  # tokens of a breaker after its first, as in llama.cpp

MOST_KNOWN = 32
"""Tables that are kept for a tokenizer."""

Breaker = str | tuple[int, ...]
Tables = tuple[np.ndarray, np.ndarray]

_known: WeakKeyDictionary[Tokenizer, dict[tuple[Breaker, ...], Tables]] = WeakKeyDictionary()


def breaker_tables(breakers: tuple[Breaker, ...], tokenizer: Tokenizer | None) -> Tables:
    """The sequence breakers as the kernel takes them; computed once for each tokenizer.

    Returns:
        uint8 (tokens,): 1 for a token that breaks by itself, 2 for one that begins a sequence that does, 3
            both
        int32 (numbers,): those sequences, each after its length

    Raises:
        ConfigError: a breaker is a text, and there is no tokenizer; or a token that is not in its vocabulary.
    """
    if tokenizer is None:
        texts = [breaker for breaker in breakers if isinstance(breaker, str)]
        if texts:
            raise ConfigError(f"dry_sequence_breakers: {texts[0]!r} expected a tokenizer, got none")
        return _tables([tuple(b) for b in breakers if not isinstance(b, str)])
    cache = _known.setdefault(tokenizer, {})
    tables = cache.get(breakers)
    if tables is None:
        largest = max((token for b in breakers if not isinstance(b, str) for token in b), default=-1)
        if largest >= tokenizer.n_vocab:
            raise ConfigError(
                f"dry_sequence_breakers: expected token ids below {tokenizer.n_vocab}, got {largest}"
            )
        found: list[tuple[int, ...]] = []
        for breaker in breakers:
            found += sequences(breaker, tokenizer) if isinstance(breaker, str) else [breaker]
        if len(cache) >= MOST_KNOWN:
            cache.clear()
        tables = cache[breakers] = _tables(found)
    return tables


def sequences(text: str, tokenizer: Tokenizer) -> Iterable[tuple[int, ...]]:
    """The sequences of tokens that contain a text.

    A token that contains the whole text is a sequence of one. A token that ends with a beginning of the text
    is followed by the tokens of the rest.
    """
    wanted = text.encode()
    starts = [wanted[:n] for n in range(1, len(wanted))]
    rests: dict[bytes, tuple[int, ...]] = {}
    for token, piece in enumerate(tokenizer.vocab_bytes()):
        if wanted in piece:
            yield (token,)
            continue
        for start in starts:
            if piece.endswith(start):
                if start not in rests:
                    rest = wanted[len(start) :].decode(errors="ignore")
                    rests[start] = tuple(tokenizer.encode(rest, add_special=False))[:MAX_TAIL]
                yield (token, *rests[start])


def _tables(found: Sequence[tuple[int, ...]]) -> Tables:
    kinds = np.zeros(max((s[0] for s in found), default=-1) + 1, np.uint8)
    longer = sorted({s for s in found if len(s) > 1})
    for sequence in found:
        kinds[sequence[0]] |= 1 if len(sequence) == 1 else 2
    numbers = [number for sequence in longer for number in (len(sequence), *sequence)]
    return kinds, np.array(numbers, np.int32)
