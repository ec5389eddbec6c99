"""Text to token ids and back, from a model file's own vocabulary or from a tokenizer.json.

An encoder (`VocabularyEncoder`, `JsonEncoder`) turns text into ids. Decoding joins the bytes of the tokens; a
character whose bytes are spread over several tokens is returned as a whole, streamed or not.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, Self

from oxillama.base.lazy_import import lazy
from oxillama.errors import TokenizerError
from oxillama.gguf.model_file import ModelFile
from oxillama.text.tokenizer.encoder import Encoder, VocabularyEncoder
from oxillama.text.tokenizer.segmenters.byte_pair import CHAR_TO_BYTE
from oxillama.text.tokenizer.vocabulary import BYTE, CONTROL, HIDDEN, NORMAL, SPACE, SPECIAL, TokenType, Vocab
from oxillama.text.tokenizer.vocabulary_reader import read_vocabulary

unescape: Callable[..., Any] = lazy("oxillama.text.tokenizer.escapes:unescape")
read_json: Callable[..., Any] = lazy("oxillama.text.tokenizer.tokenizer_json:read_tokenizer_json")
unescape_rwkv: Callable[..., Any] = lazy("oxillama.text.tokenizer.segmenters.longest_match:unescape_rwkv")


class Tokenizer:
    """A vocabulary's encoder and decoder.

    Build one with `from_gguf`, `from_metadata` or `from_file`. Safe to share between threads.
    """

    def __init__(self, vocab: Vocab, encoder: Encoder) -> None:
        self.vocab = vocab
        self._encoder = encoder

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """Build from GGUF metadata.

        Args:
            metadata: GGUF key to value; numeric arrays as NumPy arrays, arrays of strings as lists of str
                (bytes that are not UTF-8 as surrogate escapes) or of bytes.

        Raises:
            TokenizerError: The metadata holds no vocabulary, one of an unknown kind, or a malformed one.
        """
        vocab = read_vocabulary(metadata)
        return cls(vocab, VocabularyEncoder(vocab))

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Self:
        """Build from a GGUF file; one with a vocabulary and no tensors will do."""
        with ModelFile.open(path) as file:
            return cls.from_metadata(file.metadata)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None) -> Self:
        """Build from a Hugging Face tokenizer.json.

        Args:
            path: The JSON file.
            metadata: GGUF metadata to take special ids and the end-of-generation set from. Without it they
                come from what the JSON file adds to a text and from well-known token texts.

        Raises:
            ModelFileError: The file cannot be read.
            TokenizerError: The file is no tokenizer, is broken, or has other tokens than the metadata.
        """
        vocab, encoder = read_json(path, metadata)
        return cls(vocab, encoder)

    # ------------------------------------------------------------------ facts

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.vocab.tokens)

    @property
    def bos_id(self) -> int | None:
        """Beginning-of-sequence token; None if the vocabulary has no such token."""
        return self.vocab.special.get("bos")

    @property
    def eos_id(self) -> int | None:
        """End-of-sequence token, or None."""
        return self.vocab.special.get("eos")

    @property
    def eot_id(self) -> int | None:
        """End-of-turn token, or None."""
        return self.vocab.special.get("eot")

    @property
    def unk_id(self) -> int | None:
        """Unknown token."""
        return self.vocab.special.get("unk")

    @property
    def sep_id(self) -> int | None:
        """Separator token."""
        return self.vocab.special.get("sep")

    @property
    def pad_id(self) -> int | None:
        """Padding token."""
        return self.vocab.special.get("pad")

    @property
    def mask_id(self) -> int | None:
        """Mask token."""
        return self.vocab.special.get("mask")

    @property
    def special_ids(self) -> dict[str, int]:
        """All special ids by short name: bos, eos, eot, eom, unk, sep, pad, cls, mask, fim_pre, ..."""
        return dict(self.vocab.special)

    def hidden_ids(self, texts: Iterable[str]) -> dict[int, str]:
        """The texts that are whole special tokens, which `decode` leaves out, by the ids of these tokens."""
        known = {self.vocab.ids[text]: text for text in texts if text in self.vocab.ids}
        return {id: text for id, text in known.items() if self.vocab.types[id] & HIDDEN}

    @property
    def add_bos(self) -> bool:
        """Whether `encode` with `add_special` begins with the beginning-of-sequence token."""
        return self.vocab.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether `encode` with `add_special` ends with the end-of-sequence token."""
        return self.vocab.add_eos

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every token after which generation ends."""
        return self.vocab.eog_ids

    def is_eos(self, id: int) -> bool:
        """Whether generation ends after this token (any of `eog_ids`)."""
        return id in self.vocab.eog_ids

    def is_control(self, id: int) -> bool:
        """Whether the token is a control token, which is not text."""
        return bool(self.token_type(id) & CONTROL)

    def token_type(self, id: int) -> TokenType:
        """The token's type bits."""
        return TokenType(self.vocab.types[self.vocab.checked(id)])

    def token_text(self, id: int) -> str:
        """The token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`)."""
        return self.vocab.tokens[self.vocab.checked(id)]

    def token_id(self, text: str) -> int | None:
        """The id of a token by its vocabulary spelling; None for an unknown spelling."""
        return self.vocab.ids.get(text)

    def token_bytes(self, id: int) -> bytes:
        """The bytes the token adds to a text; a special token adds its name."""
        return self._pieces[self.vocab.checked(id)]

    def vocab_bytes(self) -> list[bytes]:
        """`token_bytes` of every token, computed once; treat the list as read-only."""
        return self._pieces

    @cached_property
    def _pieces(self) -> list[bytes]:
        vocab = self.vocab
        return [piece_bytes(vocab, id) for id in range(len(vocab.tokens))]

    # ------------------------------------------------------------------ encoding

    def encode(
        self, text: str, add_special: bool = True, parse_special: bool = False, *, escaped: bool = False
    ) -> list[int]:
        """Turn text into token ids.

        Args:
            text: Any text without lone surrogates; empty text gives the added tokens alone.
            add_special: Add the tokens that the vocabulary puts around a text (BOS, EOS, SEP).
            parse_special: Encode the names of control tokens in the text (`<|im_end|>`) as these tokens.
                Leave it off for untrusted text.
            escaped: The text has escapes (`oxillama.text.tokenizer.escapes`) in names that stay text.

        Raises:
            TokenizerError: The text holds a lone surrogate or a character the vocabulary cannot express, or a
                token to be added does not exist.
        """
        _check_text(text)
        text, literal = unescape(text) if escaped and not text.isascii() else (text, frozenset())
        return self._encoder.encode(text, add_special, parse_special, literal)

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Ids of two texts with the separators between and around them that cross-encoders are trained with.

        Raises TokenizerError as `encode`.
        """
        _check_text(first)
        _check_text(second)
        return self._encoder.encode_pair(first, second)

    # ------------------------------------------------------------------ decoding

    def decode(
        self,
        ids: Iterable[int],
        skip_special: bool = True,
        *,
        continuing: bool = False,
        clean_spaces: bool = False,
    ) -> str:
        """Turn token ids into text; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: Token ids.
            skip_special: Leave out control and unknown tokens.
            continuing: The ids continue an earlier text: a leading space is text and not the space that
                encoding put in front (SentencePiece).
            clean_spaces: Remove the space before punctuation and contractions, where the vocabulary is of a
                kind for which llama.cpp does so. The text then may differ from what was encoded.
        """
        data = b"".join(self._visible_pieces(ids, skip_special, continuing))
        if clean_spaces and self.vocab.clean_spaces:
            data = clean_up_spaces(data)
        return data.decode("utf-8", "replace")

    def _visible_pieces(self, ids: Iterable[int], skip_special: bool, continuing: bool) -> Iterable[bytes]:
        stream = self.stream_decoder(skip_special, continuing=continuing)
        return map(stream.piece, ids)

    def stream_decoder(
        self, skip_special: bool = True, *, continuing: bool = False, shown: Collection[int] = ()
    ) -> StreamDecoder:
        """A decoder for ids that arrive one at a time; see `StreamDecoder`.

        ``shown`` are special tokens whose names are part of the text even with ``skip_special``.
        """
        return StreamDecoder(self.vocab, self._pieces, skip_special, continuing, shown)

    def encode_rendered(self, text: str, closes: bool = False, *, escaped: bool = False) -> list[int]:
        """Turn text that spells its special tokens, such as a rendered chat, into token ids.

        The names of control tokens are parsed, and the ids begin with the tokens that the vocabulary puts
        before every text exactly once. ``closes`` adds the tokens that the vocabulary puts after every text,
        as for embeddings; ``escaped`` is as for `encode`. Raises TokenizerError as `encode`.
        """
        _check_text(text)
        text, literal = unescape(text) if escaped and not text.isascii() else (text, frozenset())
        opening = self._encoder.opening()
        ids = self._encoder.encode(text, False, True, literal)
        ids = ids if ids[: len(opening)] == opening else opening + ids
        return ids + self.encode("")[len(opening) :] if closes else ids


def first_token(tokenizer: Tokenizer) -> int | None:
    """The BOS token before a text that is run in pieces; None if the vocabulary puts no BOS before a text."""
    with_it, without = tokenizer.encode("a"), tokenizer.encode("a", add_special=False)
    return with_it[0] if len(with_it) > len(without) and with_it[0] != without[0] else None


def _check_text(text: str) -> None:
    """Raise TokenizerError unless `text` is a str that UTF-8 can express."""
    if not isinstance(text, str):
        raise TokenizerError(f"text: expected a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"text: expected text that UTF-8 can express, "
            f"got the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        ) from None


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
