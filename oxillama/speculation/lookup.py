"""Drafts from a text itself: what followed the last time that its ending occurred.

Prompt lookup (Saxena, 2023) takes n-grams of a fixed length. A suffix automaton (Blumer et al., 1985) finds
the longest ending that occurred before, whatever its length, in amortized constant time for each token (Hu et
al., SAM Decoding, 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

LATEST = 16
"""Endings, the longest first, whose latest occurrence is noted; of shorter ones, the first one is."""


class SuffixAutomaton:
    """All substrings of a text that grows.

    A state stands for the substrings that end at the same places. ``links`` leads to the state of the longest
    ending of these that also occurs elsewhere.

    Attributes
    ----------
    tokens : the text.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]  # of the longest substring of a state
        self._ends = [0]  # where it ended last, or first; see `LATEST`
        self._last = 0
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds tokens at the end."""
        for token in tokens:
            self._note_latest()
            self._add(token)

    def longest(self) -> tuple[int, int]:
        """Length of the longest ending that occurred before, and where it ended then; (0, 0) without one."""
        link = self._links[self._last]
        return (self._lengths[link], self._ends[link]) if link > 0 else (0, 0)

    def draft(self, n: int, least: int = 2) -> list[int]:
        """Up to ``n`` tokens that followed when the longest ending, of ``least`` tokens, occurred before.

        Where the copy reaches the end of the text it goes on with itself, so that a repetition goes on.
        """
        length, end = self.longest()
        if length < least:
            return []
        found: list[int] = []
        for i in range(n):
            at = end + i
            found.append(self.tokens[at] if at < len(self.tokens) else found[at - len(self.tokens)])
        return found

    def _note_latest(self) -> None:
        state, end = self._links[self._last], len(self.tokens)
        for _ in range(LATEST):
            if state <= 0:
                break
            self._ends[state] = end
            state = self._links[state]

    def _add(self, token: int) -> None:
        self.tokens.append(token)
        state, new = self._last, self._state({}, self._lengths[self._last] + 1, len(self.tokens))
        self._last = new
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._links[state]
        if state < 0:
            self._links[new] = 0
            return
        known = self._next[state][token]
        if self._lengths[known] == self._lengths[state] + 1:
            self._links[new] = known
            return
        clone = self._state(self._next[known].copy(), self._lengths[state] + 1, self._ends[known])
        self._links[clone], self._links[known], self._links[new] = self._links[known], clone, clone
        while state >= 0 and self._next[state].get(token) == known:
            self._next[state][token] = clone
            state = self._links[state]

    def _state(self, edges: dict[int, int], length: int, end: int) -> int:
        self._next.append(edges)
        self._links.append(0)
        self._lengths.append(length)
        self._ends.append(end)
        return len(self._links) - 1
