"""Tokenizers as newer models have them: trained here, translated, and compared over many texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from oxillama.apps.convert.vocabulary import BYTE, CUTS, SAMPLES, USER_DEFINED, translated
from oxillama.errors import TokenizerError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.support.spread import pairs

MORE = (
    "приВет ДОМ дом ДоМ Дом \u0301дом нама\u0301 हिन्दी में नमस्ते தமிழ் ภาษาไทย ǅep ʰa",
    "we'LL They'Ve don't DON'T x'S /a//b/\r\n\r\n  \n 1234567 12 a1b2",
    "안녕 하세요 여러분 이것은 긴 문장 입니다",
    "word " * 9 + "a" + " " * 600 + "b",
)
TEXTS = st.text("aBcДд Ёё'sSLl\u0301\u0902\u093fनम한국語タ1२3 \n\r\t/!-_·ʰǅ\u3000", max_size=40)


LLAMA3 = next(cut for cut, names in CUTS.items() if "llama-bpe" in names)


def trained(cut: tuple[str, ...], *, ignore_merges: bool) -> Tokenizer:
    """Byte-level BPE with merges across everything that the samples hold and the cut lets through."""
    tokenizer: Any = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    steps: list[Any] = []
    for step in cut:
        if step == "digits":
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        elif step != "bytes":
            steps.append(pre_tokenizers.Split(Regex(step), "isolated"))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex="bytes" in cut)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=3000,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for text in (*SAMPLES, *MORE) for _ in range(3)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def bridge_of(tokenizer: Tokenizer, architecture: str = "") -> tuple[dict[str, Any], TokenizerBridge]:
    made = translated(json.loads(tokenizer.to_str()), {}, tokenizer.get_vocab_size(), None, architecture)
    return made, TokenizerBridge.from_metadata(made)


@pytest.mark.parametrize(("cut", "ignore_merges"), pairs(CUTS, [False, True]))
def test_cuts(cut: tuple[str, ...], ignore_merges: bool) -> None:
    """Pieces of words, of marks, of both cases and of spaces are those of the source."""
    tokenizer = trained(cut, ignore_merges=ignore_merges)
    made, bridge = bridge_of(tokenizer)
    name = made["tokenizer.ggml.pre"]
    assert name in CUTS[cut]
    stated = made.get("tokenizer.ggml.ignore_merges", PRE_TOKENIZERS[name].ignore_merges)
    assert stated == ignore_merges
    assert made.get("tokenizer.ggml.pre_as_source", False) == (name in ("tekken", "gpt-4o"))

    @settings(max_examples=150, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        assert bridge.encode(text) == tokenizer.encode(text).ids

    check()
    for text in MORE:
        assert bridge.encode(text) == tokenizer.encode(text).ids, text


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("cut", [("bytes",), LLAMA3], ids=["gpt-2", "llama-bpe"])
def test_tokens_that_no_merge_makes(cut: tuple[str, ...], ignore_merges: bool) -> None:
    """A piece may be one all the same, as the source says, whatever the row of the name has."""
    document = json.loads(trained(cut, ignore_merges=True).to_str())
    id = document["model"]["vocab"]["zqxj"] = len(document["model"]["vocab"])
    document["model"]["ignore_merges"] = ignore_merges
    tokenizer: Any = Tokenizer.from_str(json.dumps(document))
    _, bridge = bridge_of(tokenizer)
    assert bridge.encode("zqxj") == tokenizer.encode("zqxj").ids
    assert (bridge.encode("zqxj") == [0, id]) == ignore_merges


def test_line_ends_as_characters() -> None:
    """Some tokenizers have them in their expressions as they are, others as escapes."""
    cut = next(cut for cut, names in CUTS.items() if "deepseek-v3" in names)
    written = tuple(step.replace(r"\r", "\r").replace(r"\n", "\n") for step in cut)
    assert written != cut
    made, _ = bridge_of(trained(written, ignore_merges=False))
    assert made["tokenizer.ggml.pre"] == "deepseek-v3"


@pytest.mark.parametrize("name", ["tekken", "gpt-4o"])
def test_other_programs_cut_before_marks(name: str) -> None:
    """Without the key, files are cut as llama.cpp cuts them, and the proof would fail."""
    cut = next(cut for cut, names in CUTS.items() if name in names)
    tokenizer = trained(cut, ignore_merges=PRE_TOKENIZERS[name].ignore_merges)
    made, bridge = bridge_of(tokenizer)
    del made["tokenizer.ggml.pre_as_source"]
    other = TokenizerBridge.from_metadata(made)
    assert other.encode("नमस्ते") != tokenizer.encode("नमस्ते").ids == bridge.encode("नमस्ते")
    assert other.encode("Hello, world") == bridge.encode("Hello, world")


def test_the_key_is_for_some_rows_alone() -> None:
    tokenizer = trained(("bytes",), ignore_merges=False)
    made, _ = bridge_of(tokenizer)
    with pytest.raises(TokenizerError, match="expected tekken, gpt-4o with pre_as_source, got 'gpt-2'"):
        TokenizerBridge.from_metadata(made | {"tokenizer.ggml.pre_as_source": True})


def gemma_tokenizer() -> Tokenizer:
    """BPE over characters, with spaces spelled U+2581 and bytes for what is no token."""
    normal = [f"<0x{byte:02X}>" for byte in range(256)]
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    trainer = BpeTrainer(vocab_size=1500, special_tokens=[*specials, *normal], show_progress=False)
    learner: Any = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    learner.normalizer = normalizers.Replace(" ", "\u2581")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    learner.train_from_iterator([text for text in (*SAMPLES, *MORE) for _ in range(3)], trainer)
    document = json.loads(learner.to_str())
    document["pre_tokenizer"] = {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
    }  # fmt: skip
    document["added_tokens"] = document["added_tokens"][: len(specials)]
    tokenizer: Any = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens([AddedToken("<|tool_call>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer


def test_gemma_4() -> None:
    """Merges are kept; bytes have their type; what readers of messages need is no control token."""
    tokenizer = gemma_tokenizer()
    made, bridge = bridge_of(tokenizer, "gemma4")
    assert made["tokenizer.ggml.model"] == "gemma4"
    assert made["tokenizer.ggml.merges"]
    types = made["tokenizer.ggml.token_type"]
    assert types[4:260] == [BYTE] * 256
    assert types[tokenizer.token_to_id("<|tool_call>")] == USER_DEFINED
    assert bridge_of(tokenizer)[0]["tokenizer.ggml.model"] == "llama"

    @settings(max_examples=150, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        assert bridge.encode(text) == tokenizer.encode(text).ids

    check()
    for text in MORE:
        assert bridge.encode(text) == tokenizer.encode(text).ids, text
