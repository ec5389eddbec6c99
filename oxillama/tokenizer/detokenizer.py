"""Token ids to text: the bytes of each token, joined, and characters only once they are whole."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection
from typing import Any

from oxillama.errors import TokenizerError
from oxillama.on_use import on_use
from oxillama.tokenizer.segmenters.byte_pair import CHAR_TO_BYTE
from oxillama.tokenizer.vocabulary import BYTE, HIDDEN, NORMAL, SPACE, SPECIAL, Vocab

unescape_rwkv: Callable[..., Any] = on_use("oxillama.tokenizer.segmenters.longest_match:unescape_rwkv")


class StreamDecoder:
    """Incremental decoder: the concatenation of what it returns equals one `decode` of all ids."""

    def __init__(
        self,
        vocab: Vocab,
        pieces: list[bytes],
        skip_special: bool,
        continuing: bool,
        shown: Collection[int] = (),
    ) -> None:
        self._shown = shown
        self._vocab, self._pieces = vocab, pieces
        self._skip_special = skip_special
        # Encoding put a space in front of the text; the first visible piece gives it back.
        self._strip = vocab.add_space_prefix and not continuing
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Take the next token; return the text now complete, which may be empty."""
        return self._utf8.decode(self.piece(id))

    def flush(self) -> str:
        """End the stream; return the rest of the text, incomplete characters as U+FFFD."""
        return self._utf8.decode(b"", final=True)

    @property
    def undecoded(self) -> bytes:
        """Bytes of a character that is not whole."""
        return self._utf8.getstate()[0]

    def restore(self, undecoded: bytes) -> None:
        """Begin with the `undecoded` bytes of another decoder; TokenizerError if they begin no character."""
        self._utf8.reset()
        if self._utf8.decode(undecoded):
            raise TokenizerError(f"stream: expected the beginning of a character, got {undecoded!r:.80}")
        self._strip = False

    def piece(self, id: int) -> bytes:
        """Take the next token; return its bytes, complete characters or not."""
        if type(id) is not int or not 0 <= id < len(self._pieces):  # a call less for each token
            id = self._vocab.checked(id)
        piece = self._pieces[id]
        if self._vocab.types[id] & HIDDEN and self._vocab.kind != "rwkv":
            return b"" if self._skip_special and id not in self._shown else piece
        if self._strip and piece:
            self._strip = False
            return piece.removeprefix(b" ")
        return piece


def piece_bytes(vocab: Vocab, id: int) -> bytes:
    """The bytes that token `id` stands for."""
    kind, text = vocab.types[id], vocab.tokens[id]
    if vocab.kind == "rwkv":
        plain: bytes = unescape_rwkv(text)
        return plain
    if kind & SPECIAL:
        return text.encode("utf-8", "surrogateescape")
    if kind & BYTE:
        return bytes([vocab.byte_of(id)])
    if vocab.kind == "plamo2":
        return text.encode("utf-8", "surrogateescape")
    if not kind & NORMAL:
        return b""  # unused
    if vocab.kind == "bpe" and not vocab.escape_spaces:
        if vocab.model == "hybriddna" and id > vocab.ids.get("<oov>", len(vocab.tokens)):
            text = text.removesuffix("\ue000")
        try:
            return text.translate(CHAR_TO_BYTE).encode("latin-1")
        except UnicodeEncodeError:  # an added token that is not spelled in the byte alphabet
            return text.encode("utf-8", "surrogateescape")
    return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def clean_up_spaces(data: bytes) -> bytes:
    """Remove the spaces that WordPiece-like decoding leaves: before `?!.,`, around a lone apostrophe,
    and before `'s`, `'m`, `'re`, `'ve`."""
    data = re.sub(rb" (?=[?!.,])", b"", data)
    data = re.sub(rb" ' ", b"'", data)
    return re.sub(rb" (?='(?:[sm]|re|ve))", b"", data)
