"""Tokenizers of every kind against ids recorded from llama.cpp, and what must hold for any text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama.errors import ChatTemplateError, TokenizerError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.tokenizer.characters import categories, class_view
from oxillama.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from oxillama.text.tokenizer.segmenters.byte_pair import _merge_many, merge_pairs
from tests.support import vocabularies
from tests.support.fitted import chat_tokens
from tests.support.gguf_writer import write_metadata
from tests.support.paths import DATA, VOCABS
from tests.support.vocabularies import BYTE, CONTROL, NORMAL, USER_DEFINED

VECTORS = json.loads((DATA / "tokenizer_vectors.json").read_text())
MODES = ((False, False), (True, True))  # add_special, parse_special: as recorded
KINDS = sorted(VECTORS["kinds"])

FILES = sorted(path for path in VOCABS.glob("*.gguf") if path.with_suffix(".gguf.inp").exists())


def make(kind: str, **more: Any) -> TokenizerBridge:
    return TokenizerBridge.from_metadata(getattr(vocabularies, kind)(**more))


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, TokenizerBridge]:
    return {kind: make(kind) for kind in KINDS} | {"byte_pair": make("byte_pair", pre="qwen2")}


# --------------------------------------------------------------------------- equal to llama.cpp


def metadata_for(pre: str) -> dict[str, Any]:
    if pre and not PRE_TOKENIZERS[pre].byte_level:
        return {**vocabularies.plain_byte_pair(pre=pre), "tokenizer.ggml.model": "gpt2"}
    return vocabularies.byte_pair(pre or None)


@pytest.mark.parametrize("pre", VECTORS["pre"])
def test_pre_tokenizer_equals_llama_cpp(pre: str) -> None:
    tokenizer = TokenizerBridge.from_metadata(metadata_for(pre))
    for text, recorded in zip(VECTORS["texts"], VECTORS["ids"][VECTORS["pre"][pre]], strict=True):
        assert [tokenizer.encode(text, add, parse) for add, parse in MODES] == recorded, text


def test_every_pre_tokenizer_is_recorded() -> None:
    others = {"whitespace", "k2-horizon"}  # a kind of its own; newer than the build that was recorded
    assert set(VECTORS["pre"]) - {""} == set(PRE_TOKENIZERS) - others


def test_recorded_texts_tell_the_pre_tokenizers_apart() -> None:
    rows: dict[Any, set[int]] = {}
    for name, result in VECTORS["pre"].items():
        row = PRE_TOKENIZERS[name or "default"]
        rows.setdefault((row.steps, row.ignore_merges, row.add_bos, row.newline_tokens), set()).add(result)
    assert all(len(results) == 1 for results in rows.values())
    # qwen2's and bailingmoe's expressions differ and yet cut alike.
    assert len({result for results in rows.values() for result in results}) >= len(rows) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_kind_equals_llama_cpp(kind: str, tokenizers: dict[str, TokenizerBridge]) -> None:
    recorded = VECTORS["kinds"][kind]
    for text, ids in zip(recorded["texts"], recorded["ids"], strict=True):
        assert [tokenizers[kind].encode(text, add, parse) for add, parse in MODES] == ids, text


@pytest.mark.skipif(not FILES, reason="vocabulary files absent: python tools/fetch_vocabs.py")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_vocabulary_file_equals_llama_cpp(path: Path) -> None:
    tokenizer = TokenizerBridge.from_gguf(path)
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    texts = texts if texts[-1] else texts[:-1]
    lines = path.with_suffix(".gguf.out").read_text().splitlines()
    assert len(texts) == len(lines) > 40
    for text, line in zip(texts, lines, strict=True):
        assert tokenizer.encode(text, add_special=False) == [int(id) for id in line.split()], text
    if tokenizer.vocab.kind in ("bpe", "spm"):
        assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_from_gguf(tmp_path: Path) -> None:
    for kind in ("byte_pair", *KINDS):
        values = getattr(vocabularies, kind)(**({"pre": "qwen2"} if kind == "byte_pair" else {}))
        write_metadata(tmp_path / "vocabulary.gguf", values)
        tokenizer = TokenizerBridge.from_gguf(tmp_path / "vocabulary.gguf")
        expected = TokenizerBridge.from_metadata(values)
        assert tokenizer.vocab == expected.vocab
        assert tokenizer.vocab_bytes() == expected.vocab_bytes()
        text = "hello the 中文\n"
        assert tokenizer.encode(text) == expected.encode(text)


# --------------------------------------------------------------------------- any text

SAMPLES = st.text(st.sampled_from(vocabularies.CHARACTERS + "hello▁ab中文")) | st.text(
    st.characters(exclude_categories=["Cs"])
)


@pytest.mark.parametrize("kind", ["byte_pair", "sentence_piece", "plain_byte_pair", "rwkv", "plamo2"])
@settings(deadline=None)
@given(text=SAMPLES)
def test_decoding_gives_the_text_back(kind: str, tokenizers: dict[str, TokenizerBridge], text: str) -> None:
    tokenizer = tokenizers[kind]
    if kind in ("sentence_piece", "plain_byte_pair"):
        text = text.replace("▁", "_")  # in these a real U+2581 reads as a space
    if kind == "sentence_piece":
        # the text after a special token gets a space
        text = re.sub(r"\n{2,}", "\n", text.replace("[USER]", ""))
    if kind == "plamo2":
        text = text.lstrip("\ufeff")
    if kind == "byte_pair":
        text = text.replace("<tool>", "")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["byte_pair", *KINDS])
@settings(deadline=None)
@given(data=st.data())
def test_stream_equals_decode(kind: str, tokenizers: dict[str, TokenizerBridge], data: st.DataObject) -> None:
    tokenizer = tokenizers[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1)))
    skip, continuing = data.draw(st.booleans()), data.draw(st.booleans())
    stream = tokenizer.stream_decoder(skip, continuing=continuing)
    parts = [stream.push(id) for id in ids]
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids, skip, continuing=continuing)


def test_stream_never_emits_half_a_character(tokenizers: dict[str, TokenizerBridge]) -> None:
    stream = tokenizers["sentence_piece"].stream_decoder()
    assert [stream.push(3 + byte) for byte in "🦙".encode()] == ["", "", "", "🦙"]
    assert stream.push(3 + 0xF0) == ""
    assert stream.flush() == "\ufffd"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 20)), min_size=1, max_size=20), st.integers(0, 5)
)
def test_long_words_are_merged_like_short_ones(runs: list[tuple[str, int]], seed: int) -> None:
    costs: dict[str, float] = {}
    choose = random.Random(seed)

    def cost(left: str, right: str) -> float:  # ties are common, and some pairs do not join
        if len(left + right) > 6:
            return float("inf")
        return costs.setdefault(left + right, choose.choice((1.0, 2.0, 3.0, float("inf"))))

    symbols = list("".join(char * count for char, count in runs))
    assert _merge_many(list(symbols), cost) == merge_in_one_piece(list(symbols), cost)
    assert merge_pairs(list(symbols), cost) == merge_in_one_piece(list(symbols), cost)


def merge_in_one_piece(symbols: list[str], cost: Callable[[str, str], float]) -> list[str]:
    """The definition: join the cheapest, leftmost pair; again, until none is left."""
    while len(symbols) > 1:
        costs = [cost(a, b) for a, b in pairwise(symbols)]
        best = min(costs)
        if best == float("inf"):
            break
        i = costs.index(best)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return symbols


def test_merging_is_near_linear() -> None:
    calls = 0

    def cost(left: str, right: str) -> float:
        nonlocal calls
        calls += 1
        return float(len(left + right)) if len(left + right) <= 64 else float("inf")

    merge_pairs(["a"] * 100_000, cost)
    assert calls < 400_000


@pytest.mark.parametrize("kind", ["byte_pair", *KINDS])
def test_long_runs_are_encoded(kind: str, tokenizers: dict[str, TokenizerBridge]) -> None:
    for character in " \na0中":
        ids = tokenizers[kind].encode(character * 20_000, add_special=False)
        assert len(ids) > 1 or kind in ("word_piece", "unigram", "whitespace")


@pytest.mark.parametrize("kind", ["byte_pair", *KINDS])
def test_lone_surrogate_is_an_error(kind: str, tokenizers: dict[str, TokenizerBridge]) -> None:
    with pytest.raises(TokenizerError, match="lone surrogate U\\+D800 at character 1"):
        tokenizers[kind].encode("a\ud800")
    with pytest.raises(TokenizerError, match="expected a str, got bytes"):
        tokenizers[kind].encode(b"a")  # type: ignore[arg-type]


def test_class_view_follows_the_unicode_table() -> None:
    assert categories().shape == (0x110000,)
    assert [chr(categories()[ord(c)]) for c in "aЖ中0½.…$€\u0301\u3000\x00\u0378"] == list("LLLNNPPSSMZCX")
    assert class_view("中\U0002ebef\U0002ebf0\ufada\ufb00", "han") == "\xd6\xd7\xd2\xd7\xd2"
    assert class_view("éÉǅʰ中\u0301aA", "cased") == "\xd9\xd8\xd8\xd2\xd2\xd4aA"
    assert class_view("é½…\u0301€\u0378\u3000a中") == "\xd2\xd1\xd3\xd4\xd5\xd0\va\xd2"


# --------------------------------------------------------------------------- special tokens and ids


def test_special_tokens_are_parsed_only_when_asked() -> None:
    tokenizer = make("byte_pair", pre="gpt-2")
    names = {name: tokenizer.token_id(name) for name in ("<s>", "</s>", "<|end|>", "<tool>")}
    parsed = tokenizer.encode("<s>t</s><|end|><tool>", add_special=False, parse_special=True)
    assert [id for id in parsed if id in names.values()] == list(names.values())
    plain = tokenizer.encode("<s>t</s><|end|><tool>", add_special=False)
    assert [id for id in plain if id in names.values()] == [names["<tool>"]]  # user-defined: always
    assert tokenizer.decode(parsed) == "t<tool>"
    assert tokenizer.decode(parsed, skip_special=False) == "<s>t</s><|end|><tool>"


@pytest.mark.parametrize(
    ("added", "text", "pieces"),
    [
        (["xab", "abcd", "cdef"], "xabcdef", ["x", "abcd", "e", "f"]),
        (["bbbbbbbbbb", "bYccccc", "bbbbbY"], "bbbbbYccccc", [*"bbbb", "bYccccc"]),
        (["abcd", "dé中"], "abcdé中", [*"abc", "dé中"]),  # lengths are in bytes
    ],
)
def test_longer_special_tokens_win_over_earlier_ones(added: list[str], text: str, pieces: list[str]) -> None:
    values = vocabularies.rwkv()
    with_tokens(values, added, USER_DEFINED)
    assert texts_of(TokenizerBridge.from_metadata(values), text) == pieces


def test_spaces_of_another_special_token_are_not_swallowed() -> None:
    values = vocabularies.byte_pair("jina-v2-code")
    with_tokens(values, ["<mask>", "\n       "], USER_DEFINED)
    found = texts_of(TokenizerBridge.from_metadata(values), "a \n         <mask>")
    assert found == ["a", "Ġ", "\n       ", "<mask>"]


def test_tokens_that_swallow_spaces() -> None:
    values = vocabularies.byte_pair("gpt-2") | {"general.name": "Phi-3 mini"}
    tokenizer = TokenizerBridge.from_metadata(values)
    ids = tokenizer.encode("<|end|> \n t<s> t", add_special=False, parse_special=True)
    assert tokenizer.decode(ids, skip_special=False) == "<|end|>t<s> t"


def texts_of(tokenizer: TokenizerBridge, text: str) -> list[str]:
    """The texts of the tokens of a text."""
    return [tokenizer.token_text(id) for id in tokenizer.encode(text, add_special=False)]


def with_tokens(values: dict[str, Any], texts: list[str], kind: int) -> None:
    values["tokenizer.ggml.tokens"] = values["tokenizer.ggml.tokens"] + texts
    types = values["tokenizer.ggml.token_type"].tolist() + [kind] * len(texts)
    values["tokenizer.ggml.token_type"] = np.array(types, np.int32)
    if "tokenizer.ggml.scores" in values:
        scores = values["tokenizer.ggml.scores"].tolist() + [0.0] * len(texts)
        values["tokenizer.ggml.scores"] = np.array(scores, np.float32)


def ends(*texts: str, kind: int = CONTROL, **more: Any) -> set[str]:
    values = vocabularies.byte_pair("gpt-2", **more)
    with_tokens(values, list(texts), kind)
    tokenizer = TokenizerBridge.from_metadata(values)
    assert all(tokenizer.is_eos(id) for id in tokenizer.eog_ids)
    return {tokenizer.token_text(id) for id in tokenizer.eog_ids}


def test_end_of_generation_is_a_set() -> None:
    assert ends() == {"</s>", "<|end|>"}  # eos, and one known by its text
    assert ends("<|im_end|>", "<|eom_id|>") == {"</s>", "<|end|>", "<|im_end|>", "<|eom_id|>"}
    assert ends("<end_of_turn>", kind=NORMAL) == {"</s>", "<|end|>", "<end_of_turn>"}
    assert ends("<|fim_pad|>", "<|fim_prefix|>") == {"</s>", "<|end|>", "<|fim_pad|>"}
    assert ends("<|return|>", "<|call|>") == {"</s>", "<|return|>", "<|call|>"}  # <|end|> ends a message only
    assert ends("<|tool_response>") == {"<|end|>", "<|tool_response>"}


def test_mislabelled_end_token_becomes_control() -> None:
    values = vocabularies.byte_pair("gpt-2")
    with_tokens(values, ["<|im_end|>"], NORMAL)
    tokenizer = TokenizerBridge.from_metadata(values)
    id = tokenizer.token_id("<|im_end|>")
    assert id is not None and tokenizer.is_control(id)
    assert tokenizer.encode("<|im_end|>", add_special=False, parse_special=True) == [id]
    assert len(tokenizer.encode("<|im_end|>", add_special=False)) > 1


def test_token_facts() -> None:
    tokenizer = make("sentence_piece")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.sep_id) == (1, 2, 0, None)
    assert tokenizer.token_bytes(3 + 0xFF) == b"\xff"
    assert tokenizer.token_bytes(tokenizer.vocab.ids["▁hello"]) == b" hello"
    assert tokenizer.vocab_bytes() is tokenizer.vocab_bytes()
    assert tokenizer.vocab_bytes()[1] == b"<s>"
    wrong: tuple[Any, ...] = (-1, tokenizer.n_vocab, 1.0, "1", None)
    for id in wrong:
        for act in (tokenizer.token_bytes, tokenizer.is_control, lambda id: tokenizer.decode([id])):
            message = rf"token id: expected an integer from 0 to \d+, got {re.escape(repr(id))}"
            with pytest.raises(TokenizerError, match=message):
                act(id)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        *(([f"fim_{part}_token_id"], f"fim_{part}") for part in ("pre", "suf", "mid", "pad", "rep", "sep")),
        (["prefix_token_id"], "fim_pre"),
        (["suffix_token_id"], "fim_suf"),
        (["middle_token_id"], "fim_mid"),
        (["fim_pre_token_id", "prefix_token_id"], "fim_pre"),  # the last one counts
    ],
)
def test_tokens_of_infilling_are_read(keys: list[str], name: str) -> None:
    tokenizer = make("byte_pair", pre="gpt-2", **{key: 5 + i for i, key in enumerate(keys)})
    assert tokenizer.vocab.special[name] == 4 + len(keys)


def test_of_equal_merges_the_first_counts() -> None:
    tokenizer = make("byte_pair", pre="gpt-2")
    values = vocabularies.byte_pair("gpt-2") | {P + "merges": ["a e", "e r", "a e"]}
    found = TokenizerBridge.from_metadata(values).encode("aer", add_special=False)
    assert found == [tokenizer.token_id("ae"), tokenizer.token_id("r")]


def test_a_score_of_minus_infinity_is_the_worst_that_joins() -> None:
    values = vocabularies.sentence_piece()
    tokens, scores = values[P + "tokens"], values[P + "scores"].copy()
    scores[tokens.index("ab")] = -np.inf
    tokenizer = TokenizerBridge.from_metadata(values | {P + "scores": scores})
    for text, pieces in (("ab", ["▁", "ab"]), ("cab", ["▁", "c", "ab"])):
        assert texts_of(tokenizer, text) == pieces


def test_leading_space() -> None:
    tokenizer = make("sentence_piece")
    ids = tokenizer.encode("hello")
    assert ids[0] == 1
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special=False) == "<s>hello"
    assert tokenizer.decode(ids[1:], continuing=True) == " hello"
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_clean_spaces() -> None:
    tokenizer = make("byte_pair", pre="gpt-2")
    ids = tokenizer.encode("t , t ' s 's .")
    assert tokenizer.decode(ids) == "t , t ' s 's ."
    assert tokenizer.decode(ids, clean_spaces=True) == "t, t's's."
    assert make("byte_pair", pre="qwen2").decode(ids, clean_spaces=True) == "t , t ' s 's ."


def test_accents_go_with_the_capitals_unless_the_file_says_otherwise() -> None:
    lower, strip = "normalizer.lowercase", "normalizer.strip_accents"
    for keys, found in (({}, "▁e"), ({lower: False}, "[UNK]"), ({lower: False, strip: True}, "▁e")):
        assert texts_of(make("word_piece", **keys), "é") == [found]


def test_spaces_alone_get_no_space_before_them() -> None:
    tokenizer = make("unigram", remove_extra_whitespaces=False)
    space, a = tokenizer.token_id("▁"), tokenizer.token_id("a")
    for text, ids in (("a", [space, a]), (" ", [space]), ("  ", [space] * 2), (" a", [space, space, a])):
        assert tokenizer.encode(text, add_special=False) == ids


def test_what_stands_before_a_number_is_cut_with_its_first_digits() -> None:
    for digits in ("123", "123456", "1234"):
        groups = ["123", "456"][: len(digits) // 3] if len(digits) % 3 == 0 else ["1", "234"]
        assert PRE_TOKENIZERS["tiny_aya"].split("a  " + digits) == ["a", " ", " ", *groups]


def test_joiners_and_marks_are_letters_of_k2_horizon() -> None:
    """As `unicode_regex_split_custom_k2_horizon` of llama.cpp's b11549."""
    split = PRE_TOKENIZERS["k2-horizon"].split
    word = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # Persian, with a non-joiner inside
    assert split(f"{word} 12345\u200d!") == [word, " ", "123", "45", "\u200d", "!"]
    assert split("e\u0301a (\u200da) it's\n") == ["e\u0301a", " (\u200d", "a", ")", " it", "'s", "\n"]
    assert PRE_TOKENIZERS["qwen35"].split(word) != [word]


