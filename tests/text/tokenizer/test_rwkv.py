"""RWKV's segmenter takes the longest token at each place, in memory that its tokens justify."""

from __future__ import annotations

import tracemalloc

from hypothesis import example, given, strategies as st

from oxillama.errors import TokenizerError
from oxillama.text.tokenizer.segmenters.longest_match import Rwkv
from oxillama.text.tokenizer.vocabulary import NORMAL, Vocab


def vocabulary(tokens: list[str], unk: int | None = None) -> Vocab:
    return Vocab(
        kind="rwkv",
        model="rwkv",
        tokens=tokens,
        ids={token: id for id, token in enumerate(tokens)},
        types=[NORMAL] * len(tokens),
        original_types=[NORMAL] * len(tokens),
        special={} if unk is None else {"unk": unk},
    )


def longest_match(tokens: list[str], text: str, unk: int | None) -> list[int] | None:
    """Ids by trying every token at every place; None where none fits."""
    data, found = text.encode(), []
    while data:
        fitting = [id for id, token in enumerate(tokens) if data.startswith(token.encode())]
        id = max(fitting, key=lambda id: len(tokens[id].encode()), default=unk)
        if id is None:
            return None
        found.append(id)
        data = data[len(tokens[id].encode()) if fitting else 1 :]
    return found


@given(
    st.lists(st.text("abé", min_size=1, max_size=9), min_size=1, max_size=40, unique=True),
    st.text("abcé", max_size=60),
    st.booleans(),
)
@example(["aab", "ab"], "aab", False)  # the longest of an initial is not the last in order
def test_the_longest_token_is_taken(tokens: list[str], text: str, has_unk: bool) -> None:
    unk = 0 if has_unk else None
    out: list[int] = []
    try:
        Rwkv(vocabulary(tokens, unk)).encode(text, out)
    except TokenizerError:
        assert longest_match(tokens, text, unk) is None
    else:
        assert out == longest_match(tokens, text, unk)


def test_a_long_token_takes_memory_in_proportion_to_its_length() -> None:
    long = "ab" * 200_000
    vocab = vocabulary(["a", "b", "ab", long, long + "a"])
    tracemalloc.start()
    try:
        segmenter = Rwkv(vocab)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8 * len(long)
    out: list[int] = []
    segmenter.encode(long + "ab" + long[:-1] + "b", out)
    assert out == [4, 1, 3]
