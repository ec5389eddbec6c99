"""Parameters of tools in every format: annotations, parameters that no schema lists, strings like JSON."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import pytest

from oxillama import GrammarError
from oxillama.text.toolcalls import CallEnd, CallFailed, ToolCallGrammar
from oxillama.text.toolcalls.schemas import ANY, types_of
from tests.support.tool_models import grammar_of, random_text, vocabulary_of
from tests.support.toolcalls import events_of, minimax_m3, parsed, tags
from tests.text.toolcalls.test_grammar_and_parser import schema_of, value_of
from tests.text.toolcalls.test_message_rules import FORMATS

ANNOTATIONS: dict[str, Any] = {
    "$comment": "checked by hand", "deprecated": True, "readOnly": True, "writeOnly": False, "nullable": True,
    "example": {"port": "a"}, "examples": [{"port": "a"}], "default": {}, "title": "Tide",
    "propertyOrdering": ["port"], "contentMediaType": "text/plain",
    "externalDocs": {"url": "https://example.org"}, "discriminator": {"propertyName": "port"},
    "xml": {"name": "tide"}, "x-order": 1, "x-google-identifier": None, "unheardOf": [{"type": "null"}],
}  # fmt: skip


def annotated(keyword: str) -> dict[str, Any]:
    """Parameters that have a keyword wherever schemas can have one; those alone for ""."""
    more = {keyword: ANNOTATIONS[keyword]} if keyword else {}
    port = {"type": "string", "maxLength": 4, **more}
    place = {"type": "object", "properties": {"x": {"type": "integer", **more}}, "required": ["x"], **more}
    places = {"type": "array", "items": place, **more}
    return {"type": "object", "properties": {"port": port, "at": places}, "required": ["port"], **more}


@pytest.mark.parametrize("name", FORMATS)
def test_annotations_change_no_grammar(name: str) -> None:
    plain = grammar_of(FORMATS[name], "required", [{"name": "tide", "parameters": annotated("")}])
    for keyword in ANNOTATIONS:
        tool = {"name": "tide", "parameters": annotated(keyword)}
        assert grammar_of(FORMATS[name], "required", [tool]).digest == plain.digest, keyword


@pytest.mark.parametrize("name", FORMATS)
def test_an_annotation_opens_no_parameters(name: str) -> None:
    closed = grammar_of(FORMATS[name], "required", [{"name": "ping"}])
    for keyword, value in ANNOTATIONS.items():
        tool = {"name": "ping", "parameters": {"type": "object", keyword: value}}
        assert grammar_of(FORMATS[name], "required", [tool]).digest == closed.digest, keyword


# --- parameters that a schema does not list -------------------------------------------------------
def calls_of(form: ToolCallGrammar, tool: Any, text: str, constrained: bool = True) -> list[dict[str, Any]]:
    """The arguments of the calls in a text."""
    found = parsed(form, text, tools=[tool], constrained=constrained)
    assert not found.failed, text
    return [args for _, args in found.calls]


OPEN: dict[str, Any] = {
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "patternProperties": {"^x-": {"type": "string"}},
    "additionalProperties": {"type": "boolean"},
}


def written(name: str, args: dict[str, Any]) -> str:
    """A call of the tool ``t`` in a format."""
    if name == "qwen":
        return f'<tool_call>{{"name": "t", "arguments": {json.dumps(args)}}}</tool_call>'
    if name == "minimax-m3":
        return minimax_m3(("t", args))
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in args.items()}
    if name == "lfm2":
        members = ", ".join(f"{key}={json.dumps(value)}" for key, value in args.items())
        return f"<|tool_call_start|>[t({members})]<|tool_call_end|>"
    return tags("t", **texts)


@pytest.mark.parametrize("name", ["qwen", "qwen-xml", "minimax-m3"])
@pytest.mark.parametrize(
    "args, is_allowed",
    [
        ({"n": 1}, True),
        ({"n": 1, "x-a": "true", "b": True}, True),
        ({"b": True, "x-a": "[1]", "n": 2, "c": False}, True),
        ({"n": "a"}, False),
        ({"n": 1, "b": "text"}, False),
        ({"b": True}, False),
    ],
)
def test_open_parameters(name: str, args: dict[str, Any], is_allowed: bool) -> None:
    tool = {"name": "t", "parameters": OPEN}
    text = written(name, args)
    assert grammar_of(FORMATS[name], "required", [tool]).matches(text) is is_allowed
    if is_allowed:
        assert calls_of(FORMATS[name], tool, text) == calls_of(FORMATS[name], tool, text, False) == [args]


@pytest.mark.parametrize("name", ["qwen", "qwen-xml", "minimax-m3", "lfm2"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "additionalProperties": True},
        {"type": "object", "properties": {}, "additionalProperties": {}},
        {"type": ["object", "null"], "patternProperties": {"^[a-z]+$": {}}},
        {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^[b-z]": {}}},
        {"properties": {}, "required": ["a"], "additionalProperties": {"type": ["integer", "string"]}},
        {"additionalProperties": {"$ref": "#/$defs/v"}, "$defs": {"v": {"type": ["integer", "string"]}}},
    ],
)
def test_kinds_of_open_parameters(name: str, parameters: dict[str, Any]) -> None:
    tool, args = {"name": "t", "parameters": parameters}, {"a": 3, "other": "x"}
    text = written(name, args)
    assert grammar_of(FORMATS[name], "required", [tool]).matches(text)
    assert calls_of(FORMATS[name], tool, text) == [args]


def test_a_parameter_that_matches_a_pattern_meets_both_schemas() -> None:
    parameters = {
        "properties": {"x-n": {"type": ["integer", "string"]}},
        "patternProperties": {"^x-": {"type": ["string", "null"]}, "n$": {"maxLength": 2}},
    }
    tool = {"name": "t", "parameters": parameters}
    grammar = grammar_of(FORMATS["qwen-xml"], "required", [tool])
    assert grammar.matches(tags("t", **{"x-n": "12"})) and not grammar.matches(tags("t", **{"x-n": "123"}))
    assert calls_of(FORMATS["qwen-xml"], tool, tags("t", **{"x-n": "12"})) == [{"x-n": "12"}]
    assert grammar.matches(tags("t", **{"x-m": "123"})) and not grammar.matches(tags("t", **{"m": "123"}))


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"]
)
@pytest.mark.parametrize("name", ["qwen-xml", "minimax-m3", "lfm2"])
def test_references_in_older_drafts(name: str, draft: str) -> None:
    """Also from a part of an argument to another argument, and with an address of the schema's own."""
    item = {"type": "object", "properties": {"m": {"$ref": "#/properties/n"}}, "required": ["m"]}
    parameters: dict[str, Any] = {
        "$schema": draft,
        "id": "https://example.org/t",
        "properties": {"n": {"$ref": "#/definitions/n"}, "l": {"type": "array", "items": item}},
        "definitions": {"n": {"type": "integer"}},
    }
    tool, args = {"name": "t", "parameters": parameters}, {"l": [{"m": 3}], "n": 4}
    shown = {**args, "l": json.dumps(args["l"])} if name == "minimax-m3" else args
    grammar = grammar_of(FORMATS[name], "required", [tool])
    assert grammar.matches(written(name, shown))
    assert not grammar.matches(written(name, {"n": "x"}))
    assert calls_of(FORMATS[name], tool, written(name, shown)) == [args]