def test_pairs_of_texts() -> None:
    def texts(tokenizer: TokenizerBridge) -> list[str]:
        return [tokenizer.token_text(id) for id in tokenizer.encode_pair("a", "a")]

    assert texts(make("word_piece")) == ["[CLS]", "▁a", "[SEP]", "▁a", "[SEP]"]
    added = {"add_bos_token": True, "add_eos_token": True, "seperator_token_id": 5}
    tokenizer = make("byte_pair", pre="roberta-bpe", **added)
    assert texts(tokenizer) == ["<s>", "a", "</s>", tokenizer.token_text(5), "a", "</s>"]


def test_empty_text() -> None:
    assert make("sentence_piece").encode("") == [1]
    assert make("sentence_piece", add_eos_token=True).encode("") == [1, 2]
    assert make("sentence_piece").encode("", add_special=False) == []
    assert make("word_piece").encode("") == [2, 3]


def test_nul_is_a_character() -> None:
    tokenizer = make("byte_pair", pre="llama-bpe")
    assert tokenizer.decode(tokenizer.encode("a\0b")) == "a\0b"


# --------------------------------------------------------------------------- malformed metadata

P = "tokenizer.ggml."


def spoilt(key: str, value: Any, kind: str = "sentence_piece") -> dict[str, Any]:
    values: dict[str, Any] = getattr(vocabularies, kind)(**({"pre": "gpt-2"} if kind == "byte_pair" else {}))
    if value is None:
        del values[P + key]
    else:
        values[P + key] = value(values[P + key]) if callable(value) else value
    return values


