"""Encodes text with the vocabulary of a GGUF file."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from oxillama.errors import TokenizerError
from oxillama.text.tokenizer.segmenters import segmenter
from oxillama.text.tokenizer.vocabulary import HIDDEN, LSTRIP, PREFIX, RSTRIP, SPECIAL, Vocab

NONE: Set[int] = frozenset()
LITERAL = 2  # marks a character at which no special token begins


class SpecialTokenFinder:
    """Finds special tokens in a text: longer ones first anywhere in it, then from left to right."""

    def __init__(self, vocab: Vocab) -> None:
        self._types = vocab.types
        special = [id for id, kind in enumerate(vocab.types) if kind & SPECIAL]
        special.sort(key=lambda id: -len(vocab.tokens[id].encode("utf-8", "surrogateescape")))
        shown = [id for id in special if not vocab.types[id] & HIDDEN]
        self._groups = tuple(_by_beginning(ids, vocab.tokens) for ids in (shown, special))

    def split(self, text: str, parse_special: bool, literal: Set[int] = NONE) -> list[int | str]:
        """Cut `text` into ids of special tokens and the fragments between them, none of them empty.

        User-defined tokens are always found, control and unknown ones only with `parse_special`. No special
        token begins at the characters `literal`.
        """
        groups = self._groups[parse_special]
        present = [entry for beginning, group in groups.items() if beginning in text for entry in group]
        taken = bytearray(len(text))
        for place in literal:
            taken[place] = LITERAL
        found: list[tuple[int, int, int]] = []
        for _, token, id in sorted(present):
            self._take(text, token, id, taken, found)
        fragments: list[int | str] = []
        position = 0
        for start, end, id in sorted(found):
            if start > position:
                fragments.append(text[position:start])
            fragments.append(id)
            position = end
        if position < len(text):
            fragments.append(text[position:])
        return fragments

    def _take(
        self, text: str, token: str, id: int, taken: bytearray, found: list[tuple[int, int, int]]
    ) -> None:
        """Add the occurrences of `token` in what is not `taken` yet, with the spaces they swallow."""
        kind = self._types[id]
        start = text.find(token)
        while start >= 0:
            end = start + len(token)
            if taken[start] == LITERAL:
                start = text.find(token, start + 1)
                continue
            overlap = taken.find(1, start, end)
            if overlap >= 0:
                end = taken.find(0, overlap)
                if end < 0:
                    return
            else:
                left = start
                while kind & LSTRIP and left and not taken[left - 1] and text[left - 1] in _ASCII_SPACES:
                    left -= 1
                while kind & RSTRIP and end < len(text) and not taken[end] and text[end] in _ASCII_SPACES:
                    end += 1
                taken[left:end] = b"\1" * (end - left)
                found.append((left, end, id))
            start = text.find(token, end)


_ASCII_SPACES = " \t\n\v\f\r"


def _by_beginning(ids: list[int], tokens: list[str]) -> dict[str, list[tuple[int, str, int]]]:
    """(rank, text, id) of tokens, grouped by their first characters: one search rules out a group."""
    groups: dict[str, list[tuple[int, str, int]]] = {}
    for rank, id in enumerate(ids):
        groups.setdefault(tokens[id][:5], []).append((rank, tokens[id], id))
    return groups


class Encoder(Protocol):
    """Turns text into token ids, all of them inside the vocabulary."""

    def encode(
        self, text: str, add_special: bool, parse_special: bool, literal: Set[int] = NONE
    ) -> list[int]:
        """As `Tokenizer.encode`, for valid text; no special token begins at the characters ``literal``."""

    def encode_pair(self, first: str, second: str) -> list[int]:
        """As `Tokenizer.encode_pair`, for texts without lone surrogates."""

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

    def encode(
        self, text: str, add_special: bool, parse_special: bool, literal: Set[int] = NONE
    ) -> list[int]:
        vocab = self._vocab
        out = self.opening() if add_special else []
        after_special = True
        for fragment in self._special_tokens.split(text, parse_special, literal):
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
