"""Tokenizers of both kinds and chat templates, each used on hostile texts and messages."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from oxillama.errors import TokenizerError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.grammar import Vocabulary
from oxillama.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.fuzz.harness import Target
from tests.fuzz.mutate import (
    INTEGERS,
    SkipInput,
    built,
    edited,
    edits,
    mutated,
    mutated_text,
    skipping,
    words,
)
from tests.support import vocabularies
from tests.support.huggingface import sentence_piece_tokenizer
from tests.support.tiny_file import CHATML, tiny_vocabulary

TEXTS = [
    "", " ", "the fox said hello", "once upon a time\n\n  there was",
    "caf\u00e9 \u4e16\u754c \U0001f999\ufe0f\u200d", "\0\x1c\x7f\ue000", "<|im_start|>x<|im_end|>",
    "<s></s><unk>[MASK]", "aaaaaaaaaaaa" * 9, "0159'.!/$<(", "e\u0301\u0301\u20dd", "\u2581\u2581 \u2581",
    "<0x0A><0xff>", "\ufffd\ufeff", "<dna>ACGTACGATTAAx</dna>",
]  # fmt: skip


def exercise(tokenizer: TokenizerBridge, rng: Random) -> None:
    """Encodes and decodes; ids stay inside the vocabulary, streams come to what whole texts come to."""
    n = tokenizer.n_vocab
    texts = [
        *rng.sample(TEXTS, 5),
        mutated_text(rng.choice(TEXTS), rng),
        tokenizer.token_text(rng.randrange(n)),
    ]
    refused: list[TokenizerError] = []
    worked = 0
    for text in texts:
        for special in (False, True):
            try:
                ids = tokenizer.encode(text, add_special=special, parse_special=special)
                pair = tokenizer.encode_pair(text, "a") if special else []
            except TokenizerError as error:
                refused.append(error)
                continue
            worked += 1
            assert all(type(id) is int and 0 <= id < n for id in (*ids, *pair)), f"{text!r}: {ids} of {n}"
            check_decoding(tokenizer, ids)
    for text in ("\ud800", "a\udcff"):
        try:
            tokenizer.encode(text)
        except TokenizerError:
            continue
        raise AssertionError("a lone surrogate was encoded")
    check_decoding(tokenizer, [rng.randrange(n) for _ in range(12)])
    for id in (rng.randrange(n), n - 1):
        (
            tokenizer.token_type(id),
            tokenizer.token_text(id),
            tokenizer.token_bytes(id),
        )
        tokenizer.is_control(id)
    for id in (-1, n, 2**40):
        try:
            tokenizer.decode([id])
        except TokenizerError:
            continue
        raise AssertionError(f"{id} was decoded")
    assert len(tokenizer.vocab_bytes()) == n
    assert all(0 <= id < n for id in (*tokenizer.eog_ids, *tokenizer.special_ids.values()))
    Vocabulary.from_tokenizer(tokenizer)
    if not worked:
        raise refused[0]


def check_decoding(tokenizer: TokenizerBridge, ids: list[int]) -> None:
    for skip in (True, False):
        stream = tokenizer.stream_decoder(skip)
        assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids, skip)
    tokenizer.decode(ids, clean_spaces=True, continuing=True)


def seed_of(value: Any) -> Random:
    """Texts differ from input to input, and are the same for the same."""
    return Random(repr(value))


# --- tokenizer.json ---------------------------------------------------------------------------------


def document(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    usual: dict[str, Any] = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        **usual,
        "model": model,
        **parts,
    }


def added(id: int, text: str, **flags: Any) -> dict[str, Any]:
    usual = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": text, **usual, "special": True, **flags}


LETTERS = list("abcdefhlnotx ")
PIECES = [
    ["<unk>", 0.0],
    ["\u2581", -2.0],
    *[[c, -3.0 - i / 9] for i, c in enumerate("abcdefhlnotx")],
    ["\u2581the", -3.5],
]
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [13], "tokens": ["<s>"]}},
}
DOCUMENTS = [
    document(
        {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {c: i for i, c in enumerate([*"abcdefhlnotx", "\u0120", "<s>", "he", "th"])},
            "merges": [["h", "e"], ["t", "h"]],
        },
        added_tokens=[added(13, "<s>"), added(16, "<|im_end|>"), added(17, "[T]", special=False,
        lstrip=True)],
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
        "use_regex": True},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        post_processor=TEMPLATE,
    ),
    document(
        {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]",
            "[SEP]", "the", "fox", "##s", "a"])},
        },
        normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
        "strip_accents": None, "lowercase": True},
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor={"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    ),
    document(
        {"type": "Unigram", "unk_id": 0, "vocab": PIECES, "byte_fallback": False},
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
        "split": True},
        decoder={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    ),
    document(
        {"type": "WordLevel", "vocab": {"[UNK]": 0, "the": 1, "fox": 2}, "unk_token": "[UNK]"},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Digits",
        "individual_digits": True}, {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated",
        "invert": False}]},
        truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        padding={"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[PAD]"},
    ),
]  # fmt: skip
JSON_VALUES: list[Any] = [
    *INTEGERS[:12], "<unk>", "[UNK]", "<s>", "a", "\u0120", "##", "", "(", "\\p{L}+", " ", "Isolated",
    "Removed", "Contiguous",
    "MergedWithPrevious", "ByteLevel", "Metaspace", "Whitespace", "BPE", "WordPiece", "Unigram", "WordLevel",
    "Sequence",
    "Precompiled", "Strip", "StripAccents", "NFD", "Nmt", "Prepend", "Replace", "Punctuation",
    "UnicodeScripts", "CTC", "Fuse",
    "ByteFallback", "RobertaProcessing", "BertProcessing", {"Regex": "(a*)*b"}, {"String": ""},
    {"Regex": "("}, {"Regex": ""},
    {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}, {"type": "Precompiled",
    "precompiled_charsmap": "/////w=="},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "RobertaProcessing", "sep": ["x", 99], "cls": ["y", 98], "trim_offsets": True,
    "add_prefix_space": False},
    {"type": "FixedLength", "length": 0}, {"type": "CharDelimiterSplit", "delimiter": "x"},
    {"type": "Prepend", "prepend": ""},
]  # fmt: skip
JSON_KEYS = words(
    "type vocab merges unk_token unk_id byte_fallback fuse_unk dropout added_tokens normalizer pre_tokenizer "
    "post_processor decoder model special content id truncation padding ids tokens single pair "
    "special_tokens lstrip rstrip normalized single_word ignore_merges continuing_subword_prefix "
    "end_of_word_suffix pattern behavior invert prefix cleanup a \u2581"
)


@functools.cache
def sentence_piece() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sentence_piece_tokenizer().to_str())
    return found


class TokenizerTarget(Target):
    name = "tokenizer"
    per_run = 200

    def seeds(self) -> list[Any]:
        return [*DOCUMENTS, sentence_piece()]

    def mutate(self, value: Any, rng: Random) -> Any:
        if isinstance(value, dict) and value.keys() == {"edits", "document"}:
            return {**value, "edits": [*value["edits"], *edits(rng)]}
        if not isinstance(value, str):
            if rng.random() < 0.25:
                return {"document": value, "edits": edits(rng)}
            new = mutated(value, rng, keys=JSON_KEYS, values=JSON_VALUES, donors=DOCUMENTS)
            return new if rng.random() < 0.97 else mutated_text(json.dumps(new), rng)
        return mutated_text(value, rng)

    def run(self, value: Any) -> None:
        path = Path("tokenizer.json")
        with skipping():
            changes: Any = []
            if isinstance(value, dict) and value.keys() == {"edits", "document"}:
                value, changes = value["document"], value["edits"]
            text = value if isinstance(value, str) else json.dumps(built(value))
            path.write_bytes(edited(text.encode("utf-8", "surrogatepass"), changes))
        try:
            tokenizer = TokenizerBridge.from_file(path)
        except TokenizerError as error:
            assert "expected" in str(error) and "got" in str(error), error
            raise
        exercise(tokenizer, seed_of(value))


# --- vocabularies of GGUF files ---------------------------------------------------------------------


def small_bpe(pre: str, **more: Any) -> dict[str, Any]:
    tokens, types, merges = tiny_vocabulary()
    named = {"merges": merges, "pre": pre, "bos_token_id": len(tokens) - 4, "eos_token_id": len(tokens) - 3}
    return vocabularies.metadata("gpt2", tokens, types, **{**named, **more})


def described(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata as an input."""
    found = {}
    for key, value in metadata.items():
        array = isinstance(value, np.ndarray)
        found[key] = {"@array": [value.dtype.name, value.tolist()]} if array else value
    return found


