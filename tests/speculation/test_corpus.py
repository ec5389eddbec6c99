"""Drafts out of a corpus: the suffix array against a search of the texts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from oxillama.speculation.corpus import DEPTH, MOST_PLACES, Corpus

TEXT = st.lists(st.integers(0, 2), max_size=25)


def places(texts: list[list[int]], ending: list[int]) -> list[tuple[int, ...]]:
    """What follows each occurrence of an ending, to the end of its text."""
    n = len(ending)
    return [
        tuple(text[i + n :]) for text in texts for i in range(len(text) - n + 1) if text[i : i + n] == ending
    ]


def longest(texts: list[list[int]], tokens: list[int]) -> int:
    """Length of the longest ending of ``tokens`` that occurs."""
    return max((n for n in range(1, len(tokens) + 1) if places(texts, tokens[-n:])), default=0)


@settings(max_examples=400, deadline=None)
@given(st.lists(TEXT, max_size=4), TEXT)
def test_the_longest_ending_is_found_wherever_it_is(texts: list[list[int]], tokens: list[int]) -> None:
    corpus = Corpus(texts)
    length, found = corpus.longest(tokens)
    assert length == longest(texts, tokens)
    assert len(found) == (len(places(texts, tokens[-length:])) if length else 0)
    assert corpus.n_tokens == sum(map(len, texts))


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT, max_size=4), TEXT, st.integers(1, 6), st.integers(1, 4))
def test_a_draft_is_what_follows_most_often(
    texts: list[list[int]], tokens: list[int], n: int, least: int
) -> None:
    draft = Corpus(texts).draft(tokens, n, least)
    length = longest(texts, tokens)
    if length < least:
        assert draft == []
        return
    following = places(texts, tokens[-length:])
    for token in draft:
        heads = [text[0] for text in following if text]
        assert heads.count(token) == max(map(heads.count, heads))
        following = [text[1:] for text in following if text[:1] == (token,)]
    assert len(draft) == n or not any(following)


def test_a_draft_ends_with_its_text() -> None:
    corpus = Corpus([[1, 2, 3, 4], [9, 8, 7]])
    assert corpus.draft([1, 2], 8) == [3, 4]
    assert corpus.draft([3, 4], 8) == []
    assert corpus.draft([4, 9], 8) == []  # no text has both
    assert corpus.draft([0, 9, 8], 8) == [7]


def test_endings_beyond_the_depth_are_not_told_apart() -> None:
    text = [*range(1000)]
    length, found = Corpus([text]).longest(text[:500])
    assert (length, found.tolist()) == (DEPTH, [501])


def test_a_common_ending_asks_a_few_places_for_what_follows() -> None:
    corpus = Corpus([[1, 2, 3] * 500 + [1, 2, 4] * 900])
    length, found = corpus.longest([7, 1, 2])
    assert (length, len(found)) == (2, MOST_PLACES)
    assert corpus.draft([7, 1, 2], 1) == [4]


def test_an_index_takes_eight_bytes_a_token() -> None:
    tokens = np.random.default_rng(0).integers(0, 50, 10_000)
    assert Corpus([tokens.tolist()]).nbytes <= 8 * 10_002
    assert Corpus([]).draft([1, 2, 3], 4) == []
