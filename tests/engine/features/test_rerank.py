"""Reranking: scores of documents for a query, by the pairs and the head that the file has."""

from __future__ import annotations

import numpy as np
import pytest

from oxillama import ConfigError, PromptError, TokenizerBridge, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.decoder import ReferenceModel
from tests.support.kernels import same_bits
from tests.support.serving import Letters, zoo_engine
from tests.support.vocabularies import word_piece
from tests.support.waiting import in_asyncio
from tests.support.zoo import VARIANTS

QUERY, DOCUMENTS = "abc", ["bca", "a", "ccbbaa", "abcabcabc"]


class Pairs(Letters):
    """Letters that are tokens, pairs between 1 (opening) and 2 (separator)."""

    templates: tuple[str, ...] = ()

    def encode_pair(self, first: str, second: str) -> list[int]:
        return [1, *self.ids(first), 2, *self.ids(second), 2]

    def ids(self, text: str) -> list[int]:
        return [ord(letter) - 90 for letter in text]

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        return [3, *self.ids(text)]

    def chat_template_source(self, name: str) -> str:
        return "ab{query}ba{document}c{query}"


@pytest.mark.parametrize("name", ["bert-rank", "bert-rank-labels", "jina-rank", "qwen3-rank"])
def test_scores_are_those_of_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Pairs()
    engine = zoo_engine(monkeypatch, name, tokenizer)
    found = engine.rerank(QUERY, DOCUMENTS)
    assert found.shape == (4,)
    reference = ReferenceModel(ModelFile.open(VARIANTS[name].file()))
    for score, document in zip(found, DOCUMENTS):
        assert score == reference.scores(np.array(tokenizer.encode_pair(QUERY, document)))[0]
        assert same_bits(engine.rerank(QUERY, [document]), np.array([score]))
    assert len(set(found.tolist())) == 4
    assert engine.rerank(QUERY, []).shape == (0,)

    assert same_bits(in_asyncio(engine, lambda many: many.rerank(QUERY, DOCUMENTS)), found)
    engine.model.check_integrity()


def test_a_template_of_the_file_makes_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Pairs()
    tokenizer.templates = ("rerank",)
    engine = zoo_engine(monkeypatch, "qwen3-rank", tokenizer)
    reference = ReferenceModel(ModelFile.open(VARIANTS["qwen3-rank"].file()))
    expected = reference.scores(np.array(tokenizer.encode("ababcbabcacabc")))[0]
    assert engine.rerank(QUERY, ["bca"])[0] == expected


def test_what_cannot_be_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="model: expected a reranker"):
        InferenceEngine.from_gguf(demo.STORY).rerank("Who?", ["Mia"])
    engine = zoo_engine(monkeypatch, "bert-rank", Pairs())
    with pytest.raises(ConfigError, match="documents: expected a list"):
        engine.rerank("abc", "bca")
    with pytest.raises(ConfigError, match="query: expected a str, got int"):
        engine.rerank(5, ["a"])  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="expected at most"):
        engine.rerank("abc", ["a" * 3000])


def test_pairs_of_a_wordpiece_vocabulary() -> None:
    tokenizer = TokenizerBridge.from_metadata(word_piece())
    first, second = tokenizer.encode("hello"), tokenizer.encode("world")
    assert tokenizer.encode_pair("hello", "world") == [*first, *second[1:]]
