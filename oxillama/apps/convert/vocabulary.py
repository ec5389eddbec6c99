"""The vocabulary of a Hugging Face folder as GGUF metadata: byte-level or SentencePiece's BPE, WordPiece.

Options of tokenizer.json that GGUF cannot express are refused. Then both tokenizers encode a set of difficult
texts: different ids are an error, so that a file splits text only as in training.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import BertWordPieceTokenizer

from oxillama.apps.convert.safetensors import exists, read_json, read_text
from oxillama.errors import TokenizerError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.tokenizer.pretokenizers import AS_SOURCE, PRE_TOKENIZERS
from oxillama.text.tokenizer.tokenizer_json import library_errors, library_of

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens, by GGUF's numbers."""

SPECIAL_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # GGUF's own spelling
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
}

IN_SOURCE = {
    r"(?:'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL]))": "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])",
    "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])": "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"\p{Upper}": r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}",
    r"\p{Lower}": r"\p{Ll}\p{Lm}\p{Lo}\p{M}",
    r"\s{1,2}(?!\S)|\s": r"\s{1,2}(?!\S)|\s{1}",
}
"""Parts of our expressions, and how a tokenizer.json writes them, to be replaced in this order."""


def in_source(name: str) -> tuple[str, ...]:
    """The expressions of a pre-tokenizer in the form of a tokenizer.json."""
    found = []
    for step in AS_SOURCE.get(name, PRE_TOKENIZERS[name]).steps:
        text = re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), str(step))
        for ours, theirs in IN_SOURCE.items():
            text = text.replace(ours, theirs)
        found.append(text)
    return tuple(found)


CUTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("bytes",): ("gpt-2",),
    ("digits", "bytes"): ("smollm",),
    in_source("llama-bpe"): ("llama-bpe", "smaug-bpe"),
    **{
        in_source(name): (name,)
        for name in ("qwen2", "qwen35", "tekken", "gpt-4o", "exaone-moe", "jais-2", "deepseek-v3")
    },
}
"""Names of pre-tokenizers by their steps (`cuts`)."""

SPOKEN = {
    *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    '<|"|>',
}
"""Control tokens of Gemma 4 that parsers of messages read."""

SAMPLES = (
    "Hello, world! It's a test; we'll see what they've done, won't WE'LL?",
    "  leading and   inner spaces, trailing  ",
    "line\nline\r\n\n\n\tindented\n   \n x",
    "0 12 123 1234 12345 1234567 3.14159 1,000,000 ٢٣ ½",
    "café naïve Über straße Ångström Łódź İstanbul",
    "你好，世界。 こんにちは テスト 안녕하세요",
    "Привет, мир! Γειά שלום مرحبا नमस्ते हिन्दी",
    "приВет ПРИвет ΓειάΣου école ÉCOLE ʰa ǅep ภาษาไทย தமிழ்",
    "😀🚀 👨\u200d👩\u200d👧 → ∑ €5 © … “quoted” — dash",
    "def f(x): return x**2 + y[0] // 3 # comment\n\tif a != b: {'k': \"v\"}",
    "https://example.org/path?q=1&r=2 someone@example.org C:\\dir CamelCase snake_case ALLCAPS",
)


def vocabulary_metadata(
    folder: Path, n_vocab: int, eos: Any = None, architecture: str = ""
) -> dict[str, Any]:
    """The `tokenizer.*` pairs of a folder.

    Args:
        n_vocab: rows of the embedding table; rows beyond the vocabulary get unused tokens.
        eos: eos_token_id of the model's config, for a tokenizer's config without one.
        architecture: GGUF's name of the model's architecture: Gemma 4 has its own kind of tokenizer.

    Raises:
        ModelFileError: tokenizer.json (or vocab.txt of a WordPiece) is missing or cannot be read.
        TokenizerError: GGUF cannot express the kind of the tokenizer, or an option.
    """
    beside = folder / "tokenizer_config.json"
    settings = read_json(beside) if exists(beside) else {}
    with library_errors("tokenizer.json", "a tokenizer of a known form"):
        document = read_document(folder, settings)
        made = translated(document, settings, n_vocab, eos, architecture)
        return made | chat_templates(folder, settings)


