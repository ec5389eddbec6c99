"""Masks over the vocabulary of Llama 3 against llama.cpp's, less control tokens.

The vocabulary comes from tools/fetch_vocabs.py; tools/record_grammar_masks.py recorded the masks, and
says which tokens are compared.
"""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from benchmarks.grammar_texts import CASES
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary
from tests.support.paths import DATA, VOCABS

RECORDED = json.loads((DATA / "grammar_masks.json").read_text())
VOCAB = VOCABS / RECORDED["vocabulary"]


def comparable(vocabulary: Vocabulary) -> list[bool]:
    """The tokens that are whole characters of text, or ends of generation."""
    strings = [vocabulary.trie.token_bytes(id) for id in range(vocabulary.n_vocab)]
    return [
        id in vocabulary.end_ids
        or (vocabulary.is_text(id) and data.decode(errors="ignore").encode() == data and 0 not in data)
        for id, data in enumerate(strings)
    ]


@pytest.mark.skipif(not VOCAB.exists(), reason=f"{VOCAB}: not there; tools/fetch_vocabs.py gets it")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_masks_equal_llama_cpp(case) -> None:
    tokenizer = TokenizerBridge.from_gguf(VOCAB)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    state = GrammarState(Grammar.parse(case.gbnf), vocabulary)
    known = np.array(comparable(vocabulary))
    known.resize(32 * vocabulary.n_words)
    bits = np.packbits(known, bitorder="little").view(np.uint32)
    tokens = tokenizer.encode(case.document, add_special=False)
    expected = dict(zip(range(0, len(tokens), RECORDED["step"]), RECORDED["masks"][case.name], strict=True))
    for i, token in enumerate(tokens):
        if i in expected:
            assert zlib.crc32((state.mask() & bits).tobytes()) == expected[i], (
                i,
                tokenizer.decode(tokens[:i]),
            )
        state.advance(token)
    assert state.is_complete
    assert int(np.unpackbits(state.mask().view(np.uint8)).sum()) > 0
