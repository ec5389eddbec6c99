"""Longest match first: BERT's WordPiece within words, and RWKV's world tokens over bytes."""

from __future__ import annotations

import re
from bisect import bisect_right

from oxillama.errors import TokenizerError
from oxillama.text.tokenizer.characters import WHITESPACE, base, category, lower, without_accents
from oxillama.text.tokenizer.segmenters.byte_pair import WordCache
from oxillama.text.tokenizer.vocabulary import PREFIX, SPACE, Vocab


class WordPiece:
    """BERT: lower case, no accents, punctuation and ideographs apart, longest token first.

    Tokens that begin a word are spelled with a leading U+2581 in GGUF, the others without `##`.
    """

    def __init__(self, vocab: Vocab) -> None:
        if "unk" not in vocab.special:
            raise TokenizerError(f"{PREFIX}unknown_token_id: expected a token id (WordPiece), got none")
        self._ids, self._unknown = vocab.ids, vocab.special["unk"]
        self._longest = max(map(len, vocab.tokens))
        self._normal = _BertCharacters(vocab.lowercase, vocab.strip_accents, vocab.decompose)
        self._words = WordCache(self._encode_word)

    def encode(self, text: str, out: list[int]) -> None:
        for word in filter(None, text.translate(self._normal).split(" ")):
            out += self._words[word]

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
    """The replacement of each character before words are looked up, found at its first use."""

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
    """RWKV world: the longest token at each place, over bytes.

    Takes memory in proportion to the bytes of the tokens. Let t be the last token, in order of bytes, that is
    not after the text: every token that the text begins with is t or a prefix of t. So each token has a link
    to the longest token that is a proper prefix of it.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._ids = {unescape_rwkv(text): id for id, text in enumerate(vocab.tokens)}
        self._tokens = sorted(self._ids)
        self._prefix: list[int] = []  # index of the longest token that is a proper prefix, or -1
        self._longest = [0] * 256  # bytes of the longest token, by first byte
        for i, token in enumerate(self._tokens):
            self._prefix.append(self._first_prefix(token, 0, i - 1))
            self._longest[token[0]] = max(self._longest[token[0]], len(token))
        self._unknown = vocab.special.get("unk")

    def encode(self, text: str, out: list[int]) -> None:
        data = text.encode()
        start = 0
        while start < len(data):
            head = data[start : start + self._longest[data[start]]]
            found = self._first_prefix(data, start, bisect_right(self._tokens, head) - 1)
            token = self._tokens[found] if found >= 0 else b""
            id = self._ids.get(token, self._unknown)
            if id is None:
                raise TokenizerError(
                    f"{PREFIX}tokens: expected a token that begins with 0x{data[start]:02X}, got none"
                )
            out.append(id)
            start += len(token) or 1

    def _first_prefix(self, data: bytes, start: int, i: int) -> int:
        """Token ``i``, or the longest of its prefixes, that ``data[start:]`` begins with; -1 for none."""
        while i >= 0 and not data.startswith(self._tokens[i], start):
            i = self._prefix[i]
        return i


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
