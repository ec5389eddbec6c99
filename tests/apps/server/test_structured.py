"""The names that clients have for what a text must be: OpenAI's, vLLM's and the library's, in one table."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from oxillama import EngineConfig, InferenceEngine, demo
from oxillama.apps.server.chats import rules_text
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.options import options_of
from oxillama.errors import ConfigError
from tests.support.server import Client
from tests.support.tool_models import closed

MODEL = {"n_layers": 1}
SCHEMA = {"type": "object", "properties": {"b": {"type": "null"}}}
TAG = {"format": {"type": "any_text"}}
TYPED_TAG = {"type": "structural_tag", **TAG}
OBJECT = {"response_format": {"type": "json_object"}}


@pytest.fixture(scope="module")
def engine() -> Any:
    with InferenceEngine(EngineConfig(model_path=demo.STORY, num_threads=1)) as engine:
        yield engine


NAMES: list[tuple[dict[str, Any], str, Any]] = [
    ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
    ({"guided_json": json.dumps(SCHEMA)}, "json_schema", json.dumps(SCHEMA)),
    ({"guided_regex": "a+"}, "regex", "a+"),
    ({"guided_choice": ["a", "b"]}, "choices", ("a", "b")),
    ({"guided_grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
    ({"guided_json_object": True}, "json_schema", {"type": "object"}),
    ({"choice": ["a"]}, "choices", ("a",)),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
    ({"structured_outputs": {"json_object": True, "regex": None}}, "json_schema", {"type": "object"}),
    ({"structured_outputs": {"regex": "a+", "json_object": False}}, "regex", "a+"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, "choices", ("a", "b")),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "grammar", 'root ::= "a"'),
    ({"structured_outputs": {"structural_tag": TAG}}, "structural_tag", TAG),
    ({"structural_tag": json.dumps(TAG)}, "structural_tag", json.dumps(TAG)),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", SCHEMA),
    ({"response_format": TYPED_TAG}, "structural_tag", TYPED_TAG),
    ({"guided_json": SCHEMA, "json_schema": SCHEMA}, "json_schema", SCHEMA),
]


@pytest.mark.parametrize(("body", "field", "value"), NAMES)
def test_names(engine: InferenceEngine, body: dict[str, Any], field: str, value: Any) -> None:
    options = options_of(body, engine)
    sampler = options.sampler
    assert sampler is not None and sampler.constraint == field
    assert getattr(sampler, field) == value
    assert rules_text(options) == (field != "structural_tag")


@pytest.mark.parametrize("body", [{"response_format": {"type": "text"}}, {"guided_json_object": False}, {}])
def test_names_that_ask_for_nothing(engine: InferenceEngine, body: dict[str, Any]) -> None:
    options = options_of(body, engine)
    assert options.sampler is not None and options.sampler.constraint is None and not rules_text(options)


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        ({"guided_regex": "a", "guided_json": SCHEMA}, "guided_json", "guided_regex"),
        ({"guided_regex": "a", "regex": "b"}, "regex", "guided_regex"),
        (
            {"guided_choice": ["a"], "structured_outputs": {"regex": "b"}},
            "structured_outputs",
            "guided_choice",
        ),
        ({**OBJECT, "grammar": 'root ::= "a"'}, "grammar", "response_format"),
        ({**OBJECT, "json_schema": {}}, "json_schema", "response_format"),
    ],
)
def test_conflicts_name_both(engine: InferenceEngine, body: dict[str, Any], first: str, second: str) -> None:
    with pytest.raises(ApiError) as error:
        options_of(body, engine)
    assert error.value.status == 400 and error.value.param == first
    assert error.value.message.startswith(f"{first}: ") and second in error.value.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"structured_outputs": {}}, "structured_outputs: expected one of json, regex"),
        (
            {"structured_outputs": {"json": {}, "regex": "a"}},
            "structured_outputs: expected one of json, regex",
        ),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "got 'whitespace_pattern'"),
        ({"structured_outputs": "json"}, "structured_outputs: expected an object"),
        (
            {"structured_outputs": {"json_object": 1}},
            "structured_outputs.json_object: expected true or false",
        ),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern: is no option"),
        ({"response_format": {"type": "xml"}}, "response_format.type: expected one of text"),
    ],
)
def test_other_values_are_refused(engine: InferenceEngine, body: dict[str, Any], message: str) -> None:
    with pytest.raises((ApiError, ConfigError)) as error:
        options_of(body, engine)
    assert message in str(error.value)


ORDERED = closed(a={"const": 1}, z={"const": 2})
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ORDERED}}
FORMAT = {"type": "json_schema", "schema": ORDERED}
TEXT = {"prompt": "x"}
TALK = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {**TEXT, "response_format": NAMED}),
        ("/v1/completions", {**TEXT, "structured_outputs": {"json": ORDERED}}),
        ("/completion", {**TEXT, "json_schema": ORDERED}),
        ("/v1/chat/completions", {**TALK, "response_format": NAMED}),
        ("/v1/responses", {"input": "x", "text": {"format": {**FORMAT, "name": "answer"}}}),
        ("/v1/messages", {**TALK, "output_config": {"format": FORMAT}}),
        ("/api/generate", {**TEXT, "raw": True, "format": ORDERED}),
        ("/api/chat", {**TALK, "format": ORDERED}),
    ],
)
def test_properties_in_any_order(client: Client, path: str, body: dict[str, Any], any_order: bool) -> None:
    """The model wants z first; it may have that in any order only."""
    asked = {"logit_bias": {"z": 100}, "temperature": 0, "any_order": any_order}
    if path.startswith("/api/"):
        body = {**body, "stream": False, "options": asked}
    else:
        body = {**body, **asked, **({"max_tokens": 50} if path == "/v1/messages" else {})}
    answer = client.ask(path, body, status=200)
    found = re.findall(r'\\"([az])\\":', json.dumps(answer.json))
    assert found == sorted("az", reverse=any_order)
