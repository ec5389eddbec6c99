"""Segmenters: text without special tokens in, token ids out; one class per kind of vocabulary.

Each reproduces the choices of llama.cpp's tokenizer of that kind, ties included.
"""

from __future__ import annotations

from collections.abc import Callable

from oxillama.tokenizer.segmenters.base import Segmenter
from oxillama.tokenizer.segmenters.byte_pair import BytePair, DnaText, SentencePiece, WhitespaceWords
from oxillama.tokenizer.segmenters.longest_match import Rwkv, WordPiece
from oxillama.tokenizer.segmenters.unigram import Plamo2, Unigram
from oxillama.tokenizer.vocabulary import Vocab

_BY_MODEL: dict[str, Callable[[Vocab], Segmenter]] = {
    "gpt2": BytePair,
    "gemma4": BytePair,
    "whitespace": WhitespaceWords,
    "hybriddna": DnaText,
    "llama": SentencePiece,
    "t5": Unigram,
    "bert": WordPiece,
    "rwkv": Rwkv,
    "plamo2": Plamo2,
}


def segmenter(vocab: Vocab) -> Segmenter:
    """The segmenter for a vocabulary."""
    return _BY_MODEL[vocab.model](vocab)