def test_a_name_with_marks_of_json_pointers_may_refer() -> None:
    """The schema of such a parameter is found by a JSON pointer, in which "/" and "~" are escaped."""
    parameters = {"properties": {"a/b~c": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    tool, form = {"name": "t", "parameters": parameters}, FORMATS["qwen-xml"]
    grammar = grammar_of(form, "required", [tool])
    assert grammar.matches(tags("t", **{"a/b~c": "12"})) and not grammar.matches(tags("t", **{"a/b~c": "x"}))
    assert calls_of(form, tool, tags("t", **{"a/b~c": "12"})) == [{"a/b~c": 12}]


def test_what_is_not_strict_takes_names_of_no_pattern() -> None:
    parameters = {"properties": {"n": {}}, "patternProperties": {r"(x)\1": {}}}
    tool = {"name": "t", "strict": False, "parameters": parameters}
    assert grammar_of(FORMATS["glm"], "required", [tool]).matches("<tool_call>t</tool_call>")


def test_a_name_that_no_schema_lists_may_repeat() -> None:
    """As in JSON, the last value counts. A listed name comes once."""
    tool, twice = {"name": "t", "parameters": OPEN}, "<parameter=b>\nfalse\n</parameter>\n</function>"
    text = tags("t", n="1", b="true").replace("</function>", twice)
    assert grammar_of(FORMATS["qwen-xml"], "required", [tool]).matches(text)
    assert calls_of(FORMATS["qwen-xml"], tool, text) == [{"n": 1, "b": False}]
    closed = [{"name": "t", "parameters": {"properties": {"n": {}}}}]
    assert type(events_of(FORMATS["qwen-xml"], [text], closed)[-1]) is CallFailed


def open_calls(form: ToolCallGrammar, seed: int) -> int:
    """How many arguments a random text has that no schema lists; each is parsed as what it means."""
    draw = random.Random(seed)
    values = [value_of(draw, form) for _ in range(3)]
    listed, by_pattern, other = (schema_of(draw, value, False) for value in values)
    parameters = {
        "properties": {"a": listed},
        "required": ["a"] * draw.randint(0, 1),
        "patternProperties": {"^[xX]": by_pattern},
        "additionalProperties": other,
    }
    tool = {"name": "f", "parameters": parameters}
    vocabulary, tokens, special, end = vocabulary_of(form, draw.random() < 0.5)
    try:
        grammar = grammar_of(form, "required", [tool], special=special)
    except GrammarError:  # a string that the format cannot write
        return 0
    text, is_whole = random_text(grammar, vocabulary, tokens, end, seed, 400)
    found = calls_of(form, tool, text) if is_whole else []
    for key, value in ((key, value) for args in found for key, value in args.items()):
        wanted = values[0 if key == "a" else 1 if re.match("[xX]", key) else 2]
        assert (value, json.dumps(value).count("true")) == (wanted, json.dumps(wanted).count("true")), text
    return sum(key != "a" for args in found for key in args)


SLOW = {"lfm2": 60, "minimax-m3": 120, "deepseek-dsml": 30, "hunyuan": 30, "muse": 30}
"""Formats of which few random texts are short, with how many are drawn."""


@pytest.mark.parametrize("name", [name for name in FORMATS if "$json" not in FORMATS[name].calls[0]])
def test_open_parameters_are_parsed_as_they_were_meant(name: str) -> None:
    assert sum(open_calls(FORMATS[name], seed) for seed in range(SLOW.get(name, 15))) > 0


# --- strings that begin like JSON -----------------------------------------------------------------
LIKE_JSON = [
    '{"a": 1}', "[1]", "null", "12", "true", '"x"', "-1.5e3", '{"a": ', "[", " 1", "{}", '[{"b": "]"}]',
]  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "type": {"type": "string"},
    "a list of types": {"type": ["string"]},
    "a nullable type": {"type": "string", "nullable": True},
    "enum": {"enum": LIKE_JSON},
    "type and enum": {"type": ["string", "object", "integer"], "enum": LIKE_JSON},
    "allOf": {"allOf": [{"type": "string"}, {"maxLength": 50}]},
    "a reference": {"$ref": "#/$defs/text"},
    "a reference in allOf": {"allOf": [{"$ref": "#/$defs/text"}], "description": "as pydantic 1 writes it"},
    "anyOf beside a type": {"type": "string", "anyOf": [{"minLength": 1}, {"pattern": "^.+$"}]},
    "nested": {"anyOf": [{"allOf": [{"type": "string"}]}, {"$ref": "#/$defs/text"}]},
}


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("name", ["qwen-xml", "qwen", "minimax-m3", "lfm2"])
def test_strings_that_begin_like_json_stay_strings(name: str, kind: str) -> None:
    parameters = {"properties": {"s": SCHEMAS[kind]}, "$defs": {"text": {"type": "string"}}}
    tool = {"name": "t", "parameters": parameters}
    grammar = grammar_of(FORMATS[name], "required", [tool])
    for value in LIKE_JSON:
        text = written(name, {"s": value})
        assert grammar.matches(text), value
        for constrained in (True, False):
            assert calls_of(FORMATS[name], tool, text, constrained) == [{"s": value}]
            pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
            events = events_of(FORMATS[name], pieces, [tool], constrained=constrained)
            assert [event.call.args for event in events if isinstance(event, CallEnd)] == [{"s": value}]


@pytest.mark.parametrize("name", FORMATS)
def test_a_string_like_json_is_written_as_one(name: str) -> None:
    """A text that the grammar of a format allows is parsed as the string."""
    for seed, value in enumerate(LIKE_JSON[:7]):
        text = {"allOf": [{"$ref": "#/$defs/E"}], "description": "as pydantic 1 writes enumerations"}
        parameters = {"properties": {"s": text}, "required": ["s"], "$defs": {"E": {"enum": [value]}}}
        tool = {"name": "f", "parameters": parameters}
        vocabulary, tokens, special, end = vocabulary_of(FORMATS[name], True)
        grammar = grammar_of(FORMATS[name], "required", [tool], special=special, parallel=False)
        written, is_whole = random_text(grammar, vocabulary, tokens, end, seed, 400)
        assert is_whole or "harmony" in name
        assert not is_whole or calls_of(FORMATS[name], tool, written) == [{"s": value}]


# --- types ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "schema, types",
    [
        ({"type": ["string", "null"], "enum": ["a"]}, "string"),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, "number"),
        ({"$ref": "#/$defs/a", "type": "null"}, "null"),
        ({"oneOf": [{"const": 1}, {"allOf": [{"const": None}]}]}, "null number"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, " ".join(sorted(ANY))),
        ({"$ref": "#/$defs/loop"}, " ".join(sorted(ANY))),
        (True, " ".join(sorted(ANY))),
    ],
)
def test_types_of_schemas(schema: Any, types: str) -> None:
    root = {"$defs": {"a": {"type": ["string", "null"]}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}}}
    assert types_of(schema, root) == set(types.split())


def test_types_of_a_schema_with_many_ways_take_no_time() -> None:
    ways = {"anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(20)]}
    started = time.process_time()
    assert types_of(ways, {"$defs": {str(i): ways for i in range(20)}}) == ANY
    assert time.process_time() - started < 1
