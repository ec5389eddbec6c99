"""Lookup drafts: a suffix automaton against a search of the text."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from oxillama.speculation.lookup import SuffixAutomaton

TEXTS = st.lists(st.integers(0, 2), max_size=60)


def longest(tokens: list[int]) -> int:
    """Length of the longest ending that occurs before."""
    n = len(tokens)
    return max(
        (m for m in range(1, n) if any(tokens[i : i + m] == tokens[n - m :] for i in range(n - m))), default=0
    )


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_the_longest_ending_that_occurred_before_is_found(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for i, token in enumerate(tokens):
        automaton.extend([token])
        text = tokens[: i + 1]
        length, end = automaton.longest()
        assert length == longest(text)
        assert end < len(text) or not length
        assert text[end - length : end] == text[len(text) - length :]


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(1, 20))
def test_a_draft_is_what_followed(tokens: list[int], n: int) -> None:
    automaton = SuffixAutomaton(tokens)
    draft, (length, end) = automaton.draft(n), automaton.longest()
    if length < 2:
        assert draft == []
        return
    assert len(draft) == n
    assert all(token == (tokens + draft)[end + i] for i, token in enumerate(draft))
    assert automaton.tokens == tokens


def test_the_latest_occurrence_is_copied() -> None:
    assert SuffixAutomaton([1, 2, 3, 8, 1, 2, 4, 7, 1, 2]).draft(3) == [4, 7, 1]
    assert SuffixAutomaton([1, 2, 3, 7, 2, 3, 8, 1, 2, 3]).draft(2) == [7, 2]  # the longest goes first


def test_a_repetition_goes_on() -> None:
    assert SuffixAutomaton([5, 6, 7, 5, 6, 7, 5, 6]).draft(7) == [7, 5, 6, 7, 5, 6, 7]


def test_short_endings_are_no_draft() -> None:
    assert SuffixAutomaton([1, 2, 3, 1]).draft(4) == []
    assert SuffixAutomaton([1, 2, 3, 1]).draft(4, least=1) == [2, 3, 1, 2]
    assert SuffixAutomaton([]).draft(4) == []


def test_states_are_linear_in_the_text() -> None:
    """At most 2 n - 1 states for n tokens (Blumer et al., 1985)."""
    tokens = [i * i % 7 for i in range(3000)] + [0] * 3000
    assert len(SuffixAutomaton(tokens)._links) <= 2 * len(tokens)