@pytest.mark.parametrize(
    ("key", "value", "kind", "complaint"),
    [
        ("model", None, "sentence_piece", "expected a string, got no such key"),
        ("model", "none", "sentence_piece", "expected one of .*, got 'none'"),
        ("model", "word2vec", "sentence_piece", "expected one of .*, got 'word2vec'"),
        ("model", 3, "sentence_piece", "expected a string, got 3"),
        ("pre", "qwen17", "byte_pair", "expected a known pre-tokenizer, got 'qwen17'"),
        ("tokens", None, "sentence_piece", "got no such key"),
        ("tokens", [], "sentence_piece", "at least one token"),
        ("tokens", lambda v: np.arange(len(v)), "sentence_piece", "strings, got an array of .* int64"),
        ("tokens", lambda v: [*v[:-1], 7], "sentence_piece", "array of strings, got a list"),
        ("tokens", lambda v: [*v[:-1], v[-2]], "sentence_piece", "expected different tokens"),
        (
            "tokens", lambda v: ["<0x-1>" if t == "<0x0A>" else t for t in v], "sentence_piece",
            "byte token 13",
        ),
        ("tokens", lambda v: ["<0x1>" if t == "<0x0A>" else t for t in v], "sentence_piece", "byte token 13"),
        ("token_type", lambda v: v[:-1], "sentence_piece", "expected 296 entries"),
        ("token_type", lambda v: v.astype(np.float32), "sentence_piece", "int32 or .*, got .* 296 float32"),
        ("token_type", "33", "sentence_piece", "array of int32 or .*, got '33'"),
        ("scores", lambda v: v[:-1], "sentence_piece", "expected 296 entries"),
        ("scores", lambda v: v.astype(np.int8), "sentence_piece", "got an array of 296 int8"),
        ("scores", lambda v: v * np.nan, "sentence_piece", "got NaN in entry 0"),
        ("merges", None, "byte_pair", "got no such key"),
        ("merges", ["ab"], "byte_pair", "expected two tokens and .* in entry 0"),
        ("merges", ["a "], "byte_pair", "expected two tokens and .* in entry 0"),
        ("merges", np.zeros(3, np.int32), "byte_pair", "array of strings"),
        ("bos_token_id", "1", "sentence_piece", "expected an integer, got '1'"),
        ("add_bos_token", 1, "sentence_piece", "expected a boolean, got 1"),
        ("precompiled_charsmap", np.zeros(2, np.uint8), "unigram", "expected 4 bytes or more"),
        ("precompiled_charsmap", np.full(64, 255, np.uint8), "unigram", "expected a trie of at most"),
        ("precompiled_charsmap", np.zeros(64, np.int32), "unigram", "got an array of 64 int32"),
    ],
)  # fmt: skip
def test_malformed_metadata_names_the_key(key: str, value: Any, kind: str, complaint: str) -> None:
    values = spoilt(key, value, kind)
    with pytest.raises(TokenizerError, match=f"{P}{key}.*{complaint}"):
        TokenizerBridge.from_metadata(values)


