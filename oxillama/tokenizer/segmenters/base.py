"""Shared by all segmenters: their interface, the cache of words, and splitting at spaces."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

SPACE = "\u2581"  # stands for a space in tokens


CACHED_WORDS = 1 << 16
CACHED_LENGTH = 48  # characters up to which a word is worth remembering


class Segmenter(Protocol):
    """Turns text without special tokens into ids."""

    def encode(self, text: str, out: list[int]) -> None:
        """Append the ids of `text`, which is not empty and holds no lone surrogates, to `out`."""


def uncrossed_spaces(tokens: list[str]) -> Callable[[str], list[str]]:
    """A function that cuts a text before each U+2581 which no token can contain after what precedes it."""
    between = "\ud800"  # no decoded token holds a high surrogate
    crossing = set(re.findall(f"([^{SPACE}{between}]){SPACE}", between.join(tokens)))
    barred = "".join(map(re.escape, sorted(crossing | {SPACE})))
    return re.compile(f"(?<=[^{barred}])(?={SPACE})").split


class WordCache:
    """Ids of the words seen lately; forgets everything when full."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]]) -> None:
        self._encode = encode
        self._known: dict[str, tuple[int, ...]] = {}

    def extend(self, words: list[str], out: list[int]) -> None:
        known = self._known
        for word in words:
            ids = known.get(word)
            if ids is None:
                ids = self._encode(word)
                if len(word) <= CACHED_LENGTH:
                    if len(known) >= CACHED_WORDS:
                        known.clear()
                    known[word] = ids
            out += ids
