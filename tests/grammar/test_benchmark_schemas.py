"""The schemas of `benchmarks grammar --models`: what their instances are said to be is right, and found."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from benchmarks.grammar_models import Sample, models, tags, unions
from oxillama.grammar import Grammar, parse_lark, structural_tag_rules

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
