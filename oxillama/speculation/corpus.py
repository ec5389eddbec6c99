"""Drafts from given texts: the continuation of the longest suffix of a request's text that occurs in them.

A suffix array (Manber and Myers, 1990) over the reversed texts, sorted by prefix doubling, keeps all
positions with the same preceding text adjacent. So a binary search finds the longest matching suffix (REST,
He et al., 2023, drafts from such an array). The index takes 8 bytes for each token of the texts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

DEPTH = 64
"""The maximum length of a suffix in tokens; longer ones are not distinguished."""

MOST_PLACES = 64
"""The maximum number of occurrences whose continuations are counted."""

GAP = -1
"""Separates two texts; not a token id."""


class Corpus:
    """An immutable index of texts.

    Args:
        texts: the token ids of each text.
    """

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        parts = [np.full(1, GAP, np.int32)]
        for text in texts:
            parts += [np.asarray(text, np.int32), parts[0]]
        self._tokens = np.concatenate(parts)
        self._order = _sorted_suffixes(self._tokens[::-1])

    @property
    def n_tokens(self) -> int:
        """The number of tokens of all texts."""
        return int((self._tokens != GAP).sum())

    @property
    def nbytes(self) -> int:
        """The size of the index in bytes."""
        return self._tokens.nbytes + self._order.nbytes

    def longest(self, tokens: Sequence[int]) -> tuple[int, np.ndarray]:
        """The longest suffix of ``tokens`` that occurs in the texts, and the positions after its occurrences.

        Returns:
            length: tokens of the suffix, at most `DEPTH`; 0 if none occurs.
            places: int64 (n,), positions of the next tokens in the index, at most `MOST_PLACES`.
        """
        order, text, wanted = self._order, self._tokens[::-1], tokens[: -DEPTH - 1 : -1]
        low, high, length = 0, len(order), 0
        while length < len(wanted):
            # the entries from low to high share their first ``length`` tokens and are sorted by the next one
            token = wanted[length]
            first = bisect_left(order, token, low, high, key=lambda at: text[at + length])
            if first == high or text[order[first] + length] != token:
                break
            high = bisect_right(order, token, first, high, key=lambda at: text[at + length])
            low, length = first, length + 1
            if high - low == 1:  # a single entry: compare the rest at once
                there = text[order[low] + length :][: len(wanted) - length]
                same = [*(there == wanted[length : length + len(there)]), False]
                length += same.index(False)
                break
        if not length:
            return 0, np.zeros(0, np.int64)
        n = min(high - low, MOST_PLACES)
        chosen = low + np.arange(n) * (high - low) // n
        return length, len(self._tokens) - order[chosen].astype(np.int64)

    def draft(self, tokens: Sequence[int], n: int, least: int = 2) -> list[int]:
        """Up to ``n`` tokens that most often follow the longest suffix of ``tokens`` that occurs in the
        texts.

        Empty if the suffix has fewer than ``least`` tokens. A draft ends at the end of a text.
        """
        length, places = self.longest(tokens)
        found: list[int] = []
        while length >= least and len(found) < n:
            following = self._tokens[places]
            ids, counts = np.unique(following[following != GAP], return_counts=True)
            if not len(ids):
                break
            token = int(ids[counts.argmax()])
            found.append(token)
            places = places[following == token] + 1
        return found


def _sorted_suffixes(tokens: np.ndarray) -> np.ndarray:
    """int32 (n,): where the suffixes of ``tokens`` (n,) begin, in the order of their first `DEPTH` tokens."""
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64).reshape(-1)
    order, n = np.argsort(rank, kind="stable"), 1  # ranks are by the first n tokens
    while n < DEPTH:
        behind = np.zeros_like(rank)
        behind[:-n] = rank[n:] + 1
        key = rank * (int(rank.max()) + 2) + behind
        order = np.argsort(key, kind="stable")
        key = key[order]
        rank[order] = np.concatenate([[0], np.cumsum(key[1:] != key[:-1])])
        n *= 2
    return order.astype(np.int32)
