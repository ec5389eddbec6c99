"""Text to token ids and back, from a model file's own vocabulary or from a tokenizer.json.

An encoder (`VocabularyEncoder`, `JsonEncoder`) turns text into ids. Decoding joins the bytes of the tokens; a
character whose bytes are spread over several tokens is returned as a whole, streamed or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oxillama.errors import ChatTemplateError, TokenizerError
from oxillama.gguf.model_file import ModelFile
from oxillama.on_use import on_use
from oxillama.tokenizer.detokenizer import StreamDecoder, clean_up_spaces, piece_bytes
from oxillama.tokenizer.encoder import Encoder, VocabularyEncoder
from oxillama.tokenizer.vocabulary import CONTROL, TokenType, Vocab
from oxillama.tokenizer.vocabulary_reader import read_vocabulary

read_json: Callable[..., Any] = on_use("oxillama.tokenizer.tokenizer_json:read_tokenizer_json")

if TYPE_CHECKING:
    from oxillama.chat.template import ChatTemplate


class TokenizerBridge:
    """A vocabulary's encoder and decoder.

    Build one with `from_gguf`, `from_metadata` or `from_file`. Safe to share between threads.
    """

    def __init__(self, vocab: Vocab, encoder: Encoder, templates: Mapping[str, str] | None = None) -> None:
        self.vocab = vocab
        self._encoder = encoder
        self._templates = dict(templates or {})

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> TokenizerBridge:
        """Build from GGUF metadata.

        Parameters
        ----------
        metadata : mapping
            GGUF key to value; numeric arrays as NumPy arrays, arrays of strings as lists of str (bytes
            that are not UTF-8 as surrogate escapes) or of bytes.

        Raises
        ------
        TokenizerError
            The metadata holds no vocabulary, one of an unknown kind, or a malformed one.
        """
        vocab = read_vocabulary(metadata)
        return cls(vocab, VocabularyEncoder(vocab), _templates(metadata))

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> TokenizerBridge:
        """Build from a GGUF file; one with a vocabulary and no tensors will do."""
        with ModelFile.open(path) as file:
            return cls.from_metadata(file.metadata)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None
    ) -> TokenizerBridge:
        """Build from a Hugging Face tokenizer.json.

        Parameters
        ----------
        path : path
            The JSON file.
        metadata : mapping, optional
            GGUF metadata to take special ids, the end-of-generation set and chat templates from. Without
            it they come from what the JSON file adds to a text and from well-known token texts.

        Raises
        ------
        ModelFileError
            The file cannot be read.
        TokenizerError
            The file is no tokenizer, is broken, or has other tokens than the metadata.
        """
        vocab, encoder = read_json(path, metadata)
        return cls(vocab, encoder, _templates(metadata or {}))

    # ------------------------------------------------------------------ facts

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.vocab.tokens)

    @property
    def bos_id(self) -> int | None:
        """Beginning-of-sequence token, None where there is none."""
        return self.vocab.special.get("bos")

    @property
    def eos_id(self) -> int | None:
        """End-of-sequence token."""
        return self.vocab.special.get("eos")

    @property
    def eot_id(self) -> int | None:
        """End-of-turn token."""
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
        """The id of a token by its vocabulary spelling, None where there is none."""
        return self.vocab.ids.get(text)

    def token_bytes(self, id: int) -> bytes:
        """The bytes the token adds to a text; those of its name for a special token."""
        return self._pieces[self.vocab.checked(id)]

    def vocab_bytes(self) -> list[bytes]:
        """`token_bytes` of every token, computed once; treat the list as read-only."""
        return self._pieces

    @cached_property
    def _pieces(self) -> list[bytes]:
        vocab = self.vocab
        return [piece_bytes(vocab, id) for id in range(len(vocab.tokens))]

    # ------------------------------------------------------------------ encoding

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Turn text into token ids.

        Parameters
        ----------
        text : str
            Any text without lone surrogates; empty text gives the added tokens alone.
        add_special : bool
            Add the tokens that the vocabulary puts around a text (BOS, EOS, SEP).
        parse_special : bool
            Encode the names of control tokens in the text (`<|im_end|>`) as these tokens. Leave it off for
            untrusted text.

        Raises
        ------
        TokenizerError
            The text holds a lone surrogate or a character the vocabulary cannot express, or a token to
            be added does not exist.
        """
        _check_text(text)
        return self._encoder.encode(text, add_special, parse_special)

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

        Parameters
        ----------
        ids : iterable of int
            Token ids.
        skip_special : bool
            Leave out control and unknown tokens.
        continuing : bool
            The ids continue an earlier text: a leading space is text and not the space that encoding
            put in front (SentencePiece).
        clean_spaces : bool
            Remove the space before punctuation and contractions, where the vocabulary is of a kind for
            which llama.cpp does so. The text then may differ from what was encoded.
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

        ``shown`` are special tokens whose names are part of the text all the same.
        """
        return StreamDecoder(self.vocab, self._pieces, skip_special, continuing, shown)

    # ------------------------------------------------------------------ chat

    @property
    def chat_template_names(self) -> list[str]:
        """Names of the chat templates in the file; the unnamed one is "default"."""
        return list(self._templates)

    def chat_template_source(self, name: str) -> str:
        """The text of a chat template of the file. Raises ChatTemplateError if there is none of that name."""
        if name not in self._templates:
            known = ", ".join(self._templates) or "none"
            raise ChatTemplateError(f"chat template: expected one of the file's ({known}), got {name!r}")
        return self._templates[name]

    def chat_template(self, name: str = "default") -> ChatTemplate:
        """A chat template of the file, by name.

        Raises
        ------
        ChatTemplateError
            The file has no such template, or it is not valid.
        """
        from oxillama.chat.template import ChatTemplate  # an engine starts without Jinja

        source = self.chat_template_source(name)
        cache = self.__dict__.setdefault("_compiled_templates", {})
        if name not in cache:
            cache[name] = ChatTemplate(source, self._text_of("bos"), self._text_of("eos"))
        template: ChatTemplate = cache[name]
        return template

    def _text_of(self, name: str) -> str:
        id = self.vocab.special.get(name)
        return "" if id is None else self.vocab.tokens[id]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        template: str = "default",
        **kwargs: Any,
    ) -> str:
        """Render messages with the file's chat template; see `ChatTemplate.render`."""
        return self.chat_template(template).render(
            messages, add_generation_prompt=add_generation_prompt, **kwargs
        )

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Render messages and encode the result, with exactly one BOS where the vocabulary wants one.

        No EOS is added: the turn is the model's to finish. Control tokens named in the messages' own
        text are parsed like the template's, as every chat format in this form has it.
        """
        return self.encode_rendered(self.apply_chat_template(messages, add_generation_prompt, **kwargs))

    def encode_rendered(self, text: str, closes: bool = False) -> list[int]:
        """Encode what a chat template has rendered, as `encode_chat` does.

        ``closes`` adds the tokens that the vocabulary puts behind every text, as for embeddings.
        """
        ids = self.encode(text, add_special=False, parse_special=True)
        opening = self._encoder.opening()
        ids = ids if ids[: len(opening)] == opening else opening + ids
        return ids + self.encode("")[len(opening) :] if closes else ids


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


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; "default" for the unnamed one."""
    key = "tokenizer.chat_template"
    found = {}
    for name, value in metadata.items():
        if name != key and not name.startswith(key + "."):
            continue
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if isinstance(value, str):
            found[name[len(key) + 1 :] or "default"] = value
    return found
