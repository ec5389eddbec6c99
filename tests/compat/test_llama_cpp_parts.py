"""Parts of `oxillama.compat.llama_cpp` alone: tokenizers, prompts, penalties, guesses, caches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, demo
from oxillama.compat import llama_cpp
from oxillama.compat.llama_cpp import Llama
from oxillama.compat.llama_cpp.completion import prompt_tokens
from oxillama.compat.llama_cpp.llama_grammar import json_schema_to_gbnf
from oxillama.compat.llama_cpp.processors import PenaltyStage
from oxillama.compat.llama_cpp.sampling import seed_of
from oxillama.gguf.hub import pretrained
from tests.support.llama_cpp_calls import FEW, STORY


class Words:
    """A tokenizer of `transformers`, as far as it is used: a token is a letter."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [0] * add_special_tokens + [ord(letter) for letter in text]

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return "".join(chr(token) if token else "" if skip_special_tokens else "<s>" for token in tokens)


def test_a_tokenizer_of_transformers_takes_the_place_of_the_files() -> None:
    tokenizer = llama_cpp.LlamaHFTokenizer(Words())
    assert tokenizer.tokenize(b"ab", special=True) == [0, 97, 98]
    assert tokenizer.tokenize(b"ab", special=False) == [97, 98]
    assert tokenizer.detokenize([0, 98], prev_tokens=[97], special=True) == b"<s>b"
    made = Llama(STORY, tokenizer=tokenizer, **FEW)
    assert made.tokenize(b"a", special=True) == [0, 97]
    assert made.detokenize([98, 99]) == b"bc"
    with pytest.warns(RuntimeWarning, match="a second one is added"):
        assert made("ab", max_tokens=1)["usage"]["prompt_tokens"] == 4


def test_a_vocabulary_has_its_own_tokenizer() -> None:
    llm = Llama(STORY, vocab_only=True)
    for tokenizer in (llm.tokenizer(), llama_cpp.LlamaTokenizer.from_ggml_file(STORY)):
        assert tokenizer.encode("Once") == [0, 943]
        assert tokenizer.decode([0, 943]) == "Once"


@pytest.mark.parametrize("spm", [False, True])
def test_a_suffix_stands_between_the_tokens_for_it(spm: bool) -> None:
    marks = {"fim_pre": 90, "fim_suf": 91, "fim_mid": 92}
    vocabulary = SimpleNamespace(
        special_ids=marks, encode=lambda text: [7], bos_id=1, eos_id=2, add_bos=True, add_eos=False
    )
    model: Any = SimpleNamespace(model=vocabulary, spm_infill=spm, encoded=lambda text: [5, 6])
    expected = [91, 7, 90, 5, 6, 92] if spm else [90, 5, 6, 91, 7, 92]
    assert prompt_tokens(model, "ab", "c") == [1, *expected]
    assert prompt_tokens(model, "ab", None) == [1, 5, 6]
    assert prompt_tokens(model, [5], None) == [5]
    del marks["fim_mid"]
    with pytest.raises(ConfigError, match="suffix"):
        prompt_tokens(model, "ab", "c")


def test_penalties_are_llama_cpps() -> None:
    stage = PenaltyStage(n_prompt=2, window=3, repeat=2.0, frequency=0.5, presence=0.25)
    ids, logits = np.array([9, 3, 4, 5], np.int32), np.array([1, 2, -2, 4], np.float32)
    stage(ids, logits, np.array([9, 9, 5, 3, 4, 4], np.int32))
    assert logits.tolist() == [1, 2 / 2 - 0.75, -2 * 2 - 1.25, 4]


def test_guesses_follow_the_longest_ending() -> None:
    find = llama_cpp.llama_speculative.LlamaPromptLookupDecoding.find_candidate_pred_tokens
    assert find(np.array([1, 2, 9, 3, 2, 8, 1, 2]), 2, 2).tolist() == [9, 3]
    assert find(np.array([1, 2, 9, 3, 2, 8, 5, 2]), 2, 2).tolist() == [9, 3]
    assert find(np.array([1, 2, 3]), 2, 2).tolist() == []
    guess = llama_cpp.llama_speculative.LlamaPromptLookupDecoding(2, 2)
    assert guess(np.array([1, 2, 9, 3, 2, 8, 1, 2])).tolist() == [9, 3]


def test_a_cache_of_a_folder_keeps_states(tmp_path: Path) -> None:
    pytest.importorskip("diskcache", reason="llama-cpp-python needs it, oxillama does not")
    llm = Llama(STORY, **FEW)
    llm.eval([0, 943])
    cache = llama_cpp.LlamaDiskCache(str(tmp_path))
    cache[(0, 943)] = llm.save_state()
    assert llama_cpp.LlamaDiskCache(str(tmp_path))[[0, 943, 5]].n_tokens == 2
    assert (7,) not in cache


def test_a_model_of_the_hub_keeps_to_the_cache() -> None:
    with pytest.raises(ConfigError, match="local_dir"):
        Llama.from_pretrained("a/b", "c.gguf", local_dir="here")


def test_a_minimum_of_tokens_bans_the_end() -> None:
    ban = llama_cpp.MinTokensLogitsProcessor(2, 1)
    rows = [ban(np.arange(4 + n), np.zeros(3, np.float32)) for n in range(3)]
    assert [row[1] == -np.inf for row in rows] == [True, True, False]


def test_logits_of_other_tokens_are_forgotten() -> None:
    made, fresh = (Llama(STORY, logits_all=True, **FEW) for _ in range(2))
    made.eval([0, 943, 806])
    made([0, 5, 6], max_tokens=1, temperature=0.0)
    fresh.eval([0, 5, 6])
    assert np.array_equal(made._scores, fresh._scores)


def test_a_model_of_the_hub_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(pretrained, "fetch", lambda name, **given: asked.append(name.file) or demo.STORY)
    made = Llama.from_pretrained("a/b", "c*.gguf", additional_files=["d.gguf"], **FEW)
    assert made.tokenize(b"Once") == [0, 943]
    assert asked == ["d.gguf", "c*.gguf"]


def test_the_cache_finds_what_begins_alike_and_drops_what_was_used_longest_ago() -> None:
    def state(n_tokens: int) -> Any:
        return SimpleNamespace(n_tokens=n_tokens, llama_state_size=10)

    cache = llama_cpp.LlamaRAMCache(capacity_bytes=25)
    cache[[1, 2, 3]], cache[[1, 9]] = state(3), state(2)
    assert cache[[1, 2, 4]].n_tokens == 3 and cache.cache_size == 20
    assert [1] in cache and [5, 2, 3] not in cache
    with pytest.raises(KeyError, match="no state begins like the key"):
        cache[[5, 2, 3]]
    cache[[7]] = state(1)  # beyond the capacity: that of [1, 9] was used longest ago
    assert sorted(cache.cache_state) == [(1, 2, 3), (7,)]


def test_seeds_that_are_random_in_llama_cpp_are_new_ones() -> None:
    numbers = (0, 5, -2, -1, 2**32 - 1, 2**64 - 1, 2**64 + 5)
    assert [seed_of(number) for number in numbers] == [0, 5, 2**64 - 2, None, None, None, 5]


def test_the_order_of_properties_is_the_schemas() -> None:
    schema = json.dumps({"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b", "a"]})
    assert json_schema_to_gbnf(schema) == json_schema_to_gbnf(schema, [])
    with pytest.raises(ValueError, match="prop_order: expected None"):
        json_schema_to_gbnf(schema, ["a", "b"])