def translated(
    document: dict[str, Any], settings: dict[str, Any], n_vocab: int, eos: Any, architecture: str = ""
) -> dict[str, Any]:
    """All pairs except for chat templates, checked against the library's tokenizer."""
    library = library_of(json.dumps(document), document, "tokenizer.json")
    tokens, types = tokens_of(library, n_vocab)
    kind = document["model"].get("type")
    if kind == "WordPiece":
        found = word_piece(document, tokens, types)
    elif kind == "BPE" and document["model"].get("byte_fallback"):
        found = sentence_piece(document, tokens, types)
        if architecture == "gemma4":
            found = with_merges(found, document, tokens, types)
    elif kind == "BPE":
        found = byte_level(document)
    else:
        raise TokenizerError(f"tokenizer.json: model: expected BPE or WordPiece, got {kind!r:.40}")
    found |= {"tokens": tokens, "token_type": types} | special_ids(library, settings, document, eos)
    metadata = {f"tokenizer.ggml.{key}": value for key, value in found.items()}
    compare(library, metadata)
    return metadata


def read_document(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json, or an equivalent document for BERT's vocab.txt."""
    if exists(folder / "tokenizer.json") or not exists(folder / "vocab.txt"):
        document = read_json(folder / "tokenizer.json")
        if not isinstance(document.get("model"), dict):
            raise TokenizerError("tokenizer.json: model: expected an object, got none")
        return document
    words = read_text(folder / "vocab.txt").rstrip("\n").split("\n")
    vocab = {word: id for id, word in enumerate(words)}
    names = {
        key: text_of(settings.get(f"{key}_token")) or f"[{key.upper()}]"
        for key in ("cls", "sep", "unk", "pad", "mask")
    }
    missing = [names[key] for key in ("cls", "sep", "unk") if names[key] not in vocab]
    if missing:
        raise TokenizerError(f"vocab.txt: expected {', '.join(missing)}, got no such token")
    made: Any = BertWordPieceTokenizer(
        vocab,
        **{f"{key}_token": name for key, name in names.items()},
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def tokens_of(library: Any, n_vocab: int) -> tuple[list[str], list[int]]:
    """Texts and types of ``n_vocab`` tokens. Raises TokenizerError if there are more."""
    ids: dict[str, int] = library.get_vocab(with_added_tokens=True)
    most = max(ids.values(), default=-1) + 1
    if not ids or most > n_vocab:
        raise TokenizerError(
            f"tokenizer.json: expected 1 to {n_vocab} tokens (rows of the embedding), got {most}"
        )
    tokens, types = [f"[PAD{id}]" for id in range(n_vocab)], [UNUSED] * n_vocab
    for text, id in ids.items():
        tokens[id], types[id] = text, NORMAL
    for id, added in library.get_added_tokens_decoder().items():
        types[id] = CONTROL if added.special else USER_DEFINED
    return tokens, types


# --- kinds ------------------------------------------------------------------------------------------


def word_piece(document: dict[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any]:
    """BERT's kind: in GGUF, beginnings of words have U+2581 before them, and continuations no `##`."""
    normalizer = document.get("normalizer") or {}
    prefix = document["model"].get("continuing_subword_prefix", "##")
    if normalizer.get("type") != "BertNormalizer" or prefix != "##":
        found = f"{normalizer.get('type')!r:.40} and {prefix!r:.40}"
        raise TokenizerError(f"tokenizer.json: normalizer: expected a BertNormalizer and '##', got {found}")
    for key in ("clean_text", "handle_chinese_chars"):
        if not normalizer.get(key, True):
            raise TokenizerError(f"tokenizer.json: normalizer: {key} false is not supported")
    for id, text in enumerate(tokens):
        bracketed = len(text) > 2 and text[0] == "[" and text[-1] == "]"
        if types[id] == NORMAL and not bracketed:
            tokens[id] = text[2:] if len(text) > 2 and text.startswith("##") else "\u2581" + text
    lowercase, strips = bool(normalizer.get("lowercase", True)), normalizer.get("strip_accents")
    return {
        "model": "bert",
        "token_type_count": 2,
        "normalizer.lowercase": lowercase,
        "normalizer.strip_accents": lowercase if strips is None else bool(strips),
        "normalizer.nfd": True,
    }


def byte_level(document: dict[str, Any]) -> dict[str, Any]:
    """GPT-2's kind: merges, and the name of the pre-tokenizer."""
    model, normalizer = document["model"], document.get("normalizer")
    if normalizer and normalizer.get("type") != "NFC":  # readers of GGUF compose text
        raise TokenizerError(f"tokenizer.json: normalizer: {normalizer.get('type')!r:.40} is not supported")
    names = CUTS.get(tuple(cuts(document.get("pre_tokenizer"))))
    ignores = bool(model.get("ignore_merges"))
    if names is None:
        found = json.dumps(document.get("pre_tokenizer"))
        known = ", ".join(name for names in CUTS.values() for name in names)
        raise TokenizerError(f"tokenizer.json: pre_tokenizer: expected one of {known}, got {found:.300}")
    name = next((name for name in names if PRE_TOKENIZERS[name].ignore_merges == ignores), names[0])
    made: dict[str, Any] = {"model": "gpt2", "pre": name}
    made["merges"] = [f"{a} {b}" for a, b in merges_of(document)]
    if name in AS_SOURCE:
        made["pre_as_source"] = True
    if PRE_TOKENIZERS[name].ignore_merges != ignores:
        made["ignore_merges"] = ignores
    return made


def cuts(step: Any) -> Iterator[str]:
    """The steps of a pre-tokenizer: expressions, "digits" (single digits), or "bytes" (GPT-2's words)."""
    step = step or {}
    kind = step.get("type")
    if kind == "Sequence":
        for inner in step.get("pretokenizers", []):
            yield from cuts(inner)
    elif kind == "ByteLevel" and not step.get("add_prefix_space"):
        if step.get("use_regex", True):
            yield "bytes"
    elif kind == "Digits" and step.get("individual_digits"):
        yield "digits"
    elif kind == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
        expression = str(step.get("pattern", {}).get("Regex"))
        yield expression.replace("\r", r"\r").replace("\n", r"\n")  # some files have no escapes
    else:
        yield f"unknown {kind}"


def merges_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of tokens, best first, which files write as strings or as lists."""
    pairs = []
    for merge in document["model"].get("merges", []):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2 or any(" " in part for part in parts):
            raise TokenizerError(
                f"tokenizer.json: merges: expected pairs of tokens without spaces, got {merge!r:.60}"
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def sentence_piece(document: dict[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any]:
    """Llama 2's kind: the order of merges becomes scores."""
    ids = {text: id for id, text in enumerate(tokens)}
    scores = np.full(len(tokens), -1e6, np.float32)
    ranks: dict[str, int] = {}
    for rank, (a, b) in enumerate(merges_of(document)):
        ranks.setdefault(a + b, rank)
    for text, rank in ranks.items():
        if text in ids:
            scores[ids[text]] = -rank
    for byte in range(256):
        id = ids.get(f"<0x{byte:02X}>")
        if id is None:
            raise TokenizerError(f"tokenizer.json: byte_fallback: expected a token <0x{byte:02X}>, got none")
        types[id] = BYTE
    unknown = document["model"].get("unk_token")
    if unknown in ids:
        types[ids[unknown]] = UNKNOWN
    return {
        "model": "llama",
        "pre": "default",
        "scores": scores.tolist(),
        "add_space_prefix": prefixes(document),
    }


def with_merges(
    found: dict[str, Any], document: dict[str, Any], tokens: list[str], types: list[int]
) -> dict[str, Any]:
    """Gemma 4's kind: ``found`` with merges, and with marks of messages that are no control tokens."""
    if found["add_space_prefix"]:
        raise TokenizerError("tokenizer.json: normalizer: expected no space before the text, got one")
    for id, text in enumerate(tokens):
        if text in SPOKEN and types[id] == CONTROL:
            types[id] = USER_DEFINED
    merges = [f"{a} {b}" for a, b in merges_of(document)]
    return {key: value for key, value in found.items() if key != "pre"} | {
        "model": "gemma4",
        "merges": merges,
    }


def prefixes(document: dict[str, Any]) -> bool:
    """Whether a space is added before the text. Raises TokenizerError if spaces do not become U+2581."""
    steps: list[dict[str, Any]] = []
    for stage, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        step = document.get(stage) or {}
        steps += step.get(inner, []) if step.get("type") == "Sequence" else [step] if step else []
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    if steps[:-1] == [replaced] and steps[1].get("pattern") == {"String": " "}:
        del steps[1]  # Gemma's cut at spaces, which have been replaced
    if steps in ([{"type": "Prepend", "prepend": "\u2581"}, replaced], [replaced]):
        return len(steps) == 2
    if len(steps) == 1 and steps[0].get("type") == "Metaspace" and not steps[0].get("split", True):
        scheme = steps[0].get("prepend_scheme", "always")
        return bool(steps[0].get("add_prefix_space", True) if scheme is None else scheme != "never")
    raise TokenizerError(
        f"tokenizer.json: normalizer and pre_tokenizer are not supported: {json.dumps(steps):.300}"
    )


# --- special tokens, templates, comparison ----------------------------------------------------------


def text_of(token: Any) -> str | None:
    """A token's text, from a string or an object."""
    return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None


def special_ids(library: Any, settings: dict[str, Any], document: dict[str, Any], eos: Any) -> dict[str, Any]:
    """Ids of special tokens by name, and whether encoding adds a token at the beginning and at the end."""
    found: dict[str, Any] = {}
    for name, key in SPECIAL_KEYS.items():
        id = library.token_to_id(text_of(settings.get(f"{name}_token")) or "")
        if id is not None:
            found[key] = id
    if "eos_token_id" not in found and eos is not None and document["model"].get("type") == "BPE":
        found["eos_token_id"] = eos[0] if isinstance(eos, list) and eos else eos
    added: list[int] = library.encode("", add_special_tokens=True).ids
    if document["model"].get("type") == "WordPiece":
        if len(added) != 2:
            raise TokenizerError(
                f"tokenizer.json: post_processor: expected a token before and after, got {added}"
            )
        cls, sep = added
        unknown = library.token_to_id(document["model"].get("unk_token", "[UNK]"))
        return found | {
            **{"bos_token_id": cls, "cls_token_id": cls, "seperator_token_id": sep, "eos_token_id": sep},
            **{"unknown_token_id": unknown, "add_bos_token": True, "add_sep_token": True},
        }
    text: list[int] = library.encode("a", add_special_tokens=True).ids
    bare: list[int] = library.encode("a", add_special_tokens=False).ids
    before = text[: len(text) - len(bare)] if text[len(text) - len(bare) :] == bare else text[:1]
    after = text[len(before) + len(bare) :]
    if before:
        found["bos_token_id"] = before[0]
    if after:
        found["eos_token_id"] = after[-1]
    return found | {"add_bos_token": bool(before), "add_eos_token": bool(after)}


def chat_templates(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer.chat_template` and named templates, from chat_template.jinja or the tokenizer's settings."""
    beside = folder / "chat_template.jinja"
    told = read_text(beside) if exists(beside) else settings.get("chat_template")
    if told is None:
        return {}
    if isinstance(told, str):
        return {"tokenizer.chat_template": told}
    try:
        named = {str(entry["name"]): str(entry["template"]) for entry in told}
    except (TypeError, KeyError) as error:
        raise TokenizerError(
            "tokenizer_config.json: chat_template: expected a text or names and templates, got neither"
        ) from error
    found: dict[str, Any] = {
        f"tokenizer.chat_template.{n}": text for n, text in named.items() if n != "default"
    }
    if found:
        found["tokenizer.chat_templates"] = sorted(named.keys() - {"default"})
    return found | ({"tokenizer.chat_template": named["default"]} if "default" in named else {})


def compare(library: Any, metadata: dict[str, Any]) -> None:
    """Raises TokenizerError if the ids of a sample differ from the source's ids."""
    bridge = TokenizerBridge.from_metadata(metadata)
    for text in SAMPLES:
        wanted, found = library.encode(text, add_special_tokens=True).ids, bridge.encode(text)
        if wanted != found:
            raise TokenizerError(
                f"tokenizer.json: expected {wanted!r:.80} for {text!r:.60}, got {found!r:.80}"
            )
