"""Reads the vocabulary of a GGUF file and checks all of it.

Read from the `tokenizer.ggml.*` metadata only, by the rules of llama.cpp (src/llama-vocab.cpp as of
llama-cpp-python 0.3.36), including its corrections of mislabelled tokens. Where llama.cpp would abort,
crash or silently fall back on a malformed file, `TokenizerError` names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np

from oxillama.errors import TokenizerError
from oxillama.gguf.metadata import Metadata
from oxillama.text.tokenizer.pretokenizers import pre_tokenizer
from oxillama.text.tokenizer.special_ids import (
    INTEGERS,
    find_end_tokens,
    mark_space_swallowers,
    read_special_ids,
    recognise_ids,
)
from oxillama.text.tokenizer.vocabulary import (
    BYTE,
    BYTE_TOKEN,
    CONTROL,
    NORMAL,
    PREFIX,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocab,
)

_GGUF_BYTE = 6
_GGUF_TYPES = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER_DEFINED, 5: UNUSED, _GGUF_BYTE: BYTE}


_BPE: tuple[str, dict[str, int], dict[str, Any]] = ("bpe", {"bos": 11, "eos": 11}, {})
_BERT_IDS = {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}
_MODELS: dict[str, tuple[str, dict[str, int], dict[str, Any]]] = {
    "llama": ("spm", {"bos": 1, "eos": 2, "unk": 0}, {"add_bos": True, "add_space_prefix": True}),
    "gpt2": _BPE,
    "hybriddna": _BPE,
    "whitespace": _BPE,
    "gemma4": ("bpe", {}, {}),
    "bert": ("wordpiece", _BERT_IDS, {"add_bos": True, "add_sep": True, "clean_spaces": True}),
    "t5": ("unigram", {"eos": 1, "unk": 2, "pad": 0}, {"add_eos": True}),
    "rwkv": ("rwkv", {}, {}),
    "plamo2": ("plamo2", {"bos": 1, "eos": 2, "unk": 0, "pad": 3}, {}),
}
"""What values of `tokenizer.ggml.model` imply: the kind, special ids and other fields of the `Vocab`.

