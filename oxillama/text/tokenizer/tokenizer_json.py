"""Tokenizers from a Hugging Face tokenizer.json: the `tokenizers` library encodes.

Decoding goes over the bytes of tokens as for a GGUF vocabulary, so that streaming and grammars work alike.
The decoder of the file says which bytes a token stands for.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

from tokenizers import Tokenizer

from oxillama.errors import ModelFileError, OxiLlamaError, TokenizerError
from oxillama.text.tokenizer.encoder import NONE, SpecialTokenFinder
from oxillama.text.tokenizer.special_ids import find_end_tokens, recognise_ids
from oxillama.text.tokenizer.vocabulary import BYTE, BYTE_TOKEN, CONTROL, NORMAL, UNUSED, USER_DEFINED, Vocab
from oxillama.text.tokenizer.vocabulary_reader import read_vocabulary

MOST_CHARACTERS = 1 << 28
"""The maximum length of a file."""
PROBE = "a 1\n\u00e9\u4e2d\U0001f999\ue000\x00"
"""Text with characters that few vocabularies have: encoding it shows whether unknown characters work."""


class JsonEncoder:
    """Encodes with the `tokenizers` library.

    Args:
        library: its tokenizer.
        vocab: its tokens and their types.
        label: the file, for messages.
    """

    def __init__(self, library: Any, vocab: Vocab, label: str) -> None:
        self._n_vocab = len(vocab.tokens)
        self._special_tokens = SpecialTokenFinder(vocab)
        self._label = label
        self._parsing = library
        # Whether special tokens are text is a switch of the whole object: one object for each answer.
        self._plain: Any = Tokenizer.from_str(library.to_str())
        self._plain.encode_special_tokens = True

    def encode(
        self, text: str, add_special: bool, parse_special: bool, literal: Set[int] = NONE
    ) -> list[int]:
        if parse_special and literal:
            return self._encode_with_literals(text, literal)
        library = self._parsing if parse_special else self._plain
        with library_errors(self._label, "text it can encode"):
            ids: list[int] = library.encode(text, add_special_tokens=add_special).ids
        return self._checked(ids)

    def _encode_with_literals(self, text: str, literal: Set[int]) -> list[int]:
        """As `encode`, by the fragments between special tokens: the library cannot leave single ones out."""
        ids: list[int] = []
        for fragment in self._special_tokens.split(text, True, literal):
            ids += [fragment] if isinstance(fragment, int) else self.encode(fragment, False, False)
        return ids

    def encode_pair(self, first: str, second: str) -> list[int]:
        with library_errors(self._label, "texts it can encode"):
            ids: list[int] = self._plain.encode(first, second).ids
        return self._checked(ids)

    def _checked(self, ids: list[int]) -> list[int]:
        if ids and max(ids) >= self._n_vocab:
            raise TokenizerError(
                f"{self._label}: expected token ids from 0 to {self._n_vocab - 1}, got {max(ids)}"
            )
        return ids

    def opening(self) -> list[int]:
        plain, whole = (self.encode("a", add_special, True) for add_special in (False, True))
        starts = (i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
        return whole[: next(starts, 0)]


def read_tokenizer_json(
    path: str | os.PathLike[str], metadata: Mapping[str, Any] | None
) -> tuple[Vocab, JsonEncoder]:
    """The vocabulary and the encoder of a file; see `Tokenizer.from_file`.

    Raises:
        ModelFileError: the file cannot be read.
        TokenizerError: the file is no tokenizer, is broken, or has other tokens than the metadata.
    """
    label = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{label}: expected UTF-8, got another byte at {error.start}") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{label}: cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(text) > MOST_CHARACTERS:
        raise TokenizerError(f"{label}: expected at most {MOST_CHARACTERS} characters, got more")
    with library_errors(label, "a tokenizer.json"):
        document = json.loads(text)
        library = library_of(text, document, label)
        vocab = _vocab_of(library, document, label)
        encoder = JsonEncoder(library, vocab, label)
    for parse_special in (False, True):  # a broken file often fails only when a text is encoded
        encoder.encode(PROBE, True, parse_special)
    _find_special_ids(vocab, encoder, metadata, label)
    return vocab, encoder


@contextmanager
def library_errors(label: str, expected: str) -> Iterator[None]:
    """Turns errors of the library into TokenizerError: Exception, or BaseException for a Rust panic."""
    try:
        yield
    except OxiLlamaError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{label}: expected {expected}, got {error}") from error


def library_of(text: str, document: Any, label: str) -> Any:
    """The library's tokenizer of a file, which neither cuts nor pads. Raises TokenizerError, and whatever the
    library raises."""
    _check_charsmaps(document, label)
    library: Any = Tokenizer.from_str(text)
    library.no_truncation()
    library.no_padding()
    return library


def _check_charsmaps(document: Any, label: str) -> None:
    """Raises TokenizerError for a table of characters that is shorter than it says.

    The library reserves the memory that the table's first four bytes ask for, up to 4 GB, and ends the
    process where it does not get them.
    """
    pending = [document.get("normalizer")] if isinstance(document, dict) else []
    while pending:
        step = pending.pop()
        if isinstance(step, list):
            pending += step
        elif isinstance(step, dict):
            pending += step.values()
            charsmap = step.get("precompiled_charsmap")
            if isinstance(charsmap, str):
                data = base64.b64decode(charsmap)
                size = int.from_bytes(data[:4], "little")
                if size > max(0, len(data) - 4):
                    raise TokenizerError(
                        f"{label}: expected a precompiled_charsmap with {size} bytes of trie, got "
                        f"{max(0, len(data) - 4)}"
                    )


def _vocab_of(library: Any, document: Mapping[str, Any], label: str) -> Vocab:
    ids: dict[str, int] = library.get_vocab(with_added_tokens=True)
    if not ids:
        raise TokenizerError(f"{label}: expected at least one token, got none")
    n_vocab = max(ids.values()) + 1
    if n_vocab > 4 * len(ids) + 1024:
        raise TokenizerError(f"{label}: expected ids near 0 to {len(ids) - 1}, got {n_vocab - 1}")
    tokens = [f"[EMPTY_{id}]" for id in range(n_vocab)]
    types = [UNUSED] * n_vocab
    decoder = json.dumps(document.get("decoder"))
    kind = "bpe" if '"ByteLevel"' in decoder else "spm"
    has_bytes = '"ByteFallback"' in decoder
    for text, id in ids.items():
        tokens[id] = text
        types[id] = BYTE if has_bytes and BYTE_TOKEN.fullmatch(text) else NORMAL
    for id, added in library.get_added_tokens_decoder().items():
        types[id] = CONTROL if added.special else USER_DEFINED
    if '"WordPiece"' in decoder:
        kind = "wordpiece"
        _respell_words(tokens, types)
    prefix = kind == "spm" and '"Strip"' in decoder
    return Vocab(
        kind=kind,
        model="tokenizer.json",
        tokens=tokens,
        ids=ids,
        types=types,
        original_types=list(types),
        escape_spaces=kind != "bpe",
        add_space_prefix=prefix or '"Metaspace"' in decoder,
    )


def _respell_words(tokens: list[str], types: list[int]) -> None:
    """Respells tokens as GGUF does: U+2581 before those that begin a word, no `##` before the others."""
    for id, text in enumerate(tokens):
        if types[id] == NORMAL:
            tokens[id] = text[2:] if text.startswith("##") else "\u2581" + text


def _find_special_ids(
    vocab: Vocab, encoder: JsonEncoder, metadata: Mapping[str, Any] | None, label: str
) -> None:
    added = encoder.encode("", add_special=True, parse_special=True)
    if metadata and "tokenizer.ggml.tokens" in metadata:
        model, n_vocab = read_vocabulary(metadata), len(vocab.tokens)
        if len(model.tokens) < n_vocab:
            raise TokenizerError(f"{label}: expected at most {len(model.tokens)} tokens, got {n_vocab}")
        outside = {*model.special.values(), *model.eog_ids, *model.suppress_ids} - set(range(n_vocab))
        if outside:
            raise TokenizerError(f"{label}: expected the special token {min(outside)}, got {n_vocab} tokens")
        vocab.special, vocab.eog_ids, vocab.suppress_ids = model.special, model.eog_ids, model.suppress_ids
    else:
        if added:
            vocab.special["bos"] = added[0]
        if len(added) > 1:
            vocab.special["eos"] = added[-1]
        recognise_ids(vocab)
        find_end_tokens(vocab)
    vocab.add_bos = bool(added) and added[0] == vocab.special.get("bos")
    vocab.add_eos = len(added) > 1 and added[-1] == vocab.special.get("eos")
