"""A vocabulary: tokens with their types and scores, special ids, and the rules for texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntFlag
from operator import index

from oxillama.base.config.checks import shown
from oxillama.errors import TokenizerError
from oxillama.text.tokenizer.pretokenizers import PreTokenizer

PREFIX = "tokenizer.ggml."

SPACE = "\u2581"  # stands for a space in tokens

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntFlag):
    """The type of a token; a token may have several types after mislabelled ones are corrected."""

    UNDEFINED = 0
    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32
    LSTRIP = 128  # swallows the spaces on its left when it is found in a text
    RSTRIP = 256  # ... on its right


# The types as plain ints, for loops over whole vocabularies: the enum's operators are slow.
UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE, LSTRIP, RSTRIP = (int(bit) for bit in TokenType if bit)
SPECIAL = CONTROL | USER_DEFINED | UNKNOWN  # found whole in a text
HIDDEN = CONTROL | UNKNOWN  # not part of the text a user sees


@dataclass
class Vocab:
    """The tokens of one vocabulary and the rules that belong to it.

    Attributes:
        kind: bpe, spm (SentencePiece BPE), unigram, wordpiece, rwkv or plamo2.
        model: The file's `tokenizer.ggml.model`.
        tokens: Text of each token; bytes that are not UTF-8 as surrogate escapes.
        ids: Token text to id.
        types: `TokenType` bits of each token.
        original_types: The same before mislabelled tokens were corrected.
        scores: Score of each token, exactly as stored in float32.
        merges: BPE merges, best first, as "left right".
        special: Special ids present, by short name: bos, eos, eot, eom, unk, sep, pad, cls, mask, fim_*.
        eog_ids: Tokens that end generation.
    """

    kind: str
    model: str
    tokens: list[str]
    ids: dict[str, int]
    types: list[int]
    original_types: list[int]
    scores: list[float] | None = None
    merges: list[str] = field(default_factory=list)
    pre: PreTokenizer | None = None
    pre_name: str | None = None
    special: dict[str, int] = field(default_factory=dict)
    eog_ids: frozenset[int] = frozenset()
    suppress_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False
    remove_extra_spaces: bool = False
    escape_spaces: bool = True
    clean_spaces: bool = False
    lowercase: bool = True
    strip_accents: bool = True
    decompose: bool = False
    charsmap: bytes = b""

    def present(self, texts: Iterable[str]) -> list[int]:
        """The ids of those texts that are tokens."""
        return [self.ids[text] for text in texts if text in self.ids]

    def checked(self, id: int) -> int:
        """`id`. Raises TokenizerError if the vocabulary has no such token."""
        try:
            found = index(id)
        except TypeError:
            found = -1
        if not 0 <= found < len(self.tokens):
            raise TokenizerError(
                f"token id: expected an integer from 0 to {len(self.tokens) - 1}, got {shown(id)}"
            )
        return found

    def byte_of(self, id: int) -> int:
        """The byte of a token of type BYTE."""
        match = BYTE_TOKEN.fullmatch(self.tokens[id])
        if match is None:
            raise TokenizerError(
                f"{PREFIX}tokens: expected byte token {id} to look like <0x0A>, got {self.tokens[id]!r}"
            )
        return int(match[1], 16)
