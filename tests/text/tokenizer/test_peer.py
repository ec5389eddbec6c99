"""Every pre-tokenizer cuts random Unicode as llama.cpp does, where that is installed."""

from __future__ import annotations

import random
import unicodedata

import pytest

from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.support import vocabularies
from tests.text.tokenizer.test_tokenizer import MODES, metadata_for

WORDS = ("'s", "'T", "'re", "'VE", "'ll", "'d", "'mA", "\u2019s", "test", " test", "0159", "\u0660\u0663",
         "\u00bd", "  \n\n", "\r\n", "\t ", "\u00a0", "\u2003\u3000", "e\u0301\u0327", "\u0928\u093f",
         "\uac00\u1100\u1161", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd",
         "\U0001f1e9\U0001f1ea", "\ufe0f", "\ufeff")  # fmt: skip
PLANES = ((0, 0x250), (0x250, 0x2000), (0x2000, 0x3400), (0x3400, 0xD800), (0xE000, 0x10000),
          (0x10000, 0x20000), (0x20000, 0x32000), (0xE0000, 0xE0200), (0xF0000, 0x110000))  # fmt: skip


def random_text(choose: random.Random) -> str:
    """Characters of all planes, between words and characters that vocabularies merge."""
    parts: list[str] = []
    for _ in range(choose.randrange(1, 12)):
        kind = choose.random()
        if kind < 0.4:
            n = choose.randrange(1, 4)
            parts.append("".join(chr(choose.randrange(*choose.choice(PLANES))) for _ in range(n)))
        elif kind < 0.7:
            parts.append(choose.choice(WORDS) * choose.randrange(1, 3))
        else:
            parts.append("".join(choose.choices(vocabularies.CHARACTERS, k=choose.randrange(1, 5))))
    return unicodedata.normalize(choose.choice(("NFC", "NFD", "NFKC")), "".join(parts).replace("\x00", "a"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("pre", [name for name in PRE_TOKENIZERS if name != "whitespace"])
def test_random_unicode(pre: str) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from tools.record_tokenizer_vectors import llama_cpp_tokens

    choose = random.Random(pre)
    texts = [random_text(choose) for _ in range(300)]
    metadata = metadata_for(pre)
    tokenizer = TokenizerBridge.from_metadata(metadata)
    for text, wanted in zip(texts, llama_cpp_tokens(metadata, texts), strict=True):
        assert [tokenizer.encode(text, add, parse) for add, parse in MODES] == wanted, ascii(text)
