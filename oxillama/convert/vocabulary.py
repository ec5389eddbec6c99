"""The vocabulary of a Hugging Face folder as GGUF metadata: BPE of bytes or like SentencePiece, WordPiece.

The options of tokenizer.json are converted if GGUF can express them, and refused otherwise. Then both
tokenizers encode a set of difficult texts: different ids are an error, so no file splits text in a way that
its model was not trained with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.convert.safetensors import exists, read_json, read_text
from oxillama.errors import TokenizerError
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.tokenizer.pretokenizers import AS_SOURCE, PRE_TOKENIZERS
from oxillama.tokenizer.tokenizer_json import library_errors, library_of

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

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_O200K = "|".join(
    (*(f"{word}{_SUFFIX}?" for word in _CASED), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACES)
)
_QWEN35 = "|".join(
    (_SUFFIX, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _SPACES)
)
_EXAONE_MOE = "|".join(
    (
        *(_SUFFIX, r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+", r"\p{N}"),
        *(r" ?[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]|\s+(?!\S)|\s+"),
    )
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_JAIS2 = "|".join(
    (
        _LLAMA3.removesuffix(r"|\s+(?!\S)|\s+"),
        *(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)),
        *(r"\s{1,2}(?!\S)", r"\s{1}"),
    )
)
CUTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("bytes",): ("gpt-2",),
    ("digits", "bytes"): ("smollm",),
    (_LLAMA3,): ("llama-bpe", "smaug-bpe"),
    (_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),): ("qwen2",),
    (_QWEN35,): ("qwen35",),
    (_TEKKEN,): ("tekken",),
    (_O200K,): ("gpt-4o",),
    (_EXAONE_MOE,): ("exaone-moe",),
    (_JAIS2,): ("jais-2",),
    _DEEPSEEK3: ("deepseek-v3",),
}
SPOKEN = {
    *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    '<|"|>',
}
"""Control tokens of Gemma 4 that readers of messages must see."""

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

    Parameters
    ----------
    n_vocab : rows of the embedding table; rows beyond the vocabulary get tokens that no text is encoded to.
    eos : eos_token_id of the model's config, used if the tokenizer's config does not name one.
    architecture : that of the model, by GGUF's name: Gemma 4 has a kind of tokenizer of its own.

    Raises
    ------
    ModelFileError : there is no tokenizer.json (or vocab.txt of a WordPiece), or it cannot be read.
    TokenizerError : it is of a kind, or has an option, that GGUF cannot express.
    """
    beside = folder / "tokenizer_config.json"
    settings = read_json(beside) if exists(beside) else {}
    document = read_document(folder, settings)
    with library_errors("tokenizer.json", "a tokenizer of a known form"):
        made = translated(document, settings, n_vocab, eos, architecture)
        return made | chat_templates(folder, settings)


def translated(
    document: dict[str, Any], settings: dict[str, Any], n_vocab: int, eos: Any, architecture: str = ""
) -> dict[str, Any]:
    """The pairs but the chat templates, checked against the library's tokenizer."""
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
    """tokenizer.json, or one made of BERT's vocab.txt."""
    if exists(folder / "tokenizer.json") or not exists(folder / "vocab.txt"):
        document = read_json(folder / "tokenizer.json")
        if not isinstance(document.get("model"), dict):
            raise TokenizerError("tokenizer.json: model: expected an object, got none")
        return document
    words = read_text(folder / "vocab.txt").rstrip("\n").split("\n")
    vocab = {word: id for id, word in enumerate(words)}
    names = {
        key: text_of(settings.get(f"{key}_token")) or f"[{key.upper()}]" for key in ("cls", "sep", "unk")
    }
    others = [text_of(settings.get(f"{key}_token")) or f"[{key.upper()}]" for key in ("pad", "mask")]
    missing = [name for name in names.values() if name not in vocab]
    if missing:
        raise TokenizerError(f"vocab.txt: expected {', '.join(missing)}, got no such token")
    lowercase = settings.get("do_lower_case", True)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocab[name], "content": name, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for name in sorted({*names.values(), *others} & vocab.keys(), key=vocab.__getitem__)
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "cls": [names["cls"], vocab[names["cls"]]],
            "sep": [names["sep"], vocab[names["sep"]]],
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


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
    """BERT's: what begins a word is spelled with U+2581 and what continues one without `##`."""
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
    if normalizer and normalizer.get("type") != "NFC":  # composed text is what GGUF's readers expect
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
    """The steps of a pre-tokenizer: an expression, "digits" for each alone, "bytes" for GPT-2's."""
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
        yield expression.replace("\r", r"\r").replace("\n", r"\n")  # some have the characters themselves
    else:
        yield f"unknown {kind}"


def merges_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs, best first, from strings or lists."""
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
    """Llama 2's kind: the order of merges becomes the scores by which neighbours are joined."""
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
    """Gemma 4's kind: the same with merges instead of scores alone, and parts of messages that are text."""
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
    """Whether a space goes before the text. Raises TokenizerError if spaces are not spelled U+2581."""
    steps: list[dict[str, Any]] = []
    for stage, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        step = document.get(stage) or {}
        steps += step.get(inner, []) if step.get("type") == "Sequence" else [step] if step else []
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    if steps[:-1] == [replaced] and steps[1].get("pattern") == {"String": " "}:
        del steps[1]  # Gemma's cut at spaces, of which none is left
    if steps in ([{"type": "Prepend", "prepend": "\u2581"}, replaced], [replaced]):
        return len(steps) == 2
    if len(steps) == 1 and steps[0].get("type") == "Metaspace" and not steps[0].get("split", True):
        scheme = steps[0].get("prepend_scheme", "always")
        return bool(steps[0].get("add_prefix_space", True) if scheme is None else scheme != "never")
    raise TokenizerError(
        f"tokenizer.json: normalizer and pre_tokenizer are not supported: {json.dumps(steps):.300}"
    )


# --- special tokens, templates, the proof -----------------------------------------------------------


def text_of(token: Any) -> str | None:
    """A token's text, as written or from its object."""
    return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None


def special_ids(library: Any, settings: dict[str, Any], document: dict[str, Any], eos: Any) -> dict[str, Any]:
    """Ids of special tokens by name, and whether encoding adds those of the beginning and the end."""
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
    """`tokenizer.chat_template` and its named siblings, from their own file or the tokenizer's settings."""
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
    """Raises TokenizerError if the ids of a sample differ from those of the source."""
    bridge = TokenizerBridge.from_metadata(metadata)
    for text in SAMPLES:
        wanted, found = library.encode(text, add_special_tokens=True).ids, bridge.encode(text)
        if wanted != found:
            raise TokenizerError(
                f"tokenizer.json: expected {wanted!r:.80} for {text!r:.60}, got {found!r:.80}"
            )