@pytest.mark.parametrize("id", ["n_vocab", 10**6, 2**32 - 1, -1])
@pytest.mark.parametrize(
    ("name", "key", "kind", "used"),
    [
        ("bos", "bos_token_id", "sentence_piece", 1),
        ("eos", "eos_token_id", "sentence_piece", 2),
        ("unk", "unknown_token_id", "sentence_piece", 0),
        ("eot", "eot_token_id", "unigram", None),
        ("pad", "padding_token_id", "sentence_piece", None),
        ("fim_pre", "fim_pre_token_id", "sentence_piece", None),
        ("sep", "seperator_token_id", "word_piece", None),  # 102 is outside this vocabulary, too
        ("eos", "eos_token_id", "unigram", 1),
    ],
)
def test_an_id_outside_the_vocabulary_leaves_the_default(
    name: str, key: str, kind: str, used: int | None, id: int | str
) -> None:
    n_vocab = make(kind).n_vocab
    wrong = n_vocab if id == "n_vocab" else id
    what = "it is left out" if used is None else f"{used} is used"
    wanted = f"{key}: expected a token id from 0 to {n_vocab - 1}, got {wrong}; {what}"
    with pytest.warns(UserWarning, match=wanted):
        tokenizer = make(kind, **{key: wrong})
    assert tokenizer.vocab.special.get(name) == used
    assert len(tokenizer.encode("hello", add_special=False)) > 0


