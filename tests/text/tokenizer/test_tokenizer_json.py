"""Tokenizers from tokenizer.json: they agree with the library, and broken files are refused when loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from oxillama.errors import ModelFileError, TokenizerError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.tokenizer import tokenizer_json
from tests.support import vocabularies
from tests.support.fitted import chat_tokens
from tests.support.vocabularies import NORMAL

CHATML = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"


@pytest.fixture
def json_file(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(["hello world, hello there"] * 3, trainer)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", library.token_to_id("<s>"))]
    )
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    return path


def test_tokenizer_json(json_file: Path) -> None:
    tokenizer = TokenizerBridge.from_file(json_file)
    text = "hello 世界 🦙<|im_end|>"
    end = tokenizer.token_id("<|im_end|>")
    plain, parsed = tokenizer.encode(text), tokenizer.encode(text, parse_special=True)
    assert plain[0] == parsed[0] == tokenizer.bos_id == tokenizer.token_id("<s>")
    assert end not in plain and parsed[-1] == end
    assert tokenizer.encode("hello", add_special=False) == plain[1:2]
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(parsed) == "hello 世界 🦙"
    assert end is not None and tokenizer.is_eos(end) and tokenizer.is_control(end)
    stream = tokenizer.stream_decoder()
    assert "".join(map(stream.push, plain)) + stream.flush() == text
    assert len(tokenizer.vocab_bytes()) == tokenizer.n_vocab


def test_tokenizer_json_with_metadata(json_file: Path) -> None:
    document = json.loads(json_file.read_text())
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    values: Mapping[str, Any] = vocabularies.metadata(
        "gpt2", tokens, [NORMAL] * len(tokens), merges=[], eos_token_id=7, bos_token_id=0
    )
    tokenizer = TokenizerBridge.from_file(json_file, {**values, "tokenizer.chat_template": CHATML})
    assert tokenizer.eos_id == 7
    assert tokenizer.is_eos(7)
    ids = chat_tokens(tokenizer, [{"role": "user", "content": "hello"}])
    assert ids.count(0) == 1


def test_tokenizer_json_that_only_ends_texts(json_file: Path) -> None:
    document = json.loads(json_file.read_text())
    document["post_processor"]["single"].reverse()  # the text, then the token
    json_file.write_text(json.dumps(document))
    tokenizer = TokenizerBridge.from_file(json_file, {"tokenizer.chat_template": CHATML})
    plain = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello") == [*plain, 0]
    assert tokenizer.encode_rendered("hello") == plain
    assert tokenizer.encode_rendered("hello", closes=True) == [*plain, 0]


def test_tokenizer_json_failures(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        TokenizerBridge.from_file(tmp_path / "absent.json")


# --- broken files -----------------------------------------------------------------------------------


def document(model: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """A tokenizer.json of one token, "a", with these parts in place of the usual ones."""
    usual: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": model or {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    }
    return usual | parts


def template(id: int) -> dict[str, Any]:
    """A post-processor that puts the token ``id`` before a text."""
    special, sequence = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special, sequence],
        "pair": [sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [id], "tokens": ["<s>"]}},
    }


PIECES = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
BROKEN: dict[str, Any] = {
    "no JSON": "{",
    "empty": {},
    "a list": [],
    "no model": {**document(), "model": None},
    "Rust panics on a charsmap": document(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}
    ),
    "a bad pattern": document(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
    ),
    "no tokens": document({"type": "BPE", "vocab": {}, "merges": []}),
    "a negative id": document({"type": "BPE", "vocab": {"a": -1}, "merges": []}),
    "a huge id": document({"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []}),
    "a merge of unknown tokens": document({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}),
    "BPE without its unk": document({"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "[UNK]"}),
    "words without unk": document({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}),
    "pieces without unk": document({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", **PIECES}),
    "Unigram without unk": document({"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}),
    "Unigram's unk outside": document({"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 5}),
    "a template's id outside": document(post_processor=template(99)),
    "BERT's ids outside": document(
        post_processor={"type": "BertProcessing", "sep": ["x", 7], "cls": ["y", 8]}
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_when_loaded(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(BROKEN[name] if isinstance(BROKEN[name], str) else json.dumps(BROKEN[name]))
    with pytest.raises(TokenizerError, match=r"bad\.json: expected .*, got "):
        TokenizerBridge.from_file(path)


def test_the_document_that_is_broken_in_the_tests_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    path.write_text(json.dumps(document(post_processor=template(0))))
    assert TokenizerBridge.from_file(path).encode("aa") == [0, 0, 0]


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b'{"a\xff')
    with pytest.raises(TokenizerError, match=r"bad\.json: expected UTF-8, got another byte at 3"):
        TokenizerBridge.from_file(path)


def test_special_ids_of_the_model_must_be_tokens_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(document()))
    values = vocabularies.metadata("gpt2", ["a", "b"], [NORMAL] * 2, merges=[], eos_token_id=1)
    with pytest.raises(TokenizerError, match=r"small\.json: expected the special token 1, got 1 tokens"):
        TokenizerBridge.from_file(path, values)


def test_errors_of_encoding_are_tokenizer_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "good.json"
    path.write_text(json.dumps(document()))
    tokenizer = TokenizerBridge.from_file(path)

    class PanicException(BaseException):
        """As pyo3 raises for a Rust panic."""

    class Broken:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def encode(self, *_: Any, **__: Any) -> Any:
            raise self.error

    for error in (PanicException("index out of bounds"), Exception("unknown")):
        monkeypatch.setattr(tokenizer._encoder, "_plain", Broken(error))
        with pytest.raises(TokenizerError, match=f"expected text it can encode, got {error}"):
            tokenizer.encode("a")
    monkeypatch.setattr(tokenizer._encoder, "_plain", Broken(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("a")


def test_a_file_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_json, "MOST_CHARACTERS", 1000)
    with pytest.raises(TokenizerError, match="expected at most 1000 characters"):
        TokenizerBridge.from_file("/dev/zero")
