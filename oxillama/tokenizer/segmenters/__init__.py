"""Segmenters: text without special tokens in, token ids out; one class per kind of vocabulary.

Each reproduces the choices of llama.cpp's tokenizer of that kind, ties included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from oxillama.on_use import on_use
from oxillama.tokenizer.vocabulary import Vocab


class Segmenter(Protocol):
    """Turns text without special tokens into ids."""

    def encode(self, text: str, out: list[int]) -> None:
        """Append the ids of `text`, which is not empty and holds no lone surrogates, to `out`."""


HERE = "oxillama.tokenizer.segmenters"

_BY_MODEL: dict[str, Callable[[Vocab], Segmenter]] = {
    "gpt2": on_use(f"{HERE}.byte_pair:BytePair"),
    "gemma4": on_use(f"{HERE}.byte_pair:BytePair"),
    "whitespace": on_use(f"{HERE}.marked_texts:WhitespaceWords"),
    "hybriddna": on_use(f"{HERE}.marked_texts:DnaText"),
    "llama": on_use(f"{HERE}.sentence_piece:SentencePiece"),
    "t5": on_use(f"{HERE}.unigram:Unigram"),
    "bert": on_use(f"{HERE}.longest_match:WordPiece"),
    "rwkv": on_use(f"{HERE}.longest_match:Rwkv"),
    "plamo2": on_use(f"{HERE}.unigram:Plamo2"),
}


def segmenter(vocab: Vocab) -> Segmenter:
    """The segmenter for a vocabulary."""
    return _BY_MODEL[vocab.model](vocab)
