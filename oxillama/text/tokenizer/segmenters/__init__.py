"""Segmenters: text without special tokens in, token ids out; one class per kind of vocabulary.

Each reproduces the choices of llama.cpp's tokenizer of that kind, ties included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from oxillama.base.lazy_import import lazy
from oxillama.text.tokenizer.vocabulary import Vocab


class Segmenter(Protocol):
    """Turns text without special tokens into ids."""

    def encode(self, text: str, out: list[int]) -> None:
        """Append the ids of `text`, which is not empty and holds no lone surrogates, to `out`."""


HERE = "oxillama.text.tokenizer.segmenters"

_BY_MODEL: dict[str, Callable[[Vocab], Segmenter]] = {
    "gpt2": lazy(f"{HERE}.byte_pair:BytePair"),
    "gemma4": lazy(f"{HERE}.byte_pair:BytePair"),
    "whitespace": lazy(f"{HERE}.marked_texts:WhitespaceWords"),
    "hybriddna": lazy(f"{HERE}.marked_texts:DnaText"),
    "llama": lazy(f"{HERE}.sentence_piece:SentencePiece"),
    "t5": lazy(f"{HERE}.unigram:Unigram"),
    "bert": lazy(f"{HERE}.longest_match:WordPiece"),
    "rwkv": lazy(f"{HERE}.longest_match:Rwkv"),
    "plamo2": lazy(f"{HERE}.unigram:Plamo2"),
}


def segmenter(vocab: Vocab) -> Segmenter:
    """The segmenter for a vocabulary."""
    return _BY_MODEL[vocab.model](vocab)
