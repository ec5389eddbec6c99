"""The vocabulary of a GGUF file: tokens, their types and scores, special ids and flags, all checked.

Read from the `tokenizer.ggml.*` metadata only, by the rules of llama.cpp (src/llama-vocab.cpp as of
llama-cpp-python 0.3.36), its corrections of mislabelled files included. Where llama.cpp would abort,
crash or fall back without a word on a malformed file, `TokenizerError` names the key.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

import numpy as np

from oxillama.errors import TokenizerError
from oxillama.gguf.header import StringArray
from oxillama.tokenizer.pretokenizers import PreTokenizer, pre_tokenizer

PREFIX = "tokenizer.ggml."


class TokenType(IntFlag):
    """What a token is; a token may be several things once mislabelled ones are corrected."""

    UNDEFINED = 0
    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32
    LSTRIP = 128  # swallows the spaces on its left when it is found in a text
    RSTRIP = 256  # ... on its right


# The same as plain ints, for loops over whole vocabularies, where the enum's operators are slow.
UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE, LSTRIP, RSTRIP = (int(bit) for bit in TokenType if bit)
SPECIAL = CONTROL | USER_DEFINED | UNKNOWN  # found whole in a text
HIDDEN = CONTROL | UNKNOWN  # not part of the text a user sees

_GGUF_TYPES = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER_DEFINED, 5: UNUSED, 6: BYTE}


@dataclass(frozen=True)
class _Kind:
    """What `tokenizer.ggml.model` implies before the file's own keys are read."""

    name: str
    ids: Mapping[str, int] = field(default_factory=dict)  # special ids assumed
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False
    escape_spaces: bool = True


_BERT_IDS = {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}
_KINDS = {
    "llama": _Kind("spm", {"bos": 1, "eos": 2, "unk": 0}, add_bos=True, add_space_prefix=True),
    "gpt2": _Kind("bpe", {"bos": 11, "eos": 11}),
    "hybriddna": _Kind("bpe", {"bos": 11, "eos": 11}),
    "whitespace": _Kind("bpe", {"bos": 11, "eos": 11}),
    "gemma4": _Kind("bpe"),
    "bert": _Kind("wordpiece", _BERT_IDS, add_bos=True, add_sep=True, clean_spaces=True),
    "t5": _Kind("unigram", {"eos": 1, "unk": 2, "pad": 0}, add_eos=True),
    "rwkv": _Kind("rwkv"),
    "plamo2": _Kind("plamo2", {"bos": 1, "eos": 2, "unk": 0, "pad": 3}),
}

# Keys of special ids, in the order in which later ones win. seperator is GGUF's own spelling.
_ID_KEYS = (
    ("bos", "bos_token_id"), ("eos", "eos_token_id"), ("eot", "eot_token_id"), ("eom", "eom_token_id"),
    ("unk", "unknown_token_id"), ("sep", "seperator_token_id"), ("pad", "padding_token_id"),
    ("mask", "mask_token_id"), ("cls", "cls_token_id"),
    ("fim_pre", "fim_pre_token_id"), ("fim_suf", "fim_suf_token_id"), ("fim_mid", "fim_mid_token_id"),
    ("fim_pad", "fim_pad_token_id"), ("fim_rep", "fim_rep_token_id"), ("fim_sep", "fim_sep_token_id"),
    ("fim_pre", "prefix_token_id"), ("fim_suf", "suffix_token_id"), ("fim_mid", "middle_token_id"),
)  # fmt: skip
_INTEGERS = ("int32", "uint32", "int8", "uint8", "int16", "uint16", "int64", "uint64")
_ESSENTIAL_IDS = {"bos", "eos", "eot", "eom", "unk"}

