"""Tokenizers from a Hugging Face tokenizer.json: the `tokenizers` library encodes, the bridge does the rest.

Encoding is that library's, to the token. Decoding goes over the bytes of tokens as for a GGUF vocabulary,
so that streaming and grammars work alike; what kind of bytes a token spells is read off the decoder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from oxillama.errors import ModelFileError, TokenizerError
from oxillama.tokenizer.bridge import TokenizerBridge, check_text
from oxillama.tokenizer.vocabulary import BYTE, BYTE_TOKEN, CONTROL, NORMAL, UNUSED, USER_DEFINED, Vocab


class JsonTokenizer(TokenizerBridge):
    """A tokenizer.json; see `TokenizerBridge.from_file`."""

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None, templates: Mapping[str, str]
    ) -> JsonTokenizer:
        """Read the file.

        Raises
        ------
        ModelFileError
            The file cannot be read.
        TokenizerError
            It is not a tokenizer, or not the one the metadata belongs to.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ModelFileError(f"{os.fspath(path)}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{os.fspath(path)}: not UTF-8 at byte {error.start}") from error
        try:
            library: Any = Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"{os.fspath(path)}: not a tokenizer.json: {error}") from error
        library.no_truncation()
        library.no_padding()
        vocab = _vocab_of(library, json.loads(text))
        _find_special_ids(vocab, library, metadata)
        return cls(vocab, library, templates)

    def __init__(self, vocab: Vocab, library: Any, templates: Mapping[str, str]) -> None:
        super().__init__(vocab, _Refusing(), templates)
        self._library = library
        # Whether special tokens are text is a switch of the whole object: one object for each answer.
        self._library_plain = Tokenizer.from_str(library.to_str())
        self._library_plain.encode_special_tokens = True

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        check_text(text)
        library = self._library if parse_special else self._library_plain
        ids: list[int] = library.encode(text, add_special_tokens=add_special).ids
        return ids

    def _opening(self) -> list[int]:
        opening: list[int] = self._library.encode("", add_special_tokens=True).ids[:1]
        return opening


class _Refusing:
    """Stands where a segmenter would be; encoding never gets there."""

    def encode(self, text: str, out: list[int]) -> None:
        raise AssertionError("a tokenizer.json encodes by itself")


def _vocab_of(library: Any, document: Mapping[str, Any]) -> Vocab:
    ids: dict[str, int] = library.get_vocab(with_added_tokens=True)
    if not ids:
        raise TokenizerError("tokenizer.json: the vocabulary is empty")
    n_vocab = max(ids.values()) + 1
    if n_vocab > 4 * len(ids) + 1024:
        raise TokenizerError(f"tokenizer.json: {len(ids)} tokens with ids up to {n_vocab - 1}")
    tokens = [f"[EMPTY_{id}]" for id in range(n_vocab)]
    types = [UNUSED] * n_vocab
    kind = "bpe" if '"ByteLevel"' in json.dumps(document.get("decoder")) else "spm"
    has_bytes = '"ByteFallback"' in json.dumps(document.get("decoder"))
    for text, id in ids.items():
        tokens[id] = text
        types[id] = BYTE if has_bytes and BYTE_TOKEN.fullmatch(text) else NORMAL
    for id, added in library.get_added_tokens_decoder().items():
        types[id] = CONTROL if added.special else USER_DEFINED
    if '"WordPiece"' in json.dumps(document.get("decoder")):
        kind = "wordpiece"
        _respell_words(tokens, types)
    prefix = kind == "spm" and '"Strip"' in json.dumps(document.get("decoder"))
    return Vocab(
        kind=kind,
        model="tokenizer.json",
        tokens=tokens,
        ids=ids,
        types=types,
        original_types=list(types),
        escape_spaces=kind != "bpe",
        add_space_prefix=prefix or '"Metaspace"' in json.dumps(document.get("decoder")),
    )


def _respell_words(tokens: list[str], types: list[int]) -> None:
    """From `##` for what continues a word to U+2581 for what begins one, as GGUF spells it."""
    for id, text in enumerate(tokens):
        if types[id] == NORMAL:
            tokens[id] = text[2:] if text.startswith("##") else "\u2581" + text


def _find_special_ids(vocab: Vocab, library: Any, metadata: Mapping[str, Any] | None) -> None:
    added: list[int] = library.encode("", add_special_tokens=True).ids
    if metadata and "tokenizer.ggml.tokens" in metadata:
        told = Vocab.from_metadata(metadata)
        if len(told.tokens) < len(vocab.tokens):
            raise TokenizerError(
                f"tokenizer.json: {len(vocab.tokens)} tokens, the model's vocabulary has {len(told.tokens)}"
            )
        vocab.special, vocab.eog_ids, vocab.suppress_ids = told.special, told.eog_ids, told.suppress_ids
    else:
        if added:
            vocab.special["bos"] = added[0]
        if len(added) > 1:
            vocab.special["eos"] = added[-1]
        vocab.recognise_ids()
        vocab.find_end_tokens()
    vocab.add_bos = bool(added) and added[0] == vocab.special.get("bos")
    vocab.add_eos = len(added) > 1 and added[-1] == vocab.special.get("eos")
