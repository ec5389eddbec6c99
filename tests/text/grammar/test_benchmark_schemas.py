"""The schemas of `benchmarks grammar --models`: what their instances are said to be is right, and found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from benchmarks.grammar_models import Sample, models, tags, unions
from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, parse_lark, structural_tag_rules

SAMPLES = [*models(), *unions()]


@pytest.mark.parametrize("sample", SAMPLES, ids=[name for name, _, _ in SAMPLES])
def test_verdicts(sample: Sample) -> None:
    _, schema, tests = sample
    validator = Draft202012Validator(schema, format_checker=FormatChecker())
    whole = {"format": {"type": "json_schema", "json_schema": schema}}
    grammars = [
        Grammar.from_json_schema(schema),
        Grammar.from_rules(structural_tag_rules(whole)),
        Grammar.from_rules(parse_lark(f"start: %json {json.dumps(schema)}")),
    ]
    assert {test["valid"] for test in tests} == {True, False}
    for test in tests:
        text = json.dumps(test["data"])
        assert validator.is_valid(test["data"]) == test["valid"], text
        assert [grammar.matches(text) for grammar in grammars] == [test["valid"]] * 3, text


@pytest.mark.parametrize("sample", tags(), ids=[name for name, _, _ in tags()])
def test_verdicts_of_tags(sample: Sample) -> None:
    _, tag, tests = sample
    grammar = Grammar.from_rules(structural_tag_rules(tag))
    for test in tests:
        assert grammar.matches(test["text"]) == test["valid"], test


@dataclass
class Wanting:
    """A field whose annotation Python cannot resolve."""

    age: Annotated[int, {"minimum": 0}] | None


@dataclass
class Allowed:
    """The same as Python takes it."""

    age: Annotated[int | None, {"minimum": 0}]


def test_keywords_of_a_union_stand_around_it() -> None:
    try:
        get_type_hints(Wanting)
    except TypeError:  # Python 3.11 hashes the parts of a union
        with pytest.raises(GrammarError, match=r"annotations of Wanting .*is written Annotated\[A \| B, "):
            Grammar.from_json_schema(Wanting)
    grammar = Grammar.from_json_schema(Allowed)
    assert [grammar.matches(f'{{"age": {age}}}') for age in ("3", "null", "-3")] == [True, True, False]