# Texts by which a token is recognised where the file does not name its id; the first present wins.
_ID_TEXTS = {
    "eot": (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
        "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip

# Texts of tokens after which generation ends.
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip

_HARMONY_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # always shown

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Metadata:
    """Typed access to a metadata mapping; every complaint names the key."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def _get(self, key: str, kinds: type | tuple[type, ...], what: str) -> Any:
        value = self.values.get(key)
        if value is not None and not isinstance(value, kinds):
            raise TokenizerError(f"{key}: expected {what}, found {type(value).__name__}")
        return value

    def text(self, key: str) -> str | None:
        value = self._get(key, (str, bytes), "a string")
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, (bool, np.bool_), "a boolean")
        return default if value is None else bool(value)

    def token_id(self, key: str) -> int | None:
        value = self._get(key, (int, np.integer), "an unsigned integer")
        if isinstance(value, bool) or (value is not None and value < 0):
            raise TokenizerError(f"{key}: expected an unsigned integer, found {value}")
        return None if value is None else int(value)

    def texts(self, key: str) -> list[str] | None:
        values = self._get(key, (list, tuple, StringArray), "an array of strings")
        if values is None:
            return None
        values = list(values)
        if all(type(v) is str for v in values):
            return values
        if not all(isinstance(v, (str, bytes)) for v in values):
            raise TokenizerError(f"{key}: expected an array of strings, found other elements")
        return [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else str(v) for v in values]

    def numbers(self, key: str, dtypes: tuple[str, ...]) -> np.ndarray | None:
        """A flat numeric array of one of `dtypes`; a list is taken for an array of the first."""
        values = self.values.get(key)
        if values is None:
            return None
        if isinstance(values, (list, tuple)):
            kinds = (int, np.integer) if dtypes[0].startswith(("int", "uint")) else (int, float, np.number)
            if not all(isinstance(v, kinds) for v in values):
                raise TokenizerError(
                    f"{key}: expected an array of {' or '.join(dtypes)}, found other elements"
                )
            try:
                values = np.asarray(values, dtype=dtypes[0])
            except OverflowError as error:
                raise TokenizerError(f"{key}: {error}") from None
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.name not in dtypes:
            found = (
                f"{values.ndim}-d {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
            )
            raise TokenizerError(f"{key}: expected an array of {' or '.join(dtypes)}, found {found}")
        return values


@dataclass
class Vocab:
    """The tokens of one vocabulary and the rules that belong to it.

    Attributes
    ----------
    kind : str
        bpe, spm (SentencePiece BPE), unigram, wordpiece, rwkv or plamo2.
    model : str
        `tokenizer.ggml.model` as the file has it.
    tokens : list of str
        Text of each token; bytes that are not UTF-8 as surrogate escapes.
    ids : dict
        Token text to id.
    types : list of int
        `TokenType` bits of each token.
    original_types : list of int
        The same before mislabelled tokens were corrected.
    scores : list of float, or None
        Score of each token, exactly as stored in float32.
    merges : list of str
        BPE merges, best first, as "left right".
    special : dict
        Special ids present, by short name: bos, eos, eot, eom, unk, sep, pad, cls, mask, fim_*.
    eog_ids : frozenset of int
        Tokens that end generation.
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

    @classmethod
    def from_metadata(cls, values: Mapping[str, Any]) -> Vocab:
        """Read a vocabulary from GGUF metadata.

        Raises
        ------
        TokenizerError
            A key is missing, of another type than it should be, or contradicts another.
        """
        meta = Metadata(values)
        model = meta.text(PREFIX + "model")
        if model is None:
            raise TokenizerError(f"{PREFIX}model: missing, the file has no vocabulary")
        if model in ("none", "no_vocab"):
            raise TokenizerError(f"{PREFIX}model: {model!r}, the file has no vocabulary")
        if model not in _KINDS:
            raise TokenizerError(f"{PREFIX}model: unknown tokenizer {model!r}, known are {', '.join(_KINDS)}")
        kind = _KINDS[model]
        tokens, ids = _read_tokens(meta)
        types = _read_types(meta, tokens)
        vocab = cls(
            kind=kind.name,
            model=model,
            tokens=tokens,
            ids=ids,
            types=types,
            original_types=list(types),
            scores=_read_scores(meta, len(tokens)),
            special=dict(kind.ids),
            add_bos=kind.add_bos,
            add_eos=kind.add_eos,
            add_sep=kind.add_sep,
            add_space_prefix=kind.add_space_prefix,
            clean_spaces=kind.clean_spaces,
            escape_spaces=kind.escape_spaces,
        )
        if kind.name == "bpe":
            vocab._read_bpe(meta)
        vocab._read_flags(meta)
        vocab._read_special_ids(meta)
        vocab.recognise_ids()
        vocab.find_end_tokens()
        vocab._set_strip_bits(meta)
        return vocab

    def _read_bpe(self, meta: Metadata) -> None:
        self.pre_name = "gemma4" if self.model == "gemma4" else meta.text(PREFIX + "pre")
        self.pre = pre = pre_tokenizer(self.pre_name)
        key = PREFIX + "merges"
        merges = meta.texts(key)
        if merges is None and self.pre_name != "kimi-k2":
            raise TokenizerError(f"{key}: missing, a byte-pair vocabulary needs it")
        self.merges = merges or []
        for i, merge in enumerate(self.merges):
            if " " not in merge[1:-1]:
                raise TokenizerError(
                    f"{key}: entry {i} should be two tokens and a space between, found {merge!r}"
                )
        self.add_bos, self.add_sep = pre.add_bos, pre.add_sep
        self.clean_spaces, self.escape_spaces = pre.clean_spaces, pre.escape_spaces
        if not pre.has_bos:
            self.special.pop("bos", None)
        if self.pre_name == "whitespace":
            self.lowercase = False

    def _read_flags(self, meta: Metadata) -> None:
        self.add_bos = meta.flag(PREFIX + "add_bos_token", self.add_bos)
        self.add_eos = meta.flag(PREFIX + "add_eos_token", self.add_eos)
        self.add_sep = meta.flag(PREFIX + "add_sep_token", self.add_sep)
        self.add_space_prefix = meta.flag(PREFIX + "add_space_prefix", self.add_space_prefix)
        self.remove_extra_spaces = meta.flag(PREFIX + "remove_extra_whitespaces", self.remove_extra_spaces)
        self.lowercase = meta.flag(PREFIX + "normalizer.lowercase", self.lowercase)
        self.strip_accents = meta.flag(PREFIX + "normalizer.strip_accents", self.lowercase)
        # Written by `oxillama convert`: decompose as BERT's own code does. llama.cpp keeps one code point.
        self.decompose = meta.flag(PREFIX + "normalizer.nfd", False)
        if self.pre is not None and self.pre.newline_tokens:
            self.add_bos = True  # files of this family were written without it
        if self.kind == "unigram":
            charsmap = meta.numbers(PREFIX + "precompiled_charsmap", ("uint8", "int8"))
            self.charsmap = b"" if charsmap is None else charsmap.tobytes()

    def _read_special_ids(self, meta: Metadata) -> None:
        n_vocab = len(self.tokens)
        self.special = {name: id for name, id in self.special.items() if id < n_vocab}
        for name, suffix in _ID_KEYS:
            key = PREFIX + suffix
            id = meta.token_id(key)
            if id is None:
                continue
            if id < n_vocab:
                self.special[name] = id
                continue
            complaint = f"{key}: {id} is outside the vocabulary of {n_vocab} tokens"
            if name in _ESSENTIAL_IDS or (name == "sep" and self.kind == "wordpiece"):
                raise TokenizerError(complaint)
            warnings.warn(f"{complaint}; the file is used without it", stacklevel=4)
        suppress = meta.numbers(PREFIX + "suppress_tokens", _INTEGERS)
        if suppress is not None:
            if suppress.size and not (suppress.min() >= 0 and suppress.max() < n_vocab):
                raise TokenizerError(
                    f"{PREFIX}suppress_tokens: an id is outside the vocabulary of {n_vocab} tokens"
                )
            self.suppress_ids = frozenset(suppress.tolist())

    def recognise_ids(self) -> None:
        """Find the ids the file does not name by their tokens' texts."""
        for name, texts in _ID_TEXTS.items():
            if name in self.special:
                continue
            found = next((self.ids[text] for text in texts if text in self.ids), None)
            if found is not None:
                self.special[name] = found
                self.types[found] |= CONTROL

    def find_end_tokens(self) -> None:
        """Collect `eog_ids`, and correct the types of tokens that are known by their text."""
        ends = {self.special[name] for name in ("fim_pad", "fim_rep", "fim_sep") if name in self.special}
        for id in self._present(_END_TEXTS):
            ends.add(id)
            self.types[id] |= CONTROL
        for id in self._present(_HARMONY_TEXTS):
            self.types[id] = USER_DEFINED
        ends |= {self.special[name] for name in ("eos", "eot", "eom") if name in self.special}
        texts = {self.tokens[id]: id for id in ends}
        # Formats with several closing tokens, in which these are not the end of a turn.
        calls = texts.keys() & {"<|call|>", "<|calls|>"}
        if "<|end|>" in texts and calls and texts.keys() & {"<|return|>", "<|flush|>"}:
            ends.discard(texts["<|end|>"])
            self.types[texts["<|end|>"]] = USER_DEFINED
        if "</s>" in texts and texts.keys() & {"<|tool_response>", "<|plamo:eos|>"}:
            ends.discard(texts["</s>"])
            self.types[texts["</s>"]] = NORMAL
        self.eog_ids = frozenset(ends)

    def _set_strip_bits(self, meta: Metadata) -> None:
        """Mark the tokens that swallow spaces; GGUF does not say which, only the model's name does."""
        pre = meta.text(PREFIX + "pre") or ""
        architecture = meta.text("general.architecture") or ""
        name = (meta.text("general.name") or "").lower()
        if re.search("jina-v2-(de|es|code)", pre) or re.search("nomic-bert-moe|jina-bert-v3", architecture):
            for id in self._present(("<mask>",)):
                self.types[id] |= LSTRIP
        elif "phi-3" in name or "phi3" in name:
            swallowing = {id for id, kind in enumerate(self.types) if kind & SPECIAL}
            swallowing.update(self._present(("</s>",)))
            swallowing.difference_update(self._present(("<unk>", "<s>", "<|endoftext|>")))
            for id in swallowing:
                self.types[id] |= RSTRIP
        elif "modern-bert" in name:
            for id in self._present(("[MASK]",)):
                self.types[id] |= LSTRIP

    def _present(self, texts: Iterable[str]) -> list[int]:
        return [self.ids[text] for text in texts if text in self.ids]

    def checked(self, id: int) -> int:
        """`id` itself; TokenizerError where the vocabulary has no such token."""
        if not 0 <= id < len(self.tokens):
            raise TokenizerError(f"token id {id} is outside the vocabulary of {len(self.tokens)} tokens")
        return id

    def byte_of(self, id: int) -> int:
        """The byte that a token of type BYTE stands for."""
        match = BYTE_TOKEN.fullmatch(self.tokens[id])
        if match is None:
            raise TokenizerError(
                f"{PREFIX}tokens: byte token {id} should look like <0x0A>, found {self.tokens[id]!r}"
            )
        return int(match[1], 16)


def _read_tokens(meta: Metadata) -> tuple[list[str], dict[str, int]]:
    key = PREFIX + "tokens"
    tokens = meta.texts(key)
    if tokens is None:
        raise TokenizerError(f"{key}: missing")
    if not tokens:
        raise TokenizerError(f"{key}: expected at least one token, found none")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    ids = dict(zip(tokens, range(len(tokens))))
    if len(ids) < len(tokens):
        first = next(i for i, token in enumerate(tokens) if ids[token] != i)
        raise TokenizerError(f"{key}: tokens {first} and {ids[tokens[first]]} are both {tokens[first]!r}")
    return tokens, ids


def _read_types(meta: Metadata, tokens: list[str]) -> list[int]:
    key = PREFIX + "token_type"
    numbers = meta.numbers(key, _INTEGERS)
    if numbers is None:
        return [NORMAL] * len(tokens)
    _check_length(key, numbers, len(tokens))
    types = [_GGUF_TYPES.get(number, 0) for number in numbers.tolist()]
    for id, kind in enumerate(types):
        if kind == BYTE and not BYTE_TOKEN.fullmatch(tokens[id]):
            raise TokenizerError(
                f"{PREFIX}tokens: byte token {id} should look like <0x0A>, found {tokens[id]!r}"
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
        raise TokenizerError(f"{key}: entry {int(np.isnan(scores).argmax())} is not a number")
    return floats


def _check_length(key: str, values: np.ndarray, n_vocab: int) -> None:
    if len(values) != n_vocab:
        raise TokenizerError(f"{key}: expected one entry for each of {n_vocab} tokens, found {len(values)}")