KEYS = words(
    "model pre tokens scores token_type merges bos_token_id eos_token_id eot_token_id eom_token_id "
    "unknown_token_id seperator_token_id padding_token_id mask_token_id cls_token_id prefix_token_id "
    "suffix_token_id middle_token_id fim_pre_token_id fim_suf_token_id fim_mid_token_id fim_pad_token_id "
    "fim_rep_token_id fim_sep_token_id suppress_tokens add_bos_token add_eos_token add_sep_token "
    "add_space_prefix remove_extra_whitespaces normalizer.lowercase normalizer.strip_accents normalizer.nfd "
    "precompiled_charsmap"
)
VOCABULARY_VALUES: list[Any] = [
    0, 1, 2, 5, 255, 299, 300, 400, -1, 2**31 - 1, 2**32 - 1, True, False, "gpt2", "llama", "bert", "t5",
    "rwkv", "plamo2", "gemma4", "hybriddna", "whitespace", "no_vocab", *PRE_TOKENIZERS, "<0x0A>", "<0x0a>",
    "<0xZZ>", "\\x00", "\\xff\\", "'a'", "\u2581", "</s>", "<|im_end|>", "<|end|>", "a b", " ", "a  b",
    "\u0120", {"@array": ["int32", [1, 2, 3]]}, {"@array": ["float32", [0.5, 1e38]]},
    {"@array": ["uint8", [1, 0, 0, 0, 1]]}, {"@array": ["uint8", [4, 0, 0, 0, 1, 2, 3, 4, 0]]},
    {"@array": ["int64", [-5]]},
]  # fmt: skip


