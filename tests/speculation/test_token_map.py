"""Tokens that two vocabularies share, and the spelling of all others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama.errors import ConfigError
from oxillama.speculation.token_map import LEAST_SHARE, TokenMap, same_tokens
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support.vocabularies import BYTE, CONTROL, NORMAL, UNUSED, metadata

LETTERS = "abcdefgh"
WORDS = st.lists(st.text(LETTERS, min_size=2, max_size=4), unique=True, max_size=30)


def vocabulary(tokens: list[str], types: dict[str, int] | None = None, **more: object) -> TokenizerBridge:
    """A byte-level vocabulary; ``types`` of those that are no text."""
    kinds = [(types or {}).get(token, NORMAL) for token in tokens]
    return TokenizerBridge.from_metadata(metadata("gpt2", tokens, kinds, pre="gpt-2", merges=[], **more))


def sentence_piece(tokens: list[str], types: dict[str, int]) -> TokenizerBridge:
    kinds = [types.get(token, NORMAL) for token in tokens]
    scores = np.zeros(len(tokens), np.float32)
    return TokenizerBridge.from_metadata(metadata("llama", tokens, kinds, scores=scores))


@settings(max_examples=200, deadline=None)
@given(WORDS, WORDS, st.randoms())
def test_tokens_are_mapped_or_spelled(ours: list[str], theirs: list[str], random: object) -> None:
    shared = [a + b for a in "xyz" for b in "xyz"] * (len(ours) + len(theirs) > 0)
    shared += [a + b + c for a in "uvw" for b in "uvw" for c in "uvw"]
    target = vocabulary([*LETTERS, *"uvwxyz", *shared, *ours])
    tokens = [*LETTERS, *"uvwxyz", *shared, *theirs]
    random.shuffle(tokens)  # type: ignore[attr-defined]
    draft = vocabulary(tokens)
    found = TokenMap("draft", draft, target)
    assert {target.token_text(id): draft.token_text(other) for id, other in found.draft_of.items()} == {
        text: text for text in set(target.vocab.tokens) & set(tokens)
    }
    for id in range(target.n_vocab):
        assert b"".join(map(draft.token_bytes, found.spell(id))) == target.token_bytes(id)
        assert (len(found.spell(id)) == 1) == (id in found.draft_of)
    row = np.arange(draft.n_vocab, dtype=np.float32)
    scattered = found.scattered(row)
    for id in range(target.n_vocab):
        assert scattered[id] == (row[found.draft_of[id]] if id in found.draft_of else -np.inf)


def test_the_longest_tokens_spell() -> None:
    found = TokenMap("draft", vocabulary([*"abcd", "ab", "abc", "cd"]), vocabulary([*"abcd", "abcdab", "ab"]))
    draft = {"abc": 5, "d": 3, "ab": 4}
    assert found.spell(4) == [draft["abc"], draft["d"], draft["ab"]]


def test_kinds_are_told_apart() -> None:
    types = {"<s>": CONTROL, "gone": UNUSED}
    target = vocabulary([*"<>sx", "<s>", "gone", "<x>"], types)
    draft = vocabulary(["<x>", "gone", "<s>", *"<>sx"], {"<x>": CONTROL, **types})
    found = TokenMap("draft", draft, target)
    assert found.draft_of == {0: 3, 1: 4, 2: 5, 3: 6, 4: 2}  # "<x>" is text in one and control in the other
    assert found.spell(6) == [3, 6, 4]
    assert found.spell(5) == []  # stands for nothing
    assert found.spell(99) == []


def test_control_tokens_of_one_role_are_the_same() -> None:
    begin, end = {"<s>": CONTROL, "</s>": CONTROL}, {"<|b|>": CONTROL, "<|e|>": CONTROL}
    target = vocabulary([*"ab", "<s>", "</s>"], begin, bos_token_id=2, eos_token_id=3)
    draft = vocabulary(["<|e|>", "<|b|>", *"ba"], end, bos_token_id=1, eos_token_id=0)
    assert TokenMap("draft", draft, target).draft_of == {0: 3, 1: 2, 2: 1, 3: 0}
    without = vocabulary([*"ab<>s"])
    assert TokenMap("draft", without, target).spell(2) == []  # an opening that the draft does not know
    assert TokenMap("draft", draft, target).opening == []
    adds = vocabulary(["<|e|>", "<|b|>", *"ba"], end, bos_token_id=1, eos_token_id=0, add_bos_token=True)
    assert TokenMap("draft", adds, target).opening == [1]


def test_a_byte_stands_for_its_text_where_there_is_no_such() -> None:
    bytes_of = {"<0x0A>": BYTE, "<0x61>": BYTE, "<unk>": 2}
    with_bytes = sentence_piece(["<unk>", "<0x0A>", "<0x61>", *"abc"], bytes_of)
    without = vocabulary([*"cba", "Ċ"])
    assert TokenMap("bytes", with_bytes, without).draft_of == {0: 5, 1: 4, 2: 3, 3: 1}
    back = TokenMap("text", without, with_bytes).draft_of
    assert back == {3: 2, 4: 1, 5: 0, 1: 3}
    both = sentence_piece(["<unk>", "<0x0A>", "\n", *"abc"], {"<unk>": 2, "<0x0A>": BYTE})
    assert TokenMap("bytes", with_bytes, both).draft_of == {0: 0, 2: 1, 3: 3, 4: 4, 5: 5}


def test_too_little_in_common_is_refused_with_the_share() -> None:
    letters = [*"abcdefgh"]
    more = [a + b for a in "abcd" for b in "ab"]
    with pytest.raises(ConfigError, match=r"at least 50% of the text tokens of small.gguf .* got 47%"):
        TokenMap("small.gguf", vocabulary([*letters[:7], *more]), vocabulary([*letters, "xyz", *"ABCDEFGHI"]))
    with pytest.raises(ConfigError, match=r"a token for every byte .* for 1, such as 0x68"):
        TokenMap("small.gguf", vocabulary([*letters[:7], *more]), vocabulary([*letters, *more]))
    assert LEAST_SHARE == 0.5


def test_same_tokens() -> None:
    target = vocabulary([*"abc"])
    assert same_tokens(vocabulary([*"abc"]), target)
    assert same_tokens(vocabulary([*"abcd"]), target)
    assert not same_tokens(vocabulary([*"ab"]), target)
    assert not same_tokens(vocabulary([*"acb"]), target)