def test_ids_outside_the_vocabulary_are_not_suppressed() -> None:
    with pytest.warns(
        UserWarning, match="suppress_tokens: expected .* from 0 to 295, got 296; it is left out"
    ):
        tokenizer = make("sentence_piece", suppress_tokens=np.array([3, 296, -1], np.int32))
    assert tokenizer.vocab.suppress_ids == {3}


def test_charsmap_that_points_outside_is_an_error() -> None:
    data = np.frombuffer(np.array([8, 0x7FFFFC00, 0], "<u4").tobytes() + b"a\0", np.uint8)
    with pytest.raises(TokenizerError, match="precompiled_charsmap"):
        make("unigram", precompiled_charsmap=data).encode("hello")


def test_added_token_that_is_missing_is_an_error() -> None:
    tokenizer = make("plain_byte_pair")
    del tokenizer.vocab.special["bos"]
    with pytest.raises(TokenizerError, match="bos_token_id: expected a token"):
        tokenizer.encode("a")


def test_text_the_vocabulary_cannot_express() -> None:
    values = vocabularies.metadata("llama", ["<unk>", "a", "▁"], [2, NORMAL, NORMAL], add_bos_token=False)
    with pytest.raises(TokenizerError, match="expected a token for the byte 0x62"):
        TokenizerBridge.from_metadata(values).encode("ab")


