"""Encodes text with the vocabulary of a GGUF file."""

from __future__ import annotations

from typing import Protocol

from oxillama.errors import TokenizerError
from oxillama.tokenizer.segmenters import segmenter
from oxillama.tokenizer.special_tokens import SpecialTokenFinder
from oxillama.tokenizer.vocabulary import PREFIX, Vocab


class Encoder(Protocol):
    """Turns text into token ids, all of them inside the vocabulary."""

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """As `TokenizerBridge.encode`, for text without lone surrogates."""

    def encode_pair(self, first: str, second: str) -> list[int]:
        """As `TokenizerBridge.encode_pair`, for texts without lone surrogates."""

    def opening(self) -> list[int]:
        """The tokens that are added before every text."""


class VocabularyEncoder:
    """Finds special tokens, which cut the text into fragments, and segments each fragment.

    As llama.cpp does, token for token.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._segmenter = segmenter(vocab)
        self._special_tokens = SpecialTokenFinder(vocab)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        vocab = self._vocab
        out = self.opening() if add_special else []
        after_special = True
        for fragment in self._special_tokens.split(text, parse_special):
            if isinstance(fragment, int):
                out.append(fragment)
                after_special = True
                continue
            if after_special and vocab.kind == "spm" and vocab.add_space_prefix:
                fragment = " " + fragment
            self._segmenter.encode(fragment, out)
            after_special = False
        return out + self._closing() if add_special else out

    def opening(self) -> list[int]:
        kind, add = self._vocab.kind, self._vocab.add_bos
        if kind == "wordpiece" or (add and kind in ("bpe", "spm", "unigram")):
            return [self._required("bos")]
        return []

    def encode_pair(self, first: str, second: str) -> list[int]:
        # opening, first, closing, separator, second, closing; WordPiece closes texts with its separator
        apart = self._vocab.add_sep and self._vocab.kind != "wordpiece"
        separator = [self._required("sep")] if apart else []
        ids = self.encode(first, True, False) + separator
        return ids + self.encode(second, False, False) + self._closing()

    def _closing(self) -> list[int]:
        kind, add = self._vocab.kind, self._vocab.add_eos
        if kind == "wordpiece":
            return [self._required("sep")]
        if add and kind in ("bpe", "spm", "unigram"):
            return [self._required("eos")]
        return []

    def _required(self, name: str) -> int:
        id = self._vocab.special.get(name)
        if id is None:
            raise TokenizerError(f"{PREFIX}{name}_token_id: expected a token to add to a text, got none")
        return id
