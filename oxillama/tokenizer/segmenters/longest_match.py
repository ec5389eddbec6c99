"""Longest match first: BERT's WordPiece within words, and RWKV's world tokens over bytes."""

from __future__ import annotations

import re

from oxillama.errors import TokenizerError
from oxillama.tokenizer.characters import WHITESPACE, base, category, lower, without_accents
from oxillama.tokenizer.segmenters.base import SPACE, WordCache
from oxillama.tokenizer.vocabulary import PREFIX, Vocab


class WordPiece:
    """BERT: lower case, no accents, punctuation and ideographs apart, longest token first.

    Tokens that begin a word are spelled with a leading U+2581 in GGUF, the others without `##`.
    """

    def __init__(self, vocab: Vocab) -> None:
        if "unk" not in vocab.special:
            raise TokenizerError(f"{PREFIX}unknown_token_id: a WordPiece vocabulary needs one")
        self._ids, self._unknown = vocab.ids, vocab.special["unk"]
        self._longest = max(map(len, vocab.tokens))
        self._normal = _BertCharacters(vocab.lowercase, vocab.strip_accents, vocab.decompose)
        self._words = WordCache(self._encode_word)

    def encode(self, text: str, out: list[int]) -> None:
        self._words.extend([word for word in text.translate(self._normal).split(" ") if word], out)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        word = SPACE + word
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                id = self._ids.get(word[start:end])
                if id is not None:
                    break
            else:
                return (self._unknown,)
            found.append(id)
            start = end
        return tuple(found)


class _BertCharacters(dict[int, str]):
    """What each character becomes before words are looked up, worked out when it is first met."""

    def __init__(self, lowercase: bool, strip_accents: bool, decompose: bool = False) -> None:
        self._lowercase, self._strip_accents = lowercase, strip_accents
        self._decompose = decompose and strip_accents

    def __missing__(self, code_point: int) -> str:
        if self._decompose:
            text = "".join(map(self._one, map(ord, without_accents(code_point))))
        else:
            text = self._one(code_point)
        self[code_point] = text
        return text

    def _one(self, code_point: int) -> str:
        c = base(code_point) if self._strip_accents else code_point
        kind = category(c)
        if c in WHITESPACE:
            text = " "
        elif c in (0, 0xFFFD) or kind == "C" or (self._strip_accents and kind == "M" and not self._decompose):
            text = ""
        else:
            text = chr(lower(c) if self._lowercase else c)
            if kind == "P" or (c < 0x7F and kind == "S") or any(a <= c <= b for a, b in _BERT_IDEOGRAPHS):
                text = f" {text} "
        return text


# As in the Hugging Face normalizer: 0x2B920, where Unicode's block begins at 0x2B820.
_BERT_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class Rwkv:
    """RWKV world: the longest token at each place, over bytes."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids: dict[bytes, int] = {}
        self._prefixes: set[bytes] = set()
        for id, text in enumerate(vocab.tokens):
            token = unescape_rwkv(text)
            self._ids[token] = id
            self._prefixes.update(token[:i] for i in range(1, len(token) + 1))
        self._unknown = vocab.special.get("unk")

    def encode(self, text: str, out: list[int]) -> None:
        data = text.encode()
        start = 0
        while start < len(data):
            best, length = self._unknown, 1
            end = start + 1
            while end <= len(data) and data[start:end] in self._prefixes:
                if data[start:end] in self._ids:
                    best, length = self._ids[data[start:end]], end - start
                end += 1
            if best is None:
                raise TokenizerError(f"{PREFIX}tokens: no token begins with the byte 0x{data[start]:02X}")
            out.append(best)
            start += length


def unescape_rwkv(text: str) -> bytes:
    r"""The bytes of an RWKV token, which GGUF spells with \t, \n, \r, \xHH and \ before any other byte."""

    def plain(match: re.Match[bytes]) -> bytes:
        escape = match[0]
        if len(escape) == 4:
            return bytes.fromhex(escape[2:].decode())
        return {b"t": b"\t", b"n": b"\n", b"r": b"\r"}.get(escape[1:], escape[1:])

    return re.sub(
        rb"\\(?:x[0-9A-Fa-f]{2}|.)", plain, text.encode("utf-8", "surrogateescape"), flags=re.DOTALL
    )
