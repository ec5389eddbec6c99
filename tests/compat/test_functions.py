"""Functions and constants by the reference's names."""

from __future__ import annotations

import pytest

import oxillama
from oxillama import ConfigError, GrammarError, LoadedLora, LoadError, LoraStack, TokenizerBridge, demo
from oxillama.compat.adapters import apply_lora, apply_lora_stack, unapply_all_loras
from oxillama.compat.attention import FLASH_ATTN_THRESHOLD
from oxillama.compat.engine import InferenceEngine
from oxillama.compat.grammar import JsonSchemaCompiler
from oxillama.compat.tokenizer import vocab_bytes_cached
from tests.support.adapters import adapter_file

GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 30}


@pytest.mark.parametrize("engine_class", [oxillama.InferenceEngine, InferenceEngine])
def test_adapters_apply_to_later_requests(engine_class: type[oxillama.InferenceEngine]) -> None:
    prompt, lora = demo.PROMPTS[0], LoadedLora.load(demo.PIRATE)
    with engine_class.from_gguf(demo.STORY, num_threads=1) as engine:
        plain = engine.generate(prompt, **GREEDY)
        whole, half = (engine.generate(prompt, adapters=(lora, scale), **GREEDY) for scale in (1.0, 0.5))
        assert plain != whole
        apply_lora(engine, demo.PIRATE)
        assert engine.generate(prompt, **GREEDY) == whole
        unapply_all_loras(engine)
        assert engine.generate(prompt, **GREEDY) == plain
        apply_lora(engine, lora, 0.5)
        assert engine.generate(prompt, **GREEDY) == half
        assert engine.adapters.stack.scales == [0.5]
        unapply_all_loras(engine)
        stack = LoraStack()
        apply_lora_stack(engine, stack)
        assert engine.adapters.stack.items == ()
        stack.push(lora, 0.25)
        stack.push(lora, 0.75)
        apply_lora_stack(engine, stack)
        assert engine.adapters.stack.items == stack.items


@pytest.mark.parametrize("as_method", [False, True])
def test_adapters_that_do_not_fit_are_refused(as_method: bool) -> None:
    other = LoadedLora.load(adapter_file("gemma", {}))
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        stack = LoraStack()
        stack.push(LoadedLora.load(demo.PIRATE))
        stack.push(other)
        with pytest.raises(LoadError, match=r"general.architecture"):
            engine.apply_lora(other) if as_method else apply_lora(engine, other)
        with pytest.raises(LoadError, match=r"general.architecture"):
            engine.apply_lora_stack(stack) if as_method else apply_lora_stack(engine, stack)
        with pytest.raises(ConfigError, match="stack: expected"):
            engine.apply_lora_stack([other]) if as_method else apply_lora_stack(engine, [other])  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="expected"):
            apply_lora(engine, demo.PIRATE, float("nan"))
        assert len(engine.lora_stack) == 0


def test_bytes_of_the_vocabulary_are_computed_once() -> None:
    tokenizer = TokenizerBridge.from_gguf(demo.STORY)
    found = vocab_bytes_cached(tokenizer)
    assert len(found) == tokenizer.n_vocab
    assert vocab_bytes_cached(tokenizer) is found


def test_every_length_is_computed_block_by_block() -> None:
    assert FLASH_ATTN_THRESHOLD == 0


def test_a_schema_is_compiled_without_an_object() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for compiler in (JsonSchemaCompiler, JsonSchemaCompiler()):
        grammar = compiler.compile(schema)
        assert grammar.matches('{"a": 5}')
        assert not grammar.matches('{"a": "5"}')
    hard = {"type": "string", "pattern": r"^(a|b)\1$"}
    with pytest.raises(GrammarError, match="#/pattern"):
        JsonSchemaCompiler.compile(hard)
    assert JsonSchemaCompiler.compile(hard, strict=False).matches('"anything"')