class VocabularyTarget(Target):
    name = "gguf-tokenizer"
    per_run = 120

    @functools.cache  # noqa: B019  # one object of it
    def seeds(self) -> list[Any]:
        made = [
            small_bpe("gpt-2"), small_bpe("llama-bpe"), small_bpe("deepseek-llm"),
            vocabularies.sentence_piece(), vocabularies.plain_byte_pair(), vocabularies.word_piece(),
            vocabularies.rwkv(), vocabularies.plamo2(), vocabularies.whitespace(),
            vocabularies.unigram(precompiled_charsmap=np.zeros(0, np.uint8)),
        ]  # fmt: skip
        hybrid = small_bpe("qwen2") | {"tokenizer.ggml.model": "hybriddna"}
        hybrid["tokenizer.ggml.tokens"] += ["<dna>", "</dna>", "<oov>", "ACGTAC\ue000", "AAAAAA\ue000"]
        types = [*hybrid["tokenizer.ggml.token_type"].tolist(), 3, 3, 3, 1, 1]
        hybrid["tokenizer.ggml.token_type"] = np.array(types, np.int32)
        charsmap = vocabularies.charsmap({"\t": " ", "\uff21": "a"})
        table = vocabularies.unigram(precompiled_charsmap=np.frombuffer(charsmap, np.uint8))
        return [described(metadata) for metadata in (*made, hybrid, table)]

    def mutate(self, value: Any, rng: Random) -> Any:
        names = ["tokenizer.ggml." + key for key in KEYS]
        new = mutated(value, rng, keys=names, values=VOCABULARY_VALUES, donors=[rng.choice(self.seeds())])
        if rng.random() < 0.3 and isinstance(new, dict):
            new["tokenizer.ggml." + rng.choice(KEYS)] = rng.choice(VOCABULARY_VALUES)
        return new

    def run(self, value: Any) -> None:
        metadata = built(value)
        if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
            raise SkipInput
        exercise(TokenizerBridge.from_metadata(metadata), seed_of(value))


