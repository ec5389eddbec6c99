"""Drafts from given texts: what followed where the longest ending of a request's text occurs in them.

A suffix array (Manber and Myers, 1990) over the reversed texts, sorted by prefix doubling, keeps all places
with the same ending side by side, so that a binary search finds the longest one (He et al., REST, 2023, draft
out of such an array). It takes 8 bytes for each token of the texts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

DEPTH = 64
"""Tokens of the longest ending that is told from others."""

MOST_PLACES = 64
"""Places that are asked what follows, where an ending occurs more often."""

GAP = -1
"""Stands between two texts; no token."""


class Corpus:
    """An index of texts that never change.

    Parameters
    ----------
    texts : token ids of each.
    """

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        parts = [np.full(1, GAP, np.int32)]
        for text in texts:
            parts += [np.asarray(text, np.int32), parts[0]]
        self._tokens = np.concatenate(parts)
        self._order = _sorted_suffixes(self._tokens[::-1])

    @property
    def n_tokens(self) -> int:
        """Tokens of all texts."""
        return int((self._tokens != GAP).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        return self._tokens.nbytes + self._order.nbytes

    def longest(self, tokens: Sequence[int]) -> tuple[int, np.ndarray]:
        """Length of the longest ending of ``tokens`` that occurs, at most `DEPTH`, and what follows it.

        Returns
        -------
        length : 0 without one.
        places : int (n,), where the next token stands after each of its occurrences, at most `MOST_PLACES`.
        """
        order, text, wanted = self._order, self._tokens[::-1], tokens[: -DEPTH - 1 : -1]
        low, high, length = 0, len(order), 0
        while length < len(wanted):
            # the entries from low to high begin with the same ``length`` tokens, in the order of the next one
            token = wanted[length]
            first = bisect_left(order, token, low, high, key=lambda at: text[at + length])
            if first == high or text[order[first] + length] != token:
                break
            high = bisect_right(order, token, first, high, key=lambda at: text[at + length])
            low, length = first, length + 1
            if high - low == 1:  # the rest at once
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
        """Up to ``n`` tokens that most often follow the longest ending of ``tokens`` that occurs.

        Nothing, where that has fewer than ``least`` tokens. A draft ends with its text.
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
