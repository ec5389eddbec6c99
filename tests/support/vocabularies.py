"""Small vocabularies of every kind, as GGUF metadata; the same each time they are built.

They are made to reveal mistakes, not to be useful: in the byte-pair one every pair of sample characters
is a token, so that a cut between any two of them shows in the ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.text.tokenizer.segmenters.byte_pair import BYTE_TO_CHAR

# Members of every class the pre-tokenizers tell apart.
CHARACTERS = (
    " \n\r\tastrevldmSTAZD0159'.!/$<(\"_|=\x00\x1c\x7f"
    "éÉǅʰ中々かカ한ㄱㄅＡٱกခ"  # letters of all kinds and scripts
    "\u0301\u093e\u20dd²½Ⅳ٣１"  # marks, numbers
    "…。，“—、・«€+^✅🦙"  # punctuation, symbols
    "\u200d\ufe0f\xad\ue000\u0378\ufada\U000e0001\U00031350\ufffd"  # joiners, private use, unassigned
    "\xa0\u3000\x85\u2028\u1680"  # spaces
)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def metadata(model: str, tokens: list[str], types: list[int], **more: Any) -> dict[str, Any]:
    """Metadata of a vocabulary; `more` holds `tokenizer.ggml.*` keys without their prefix."""
    keys = {"model": model, "tokens": tokens, "token_type": np.array(types, np.int32), **more}
    return {
        "general.architecture": "llama",
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def _spell(text: str) -> str:
    return "".join(BYTE_TO_CHAR[byte] for byte in text.encode())


def byte_pair(pre: str | None, **more: Any) -> dict[str, Any]:
    """Bytes, the sample characters, all pairs of them and a few words, as byte-level BPE."""
    tokens, merges = list(BYTE_TO_CHAR.values()), []
    known = set(tokens)

    def add(left: str, right: str) -> str:
        merges.append(f"{left} {right}")
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
        return left + right

    spelled = []
    for character in CHARACTERS:
        symbol, *rest = _spell(character)
        for byte in rest:
            if symbol + byte not in known:
                add(symbol, byte)
            symbol += byte
        spelled.append(symbol)
    for left in spelled:
        for right in spelled:
            add(left, right)
    for word in ("test", "Ġtest", "ĠĠĠĠ", "0159", "ĊĊĊĊ"):
        known.add(word)
        tokens.append(word)  # no merge makes these: only vocabularies that look up whole words find them
    types = [NORMAL] * len(tokens)
    special = {
        "<s>": CONTROL,
        "</s>": CONTROL,
        "<|end|>": CONTROL,
        "<tool>": USER_DEFINED,
        "  \n": USER_DEFINED,
    }
    ids = {}
    for text, kind in special.items():
        ids[text] = len(tokens)
        tokens.append(text)
        types.append(kind)
    named = {"bos_token_id": ids["<s>"], "eos_token_id": ids["</s>"]}
    if pre is not None:
        more["pre"] = pre
    return metadata("gpt2", tokens, types, merges=merges, **{**named, **more})


def sentence_piece(**more: Any) -> dict[str, Any]:
    """SentencePiece BPE with byte tokens, ties in score, spaces inside tokens and user-defined tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    scores = [0.0] * len(tokens)
    words = [
        "▁", "a", "b", "c", "e", "h", "l", "o", "t", "▁t", "he", "▁h", "ll", "lo", "▁the", "ell", "hello",
        "▁hello", "o▁", "o▁t", "▁▁", "▁▁▁▁", "▁▁▁", "aa", "aaa", "aaaa", "ab", "ba", "bab", "abab", "é", "中",
        "中文",
    ]  # fmt: skip
    for i, word in enumerate(words):
        tokens.append(word)
        types.append(NORMAL)
        scores.append(-float(i // 4))
    for text, kind in (
        ("<|im_end|>", CONTROL),
        ("[USER]", USER_DEFINED),
        ("\n\n", USER_DEFINED),
        ("▁▁t", USER_DEFINED),
    ):
        tokens.append(text)
        types.append(kind)
        scores.append(-1000.0 if kind == USER_DEFINED else 0.0)
    named = {
        "scores": np.array(scores, np.float32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return metadata("llama", tokens, types, **{**named, **more})


def plain_byte_pair(**more: Any) -> dict[str, Any]:
    """BPE over characters with byte tokens (Gemma 4)."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[BYTE] * 256]
    merges = [
        "▁ t", "h e", "▁t he", "▁ h", "l l", "e ll", "▁h ell", "▁hell o", "o ▁", "a a", "aa a", "a aa",
        "aa aa", "b a", "a b", "ab ab", "▁ ▁", "▁▁ ▁▁", "中 文",
    ]  # fmt: skip
    plain = [*"▁abcehlot中文é", "\n", "\n\n", "\n\n\n"]
    tokens += dict.fromkeys(plain + [merge.replace(" ", "") for merge in merges])
    types += [NORMAL] * (len(tokens) - len(types))
    tokens += ["<|turn>", "<turn|>"]
    types += [CONTROL, CONTROL]
    named = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "padding_token_id": 0}
    return metadata("gemma4", tokens, types, merges=merges, **{**named, **more})


def charsmap(replacements: dict[str, str]) -> bytes:
    """A SentencePiece precompiled_charsmap; each trie node has a block of 256 units of its own."""
    trie: dict[Any, Any] = {}
    for key, replacement in replacements.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node["end"] = replacement.encode()
    strings = bytearray()
    units = {0: 0}
    pending = [(trie, 0)]
    for count, (node, index) in enumerate(pending, 1):
        block = count << 8  # children are found at block ^ byte, a replacement at block itself
        units[index] |= (index ^ block) << 10
        if "end" in node:
            units[index] |= 1 << 8
            units[block] = 1 << 31 | len(strings)
            strings += node["end"] + b"\0"
        for byte, child in node.items():
            if byte != "end":
                units[block ^ byte] = byte
                pending.append((child, block ^ byte))
    array = np.zeros((len(pending) + 1) << 8, "<u4")
    array[list(units)] = list(units.values())
    return np.uint32(array.nbytes).tobytes() + array.tobytes() + bytes(strings)


def unigram(**more: Any) -> dict[str, Any]:
    """Unigram with ties, an unused and a user-defined token, and a normalization table."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>"]
    types, scores = [CONTROL, CONTROL, CONTROL, UNKNOWN], [0.0] * 4
    pieces = {
        "▁": -2.0, "▁the": -3.5, "the": -4.0, "▁t": -3.0, "he": -2.5, "h": -4.0, "e": -3.0, "t": -3.1,
        "l": -3.2, "lo": -4.0, "hel": -5.0, "▁hello": -6.0, "o": -3.3, "a": -2.0, "aa": -4.0, "aaa": -6.0,
        "é": -7.0, "中": -5.5, "中文": -8.0, "1/2": -9.0,
    }  # fmt: skip
    tokens += pieces
    scores += pieces.values()
    types += [NORMAL] * len(pieces)
    tokens += ["zz", "XY", "<mask>"]
    scores += [-1.0, 0.0, 0.0]
    types += [UNUSED, USER_DEFINED, CONTROL]
    table = charsmap(
        {"\t": " ", "\n": " ", "Ａ": "a", "½": "1/2", "e\u0301": "é", "\u200b": "", "ﬁ": "hello"}
    )
    named = {
        "scores": np.array(scores, np.float32),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "padding_token_id": 1,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "precompiled_charsmap": np.frombuffer(table, np.uint8),
        "add_bos_token": True,
        "add_eos_token": True,
    }
    return metadata("t5", tokens, types, **{**named, **more})


def word_piece(**more: Any) -> dict[str, Any]:
    """BERT WordPiece."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    types = [CONTROL] * 5
    words = [
        "▁hello", "▁he", "llo", "▁world", "ld", "▁wor", "▁!", "▁,", "▁'", "▁a", "▁e", "▁caf", "e", "s",
        "ing", "▁run", "n", "▁中", "▁文", "▁$", "▁€", "x", "▁o", "o", "▁1", "2", "3", "12", "▁í", "▁.", "▁ß",
        "▁ㄱ",
    ]  # fmt: skip
    tokens += words
    types += [NORMAL] * len(words)
    named = {
        "unknown_token_id": 1,
        "bos_token_id": 2,
        "seperator_token_id": 3,
        "padding_token_id": 0,
        "mask_token_id": 4,
        "cls_token_id": 2,
    }
    return metadata("bert", tokens, types, **{**named, **more})


def rwkv(**more: Any) -> dict[str, Any]:
    """RWKV world: every byte and a few longer tokens, in their escaped spelling."""
    tokens = ["<s>"]
    for byte in range(256):
        escapes = {9: "\\t", 10: "\\n", 13: "\\r", 92: "\\\\"}
        tokens.append(escapes.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"))
    tokens += ["\\n\\n", "the", " the", "hello", "hel", "中", "中文", "\\xf0\\x9f", "aa", "aaaa", "\\'"]
    return metadata("rwkv", tokens, [NORMAL] * len(tokens), **more)


def plamo2(**more: Any) -> dict[str, Any]:
    """PLaMo 2: scored pieces and byte tokens."""
    tokens = [
        "<|plamo:unk|>",
        "<|plamo:bos|>",
        "<|plamo:eos|>",
        "<|plamo:pad|>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL, *[BYTE] * 256]
    pieces = {
        "a": -2.0, "aa": -4.0, "aaa": -5.99999, "h": -3.0, "he": -3.5, "hello": -7.0, "l": -3.0, "lo": -3.1,
        " ": -1.0, " hello": -7.5, "中": -5.0, "中文": -9.0, "\n": -2.0,
    }  # fmt: skip
    scores = [0.0] * len(tokens) + list(pieces.values())
    tokens += pieces
    types += [NORMAL] * len(pieces)
    return metadata("plamo2", tokens, types, **{"scores": np.array(scores, np.float32), **more})


def dna(**more: Any) -> dict[str, Any]:
    """Byte-pair words and DNA in sixes."""
    values = byte_pair("qwen2", **more)
    values["tokenizer.ggml.model"] = "hybriddna"
    extra = ["<dna>", "</dna>", "<oov>", "ACGTAC\ue000", "AAAAAA\ue000", "CCCCCC\ue000", "GATTAA\ue000"]
    types = values["tokenizer.ggml.token_type"].tolist() + [CONTROL] * 3 + [NORMAL] * 4
    values["tokenizer.ggml.tokens"] = values["tokenizer.ggml.tokens"] + extra
    values["tokenizer.ggml.token_type"] = np.array(types, np.int32)
    return values


def whitespace(**more: Any) -> dict[str, Any]:
    """Words between spaces, plain characters."""
    values = plain_byte_pair(pre="whitespace", **more)
    values["tokenizer.ggml.model"] = "whitespace"
    return values