# --- chat templates ---------------------------------------------------------------------------------

TEMPLATES = [
    CHATML,
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 "
    "== 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}"
    "{% endif %}{% endfor %}",
    "{%- set ns = namespace(found=false, tail='') -%}{%- for m in messages[::-1] -%}{%- if not ns.found "
    "and m.content is "
    "string -%}{%- set ns.found = true -%}{%- set ns.tail = "
    "m.content.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}"
    "{%- endfor -%}{{- ns.tail -}}{%- if tools -%}{{ tools | tojson(indent=2) }}{%- endif -%}",
    "{% macro show(x, depth=0) %}{% if x is mapping %}{% for k, v in x.items() %}{{ k }}: {{ show(v, "
    "depth + 1) }}"
    "{% endfor %}{% else %}{{ x }}{% endif %}{% endmacro %}{% for m in messages %}{{ show(m) }}{% "
    "generation %}"
    "{{ m.content | upper | replace('A', 'b') }}{% endgeneration %}{% endfor %}{{ strftime_now('%d %b "
    "%Y') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}"
    "{{ range(3) | list }}{{ (messages | first).role ~ messages | length }}{{ 'x' * 4 }}{{ '%s' | "
    "format(3) }}",
]
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello <b>\u4e16\u754c"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "content": "3"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
]
JINJA_WORDS = words(
    "{{ }} {% %} {%- -%} {# #} for in if elif else endif endfor set endset macro endmacro call endcall "
    "filter endfilter block include import extends loop loop.index loop.recursive loop.changed loop.previtem "
    "recursive namespace range dict cycler joiner lipsum not and or is defined none mapping string | . [ ] ( "
    ") : ~ * ** // % + - == < ' \" 'a' 0 1 -1 99999 1e308 1000000000 messages m.content tojson join map list "
    "length upper trim batch slice sort groupby sum indent wordwrap center replace format random unique "
    "tojson(indent=999) safe escape default pprint xmlattr urlize attr __class__ __globals__ __init__ .mro() "
    "_x self.__dict__ raise_exception strftime_now items() .keys .format .format_map .join .zfill .ljust "
    ".encode range(10**9) 'a'*10**9 10**10**9 | [::-1] [::0] break continue do"
)
KWARGS: dict[str, Any] = {
    "add_generation_prompt": True,
    "tools": [{"type": "function", "function": {"name": "f"}}],
}


class TemplateTarget(Target):
    name = "template"
    per_run = 150

    def seeds(self) -> list[Any]:
        return [
            {"source": source, "messages": MESSAGES[: i + 1], "kwargs": KWARGS}
            for i, source in enumerate(TEMPLATES)
        ]

    def mutate(self, value: Any, rng: Random) -> Any:
        new = dict(value)
        if rng.random() < 0.75 and isinstance(new["source"], str):
            source = new["source"] if rng.random() < 0.9 else new["source"] + rng.choice(TEMPLATES)
            new["source"] = mutated_text(source, rng, JINJA_WORDS)
        elif rng.random() < 0.1:
            new["source"] = {
                "@repeat": [
                    rng.choice(
                        [
                            "{% if 1 %}", "{{ (", "{{ 'a' ~ ", "{{ [[", "{% for x in messages %}", "{{ -",
                            "{{ not ",
                        ]
                    ),
                    3000,
                ]
            }  # fmt: skip
        if rng.random() < 0.4:
            part = {"messages": new["messages"], "kwargs": new["kwargs"]}
            part = mutated(
                part,
                rng,
                keys=("role", "content", "type", "tool_calls", "name", "tools"),
                values=MESSAGES,
                strange=True,
            )
            if isinstance(part, dict):
                new |= part
        return new

    def run(self, value: Any) -> None:
        value = built(value)
        source, messages, kwargs = value.get("source"), value.get("messages"), value.get("kwargs", {})
        if not isinstance(kwargs, dict) or not all(
            isinstance(k, str) and k != "self" and k != "messages" for k in kwargs
        ):
            raise SkipInput
        text = ChatTemplate(source, "<s>", "</s>").render(messages, **kwargs)
        assert isinstance(text, str)
