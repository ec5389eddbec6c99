"""Grammars, schemas, patterns and choices in the engine: what comes out belongs to the language."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Annotated, Literal

import pytest

from oxillama import ConfigError, GrammarError, SamplerConfig, SamplingError, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.text.grammar import Grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    return InferenceEngine.from_gguf(demo.STORY)


def grammar_of(engine: InferenceEngine, sampler: SamplerConfig) -> Grammar | None:
    """The grammar that a sampler asks for."""
    state = engine.model.feature("constraints").new(sampler)
    return None if state is None else state.grammar


@pytest.mark.parametrize("seed", range(5))
def test_a_schema_makes_valid_json(engine: InferenceEngine, seed: int) -> None:
    sampler = SamplerConfig(json_schema=SCHEMA, seed=seed, temperature=1.5)
    text = engine.generate("Mia and the fox:", sampler=sampler, max_tokens=200)
    value = json.loads(text)
    assert engine.finish_reason == "stop"
    assert set(value) == {"name", "age"}
    assert len(value["name"]) <= 12
    assert 0 <= value["age"] <= 120


def test_the_four_ways_to_ask(engine: InferenceEngine) -> None:
    @dataclasses.dataclass
    class Toad:
        old: bool

    assert engine.generate("Is it?", sampler=SamplerConfig(choices=("yes", "no"), seed=1)) in ("yes", "no")
    assert re.fullmatch(
        "[a-c]{3}-\\d\\d", engine.generate("Code:", sampler=SamplerConfig(regex="[a-c]{3}-\\d\\d"))
    )
    grammar = 'root ::= "the " ("fox" | "toad") "."'
    for given in (grammar, Grammar.parse(grammar)):
        assert engine.generate("See", sampler=SamplerConfig(grammar=given)) in ("the fox.", "the toad.")
    assert "old" in json.loads(engine.generate("Toad", sampler=SamplerConfig(json_schema=Toad)))


def test_any_type_is_a_schema(engine: InferenceEngine) -> None:
    for kind in (tuple[bool, bool], Literal["x", 3], Annotated[int, {"minimum": 5, "maximum": 6}]):
        sampler = SamplerConfig(json_schema=kind, seed=2)
        value = json.loads(engine.generate("Say:", sampler=sampler, max_tokens=60))
        assert value in ("x", 3, 5, 6) or all(isinstance(item, bool) for item in value)
        assert grammar_of(engine, sampler) is grammar_of(engine, sampler)
    for wrong in (3, 1.5, [int], b"{}", ""):
        with pytest.raises(ConfigError, match="json_schema: expected a mapping"):
            SamplerConfig(json_schema=wrong)


def test_a_schema_nested_too_deeply_is_a_grammar_error(engine: InferenceEngine) -> None:
    schema: dict[str, object] = {}
    for _ in range(5_000):
        schema = {"items": schema}
    for compile_it in (
        Grammar.from_json_schema,
        lambda s: grammar_of(engine, SamplerConfig(json_schema=s)),
    ):
        with pytest.raises(GrammarError, match=r"nested too deeply|within each other"):
            compile_it(schema)


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no")


LOOP: dict[str, object] = {}
LOOP["items"] = LOOP


@pytest.mark.parametrize(
    "schema",
    [LOOP, {"enum": [LOOP]}, {"minLength": 10**5000}, {"type": NoRepr()}],
    ids=lambda s: next(iter(s)),
)
def test_a_schema_of_no_json_values_is_a_grammar_error(
    engine: InferenceEngine, schema: dict[str, object]
) -> None:
    with pytest.raises(GrammarError):
        Grammar.from_json_schema(schema)
    with pytest.raises(GrammarError, match="expected JSON values"):
        engine.generate("x", json_schema=schema)


def test_a_dead_end_of_one_spares_the_rest(engine: InferenceEngine) -> None:
    """A token that the grammar needs is banned: its request raises when it comes to it, others go on."""
    greedy = SamplerConfig.greedy()
    banned = tuple(i for i, text in enumerate(engine.vocab_bytes()) if b"!" in text)
    dead = dataclasses.replace(greedy, grammar='root ::= "Once" "!"', banned_tokens=banned)
    alone = engine.generate("The toad", sampler=greedy, max_tokens=12)
    other = engine.stream("The toad", sampler=greedy, max_tokens=12)
    first = next(other)
    with pytest.raises(SamplingError):
        engine.generate("The toad", sampler=dead, max_tokens=12)
    assert first + "".join(other) == alone
    engine.model.check_integrity()


def test_what_the_prefix_cache_has_changes_nothing(engine: InferenceEngine) -> None:
    sampler = SamplerConfig(json_schema=SCHEMA, seed=9)
    prompt = "Mia lived by the sea. " * 12
    cold = engine.stream(prompt, sampler=sampler, max_tokens=60, salt="new").result()
    assert cold.usage.cached_tokens == 0
    warm = engine.stream(prompt, sampler=sampler, max_tokens=60, salt="new").result()
    assert warm.text == cold.text
    assert warm.usage.cached_tokens > 0


def test_each_of_a_batch_has_its_own(engine: InferenceEngine) -> None:
    greedy = SamplerConfig.greedy()
    constrained = dataclasses.replace(greedy, choices=("yes", "no"))
    free = engine.generate("Once upon a time", sampler=greedy, max_tokens=12)
    first = engine.stream("Once upon a time", sampler=greedy, max_tokens=12)
    second = engine.stream("Once upon a time", sampler=constrained, max_tokens=12)
    assert next(first)
    assert "".join(second) in ("yes", "no")
    assert "".join([first.text, *first])[-len(free) :] == free


def test_a_bad_grammar_ends_its_request_alone(engine: InferenceEngine) -> None:
    with pytest.raises(GrammarError, match="line 1"):
        engine.generate("x", sampler=SamplerConfig(grammar="root ::= ("))
    with pytest.raises(ConfigError, match="cannot be combined"):
        SamplerConfig(grammar="root ::= 'a'", regex="a")
    assert engine.generate("Once", sampler=SamplerConfig.greedy(), max_tokens=3)


def test_a_dead_end_is_an_error(engine: InferenceEngine) -> None:
    """The bans leave nothing of what the grammar allows."""
    banned = tuple(range(engine.model.spec.n_vocab))
    with pytest.raises(SamplingError):
        engine.generate("x", sampler=SamplerConfig(choices=("a",), banned_tokens=banned))


def test_a_grammar_is_compiled_once(engine: InferenceEngine) -> None:
    first, second = (
        grammar_of(engine, SamplerConfig(json_schema=schema)) for schema in (SCHEMA, dict(SCHEMA))
    )
    assert first is second is not None
    assert grammar_of(engine, SamplerConfig()) is None
