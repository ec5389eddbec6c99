"""The grammars of an engine: which are compiled, which are kept, and that threads may ask together."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from oxillama import Grammar, SamplerConfig, demo
from oxillama.engine.features import constraints as module
from oxillama.engine.features.constraints import MOST_GRAMMARS, Constraints
from oxillama.text.chat.bridge import TokenizerBridge
from tests.support.waiting import together


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerBridge:
    return TokenizerBridge.from_gguf(demo.STORY)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[SamplerConfig]:
    """What is compiled, in order."""
    seen: list[SamplerConfig] = []
    real = module.compiled

    def compile_and_note(config: SamplerConfig, tokenizer: TokenizerBridge) -> object:
        seen.append(config)
        for _ in range(50):
            time.sleep(0)  # lets other threads run
        return real(config, tokenizer)

    monkeypatch.setattr(module, "compiled", compile_and_note)
    return seen


def test_a_structural_tag_finds_its_tokens_in_the_vocabulary(tokenizer: TokenizerBridge) -> None:
    end = tokenizer.token_text(tokenizer.eos_id or 0)
    tag = {"format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "a"}, {"type": "token", "token": end},
    ]}}  # fmt: skip
    state = Constraints(tokenizer).new(SamplerConfig(structural_tag=tag))
    assert state is not None and not state.allows_token(tokenizer.eos_id or 0)
    state.advance(tokenizer.encode("a", add_special=False)[-1])
    assert state.allows_token(tokenizer.eos_id or 0) and not state.is_complete


@pytest.mark.parametrize(
    "field",
    [
        lambda schema: {"json_schema": schema},
        lambda schema: {"structural_tag": {"format": {"type": "json_schema", "json_schema": schema}}},
        lambda schema: {"grammar": f"%llguidance {{}}\nstart: %json {json.dumps(schema)}"},
        lambda schema: {"grammar": json.dumps({"grammars": [{"json_schema": schema}]})},
    ],
)
def test_integers_that_are_generated_have_no_point(tokenizer: TokenizerBridge, field: Any) -> None:
    """The specification takes 1.0 for an integer, and so does a grammar that is asked about a text."""
    for schema, valid, others in (
        ({"type": "integer"}, "1 -20 0", "1.0 -20.0"),
        ({"type": "integer", "minimum": 1, "multipleOf": 5}, "5 10", "5.0"),
        ({"enum": [1, 2, "a"]}, '1 2 "a"', "1.0 2.0"),
        ({"const": 1}, "1", "1.0"),
        ({"items": {"enum": [1.0, 2.5]}, "type": "array"}, "[1] [2.5]", "[1.0]"),
        ({"const": 1e300}, "1e+300", "1.0"),
        ({"type": "number"}, "1 1.0 1e3", "x"),
    ):
        state = Constraints(tokenizer).new(SamplerConfig(**field(schema)))
        assert state is not None
        assert [text for text in valid.split() if not state.grammar.matches(text)] == [], schema
        assert [text for text in others.split() if state.grammar.matches(text)] == [], schema
    for schema in ({"type": "integer"}, {"enum": [1]}, {"const": 1}):
        assert Grammar.from_json_schema(schema).matches("1.0")


ORDERED = {
    "type": "object",
    "properties": {"a": {"const": 1}, "z": {"const": 2}},
    "required": ["a", "z"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "constraint",
    [
        {"json_schema": ORDERED},
        {"structural_tag": {"format": {"type": "json_schema", "json_schema": ORDERED}}},
        {"grammar": "%llguidance {}\nstart: %json " + json.dumps(ORDERED)},
    ],
)
def test_properties_come_in_any_order_on_request(
    tokenizer: TokenizerBridge, constraint: dict[str, Any]
) -> None:
    constraints = Constraints(tokenizer)
    for any_order in (False, True, False):
        grammar = constraints.new(SamplerConfig(**constraint, any_order=any_order)).grammar  # type: ignore
        assert grammar.matches('{"a": 1, "z": 2}')
        assert grammar.matches('{"z": 2, "a": 1}') == any_order


def test_a_structural_tag_may_say_which_order(tokenizer: TokenizerBridge) -> None:
    tag = {"format": {"type": "json_schema", "json_schema": ORDERED, "any_order": False}}
    state = Constraints(tokenizer).new(SamplerConfig(structural_tag=tag, any_order=True))
    assert state is not None and not state.grammar.matches('{"z": 2, "a": 1}')


def choice(i: int) -> SamplerConfig:
    return SamplerConfig(choices=(f"answer {i}",))


def test_the_least_recently_used_grammar_is_forgotten(
    tokenizer: TokenizerBridge, compiled: list[SamplerConfig]
) -> None:
    constraints = Constraints(tokenizer)
    for i in range(MOST_GRAMMARS):
        constraints.new(choice(i))
    constraints.new(choice(0))
    assert len(compiled) == MOST_GRAMMARS
    constraints.new(choice(MOST_GRAMMARS))  # evicts grammar 1
    del compiled[:]
    for i in (MOST_GRAMMARS, 0, *range(2, MOST_GRAMMARS)):
        constraints.new(choice(i))
    assert compiled == []
    constraints.new(choice(1))
    assert compiled == [choice(1)]


def test_the_tables_of_all_grammars_have_one_limit(
    tokenizer: TokenizerBridge, compiled: list[SamplerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = Constraints(tokenizer)
    for i in range(3):
        state = constraints.new(choice(i))
        assert state is not None
        state.mask()
        monkeypatch.setattr(module, "MOST_KEPT_BYTES", state.grammar.table_bytes() * 5 // 2)
    constraints.new(choice(3))  # the first two fit no more beside the third
    del compiled[:]
    for i in (2, 3, 0):
        constraints.new(choice(i))
    assert compiled == [choice(0)]


@pytest.mark.parametrize("names", [("regex", "json_schema"), ("json_schema", "regex")])
def test_the_same_text_in_another_field_is_another_grammar(
    tokenizer: TokenizerBridge, names: tuple[str, str]
) -> None:
    """As an expression "true" is a word, as a schema it is all of JSON."""
    constraints = Constraints(tokenizer)
    masks = {name: constraints.new(SamplerConfig(**{name: "true"})).mask() for name in names}  # type: ignore
    n_allowed = {name: np.unpackbits(mask.view(np.uint8)).sum() for name, mask in masks.items()}
    assert 0 < n_allowed["regex"] < n_allowed["json_schema"]


def test_threads_that_ask_together_compile_once(
    tokenizer: TokenizerBridge, compiled: list[SamplerConfig]
) -> None:
    constraints = Constraints(tokenizer)
    together(6, lambda: constraints.new(choice(0)))
    assert len(compiled) == 1
