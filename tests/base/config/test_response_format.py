"""`response_format` of a request: the constraint that each form comes to."""

from __future__ import annotations

from typing import Any

import pytest

from oxillama import GenerationOptions, SamplerConfig
from oxillama.errors import ConfigError

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


def sampler_of(wanted: Any, **more: Any) -> SamplerConfig:
    found = GenerationOptions.of(None, {"response_format": wanted, **more}, SamplerConfig())
    assert found.sampler is not None and found.response_format is None
    return found.sampler


@pytest.mark.parametrize(
    ("wanted", "field", "value"),
    [
        ({"type": "json_object"}, "json_schema", {"type": "object"}),
        ({"type": "json_object", "schema": SCHEMA}, "json_schema", SCHEMA),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            "json_schema",
            SCHEMA,
        ),
        ({"type": "json_schema", "json_schema": {"name": "x", "strict": None}}, "json_schema", True),
        ({"type": "json_schema", "schema": False}, "json_schema", False),
        (TAG, "structural_tag", TAG),
    ],
)
def test_forms(wanted: Any, field: str, value: Any) -> None:
    found = sampler_of(wanted)
    assert found.constraint == field and getattr(found, field) == value


def test_text_is_not_constrained() -> None:
    assert sampler_of({"type": "text"}).constraint is None
    assert sampler_of({"type": "text"}, regex="a").regex == "a"


def test_it_is_kept_until_there_is_a_sampler_and_options_can_be_used_again() -> None:
    options = GenerationOptions(response_format=TAG)
    assert options.response_format == TAG
    once = GenerationOptions.of(options, {}, SamplerConfig())
    again = GenerationOptions.of(once, {"response_format": TAG}, SamplerConfig())
    assert once.sampler == again.sampler and once.sampler is not None
    assert once.sampler.structural_tag == again.sampler.structural_tag == TAG  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("json_object", "response_format: expected an object with a type"),
        ({}, "response_format.type: expected one of text, json_object"),
        ({"type": ["text"]}, "response_format.type: expected one of text, json_object"),
        ({"type": "text", "schema": {}}, "response_format: expected no other key for text, got 'schema'"),
        ({"type": "json_schema"}, "response_format.json_schema: expected a schema, got none"),
        ({"type": "json_schema", "schema": {}, "json_schema": {}}, "got both json_schema and schema"),
        (
            {"type": "json_schema", "json_schema": {"schem": {}}},
            "response_format.json_schema: expected description",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": 5}},
            "response_format.json_schema.name: expected a string",
        ),
        (
            {"type": "json_schema", "json_schema": {"strict": "yes"}},
            "response_format.json_schema.strict: expected",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": []}},
            "response_format.json_schema.schema: expected",
        ),
        ({"type": "json_object", "schema": "{}"}, "response_format.schema: expected a JSON schema"),
    ],
)
def test_other_forms_are_refused(wanted: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        sampler_of(wanted)
    assert message in str(error.value)


def test_another_constraint_beside_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="response_format: cannot be combined with regex"):
        sampler_of({"type": "json_object"}, regex="a")
    turned = {"type": "object", "properties": {"a": {}, "b": {}}}  # the order of the keys is that of the text
    with pytest.raises(ConfigError, match="response_format: cannot be combined with json_schema"):
        sampler_of({"type": "json_object", "schema": SCHEMA}, json_schema=turned)
    assert sampler_of({"type": "json_object", "schema": SCHEMA}, json_schema=SCHEMA).json_schema == SCHEMA


def test_a_format_beside_a_sampler_is_a_constraint_of_it() -> None:
    options = GenerationOptions(response_format={"type": "json_object"}, sampler=SamplerConfig(top_k=3))
    assert options.sampler is not None and options.response_format is None
    assert (options.sampler.top_k, options.sampler.json_schema) == (3, {"type": "object"})