Other keys of the file may override all but the kind.
"""


def read_vocabulary(values: Mapping[str, Any]) -> Vocab:
    """Read a vocabulary from GGUF metadata.

    Raises:
        TokenizerError: A key is missing, of another type than it should be, or contradicts another.
    """
    meta = Metadata(values, lambda key, message: TokenizerError(f"{key}: {message}"))
    model = meta.get(PREFIX + "model", str)
    if model not in _MODELS:
        raise TokenizerError(f"{PREFIX}model: expected one of {', '.join(_MODELS)}, got {model!r}")
    kind, special, implied = _MODELS[model]
    tokens, ids = _read_tokens(meta)
    types = _read_types(meta, tokens)
    vocab = Vocab(
        kind=kind,
        model=model,
        tokens=tokens,
        ids=ids,
        types=types,
        original_types=list(types),
        scores=_read_scores(meta, len(tokens)),
        special=dict(special),
        **implied,
    )
    if kind == "bpe":
        _read_bpe(vocab, meta)
    _read_flags(vocab, meta)
    read_special_ids(vocab, meta)
    recognise_ids(vocab)
    find_end_tokens(vocab)
    mark_space_swallowers(vocab, meta)
    return vocab


def _read_bpe(vocab: Vocab, meta: Metadata) -> None:
    vocab.pre_name = "gemma4" if vocab.model == "gemma4" else meta.get(PREFIX + "pre", str, None)
    # Written by `oxillama convert` where a model's own tokenizer differs; other programs ignore these keys.
    as_source = meta.get(PREFIX + "pre_as_source", bool, False)
    pre = pre_tokenizer(vocab.pre_name, as_source)
    ignores = meta.get(PREFIX + "ignore_merges", bool, pre.ignore_merges)
    vocab.pre = pre = replace(pre, ignore_merges=ignores)
    key = PREFIX + "merges"
    merges = meta.get(key, list[str], None)
    if merges is None and vocab.pre_name != "kimi-k2":
        raise TokenizerError(f"{key}: expected an array of strings, got no such key")
    vocab.merges = merges or []
    for i, merge in enumerate(vocab.merges):
        if " " not in merge[1:-1]:
            raise TokenizerError(
                f"{key}: expected two tokens and a space between in entry {i}, got {merge!r}"
            )
    vocab.add_bos, vocab.add_sep = pre.add_bos, pre.add_sep
    vocab.clean_spaces, vocab.escape_spaces = pre.clean_spaces, pre.escape_spaces
    if not pre.has_bos:
        vocab.special.pop("bos", None)
    if vocab.pre_name == "whitespace":
        vocab.lowercase = False


def _read_flags(vocab: Vocab, meta: Metadata) -> None:
    vocab.add_bos = meta.get(PREFIX + "add_bos_token", bool, vocab.add_bos)
    vocab.add_eos = meta.get(PREFIX + "add_eos_token", bool, vocab.add_eos)
    vocab.add_sep = meta.get(PREFIX + "add_sep_token", bool, vocab.add_sep)
    vocab.add_space_prefix = meta.get(PREFIX + "add_space_prefix", bool, vocab.add_space_prefix)
    vocab.remove_extra_spaces = meta.get(PREFIX + "remove_extra_whitespaces", bool, vocab.remove_extra_spaces)
    vocab.lowercase = meta.get(PREFIX + "normalizer.lowercase", bool, vocab.lowercase)
    vocab.strip_accents = meta.get(PREFIX + "normalizer.strip_accents", bool, vocab.lowercase)
    # Written by `oxillama convert`: decompose as BERT's own code does. llama.cpp keeps one code point.
    vocab.decompose = meta.get(PREFIX + "normalizer.nfd", bool, False)
    if vocab.pre is not None and vocab.pre.newline_tokens:
        vocab.add_bos = True  # files of this family were written without it
    if vocab.kind == "unigram":
        charsmap = meta.numbers(PREFIX + "precompiled_charsmap", ("uint8", "int8"))
        vocab.charsmap = b"" if charsmap is None else charsmap.tobytes()


def _read_tokens(meta: Metadata) -> tuple[list[str], dict[str, int]]:
    key = PREFIX + "tokens"
    tokens = meta.get(key, list[str])
    if not tokens:
        raise TokenizerError(f"{key}: expected at least one token, got none")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    try:
        "".join(tokens).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"{key}: expected text or escaped bytes, got {error.object[error.start]!r}"
        ) from None
    ids = dict(zip(tokens, range(len(tokens))))
    if len(ids) < len(tokens):
        first = next(i for i, token in enumerate(tokens) if ids[token] != i)
        raise TokenizerError(
            f"{key}: expected different tokens, got {tokens[first]!r} as {first} and {ids[tokens[first]]}"
        )
    return tokens, ids


def _read_types(meta: Metadata, tokens: list[str]) -> list[int]:
    key = PREFIX + "token_type"
    numbers = meta.numbers(key, INTEGERS)
    if numbers is None:
        return [NORMAL] * len(tokens)
    _check_length(key, numbers, len(tokens))
    types = list(map(_GGUF_TYPES.get, numbers.tolist(), repeat(0)))
    for id in np.flatnonzero(numbers == _GGUF_BYTE).tolist():
        if not BYTE_TOKEN.fullmatch(tokens[id]):
            raise TokenizerError(
                f"{PREFIX}tokens: expected byte token {id} to look like <0x0A>, got {tokens[id]!r}"
            )
    return types


def _read_scores(meta: Metadata, n_vocab: int) -> list[float] | None:
    key = PREFIX + "scores"
    scores = meta.numbers(key, ("float32", "float64", "int32"))
    if scores is None:
        return None
    _check_length(key, scores, n_vocab)
    floats: list[float] = scores.astype(np.float32).tolist()
    if np.isnan(scores).any():
        raise TokenizerError(f"{key}: expected numbers, got NaN in entry {int(np.isnan(scores).argmax())}")
    return floats


def _check_length(key: str, values: np.ndarray, n_vocab: int) -> None:
    if len(values) != n_vocab:
        raise TokenizerError(f"{key}: expected {n_vocab} entries (one per token), got {len(values)}")