def test_strings_may_come_as_bytes() -> None:
    values = vocabularies.byte_pair("gpt-2")
    raw = {
        key: [text.encode() for text in value] if isinstance(value, list) else value
        for key, value in values.items()
    }
    raw[P + "model"], raw[P + "pre"] = b"gpt2", b"gpt-2"
    text = vocabularies.CHARACTERS
    expected = TokenizerBridge.from_metadata(values).encode(text)
    assert TokenizerBridge.from_metadata(raw).encode(text) == expected


def test_token_that_is_not_utf_8() -> None:
    values = vocabularies.rwkv()
    with_tokens(values, [b"\xff\xfe".decode("utf-8", "surrogateescape")], NORMAL)
    tokenizer = TokenizerBridge.from_metadata(values)
    assert tokenizer.token_bytes(tokenizer.n_vocab - 1) == b"\xff\xfe"


def test_a_byte_type_must_fit_its_token() -> None:
    values = vocabularies.sentence_piece()
    with_tokens(values, ["x"], BYTE)
    with pytest.raises(TokenizerError, match=r"expected byte token .* to look like <0x0A>, got 'x'"):
        TokenizerBridge.from_metadata(values)


# --------------------------------------------------------------------------- chat

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("source", [CHATML, CHATML.replace("{{ bos_token }}", "")])
def test_encode_chat_has_one_bos(source: str) -> None:
    values = vocabularies.byte_pair("llama-bpe") | {"tokenizer.chat_template": source}
    with_tokens(values, ["<|im_start|>", "<|im_end|>"], CONTROL)
    tokenizer = TokenizerBridge.from_metadata(values)
    ids = chat_tokens(tokenizer, [{"role": "user", "content": "test"}])
    assert ids.count(tokenizer.bos_id) == 1 and ids[0] == tokenizer.bos_id
    assert tokenizer.eos_id not in ids
    shown = tokenizer.decode(ids, skip_special=False)
    assert shown == "<s><|im_start|>user\ntest<|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(tokenizer.token_id("<|im_start|>")) == 2


def test_templates_by_name() -> None:
    values = vocabularies.byte_pair("gpt-2")
    tokenizer = TokenizerBridge.from_metadata(values)
    with pytest.raises(ChatTemplateError, match=r"expected one of the file's \(none\), got 'default'"):
        tokenizer.apply_chat_template([{"role": "user", "content": "t"}])
    values |= {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": b"tools"}
    tokenizer = TokenizerBridge.from_metadata(values)
    assert list(tokenizer.templates) == ["default", "tool_use"]
    messages = [{"role": "user", "content": "t"}]
    assert tokenizer.apply_chat_template(messages) == "plain"
    assert tokenizer.apply_chat_template(messages, template="tool_use") == "tools"
