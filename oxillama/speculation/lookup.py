"""Drafts from a sequence's own text: the continuation of the last occurrence of its current suffix.

Prompt lookup (Saxena, 2023) uses n-grams of a fixed length. A suffix automaton (Blumer et al., 1985) finds
the longest suffix that occurred before, of any length, in amortized constant time per token (SAM Decoding, Hu
et al., 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

LATEST = 16
"""Number of suffixes, longest first, whose latest occurrence is recorded; of shorter ones, the first is."""


class SuffixAutomaton:
    """An index of all substrings of a growing text.

    A state represents the substrings that end at the same positions. ``links`` leads to the state of their
    longest common suffix that also occurs elsewhere.

    Attributes:
        tokens: the text.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]  # length of the longest substring of each state
        self._ends = [0]  # end position of its latest or first occurrence, see `LATEST`
        self._last = 0
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._note_latest()
            self._add(token)

    def longest(self) -> tuple[int, int]:
        """Length and earlier end position of the longest suffix that occurred before; (0, 0) if none did."""
        link = self._links[self._last]
        return (self._lengths[link], self._ends[link]) if link > 0 else (0, 0)

    def draft(self, n: int, least: int = 2) -> list[int]:
        """Up to ``n`` tokens that followed the earlier occurrence of the longest repeated suffix.

        Empty if the suffix has fewer than ``least`` tokens. At the end of the text, the copy continues with
        its own tokens, so that a repetition goes on.
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
