"""What a format's grammar writes is parsed as the calls that were meant, of any tool and with any values.

Each tool takes one value for each argument, so that its name tells what a call of it means, however the
grammar has it written.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from oxillama.errors import GrammarError
from oxillama.text.toolcalls import CallFailed, ToolCallGrammar
from oxillama.text.toolcalls.schemas import type_of
from tests.support.tool_models import grammar_of, random_text, vocabulary_of
from tests.support.toolcalls import calls_of, events_of
from tests.text.toolcalls.test_message_rules import FORMATS

PYTHON_NAMES = ["ping", "write", "a.b", "name", "user", "function", "_", "é", "ﬁ"]
NAMES = [
    *PYTHON_NAMES, "f-1", "functions", "functions.x", "a&b", "x:0", "functions.f:3", "self", "all", "a/b",
    "assistant", "call:x", "$x", "$name", "a&amp;b", "to=x", "item", "ping*",
]  # fmt: skip
KEYS = [
    *"abcde" * 20, "item", "path", "a b", 'a"b', "a&b", "x:y", "a,b", "{", "a{b", "}", "é", "type", "name",
    "a=b", "a/b", "a~b", "if", "a&amp;b", "<", "'", " a", "", "$", "string", "3", "-", "a\\b", "$key", "ﬁ",
]  # fmt: skip
PIECES = [
    '"', "'", "\n", " ", "\\", "3", "null", "true", "{", "[", "}", "]", ",", ":", "<![CDATA[", "]]>",
    "&amp;", "<", ">", "é", "\u2028", "\xa0", "\t", "-1e5", "[1]", '{"a":1}', "a", "b", "</", "```", "\x1c",
]  # fmt: skip
NUMBERS = [0, 1, -3, 2.5, 1e5, 1e-7, -0.0, 10**18]
TYPES = ["string", "number", "null", "boolean", "array", "object", "integer"]


def text_of(draw: random.Random, form: ToolCallGrammar) -> str:
    """A text of delimiters, of their beginnings, and of what means something elsewhere."""
    found = ""
    for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 4])):
        piece = draw.choice([*form.delimiters, *PIECES])
        found += piece if draw.random() < 0.75 else piece[: draw.randint(1, len(piece))]
    return found


def value_of(draw: random.Random, form: ToolCallGrammar, depth: int = 0) -> Any:
    kind = draw.random()
    if kind < 0.5 or depth > 2:
        return text_of(draw, form)
    if kind < 0.7:
        return draw.choice([*NUMBERS, True, False, None])
    if kind < 0.85:
        return [value_of(draw, form, depth + 1) for _ in range(draw.randint(0, 3))]
    return {draw.choice(KEYS): value_of(draw, form, depth + 1) for _ in range(draw.randint(0, 2))}


def schema_of(draw: random.Random, value: Any, nested: bool) -> dict[str, Any]:
    """A schema that one value meets: as a constant, among others of its type, or by its parts."""
    kind = draw.random()
    if nested and isinstance(value, dict) and kind < 0.6:
        members = {key: schema_of(draw, part, nested) for key, part in value.items()}
        closed = {"additionalProperties": False} if not value or kind < 0.3 else {}
        return {"type": "object", "properties": members, "required": list(value), **closed}
    if nested and isinstance(value, list) and len({json.dumps(part) for part in value}) == 1 and kind < 0.6:
        items = schema_of(draw, value[0], nested)
        return {"type": "array", "items": items, "minItems": len(value), "maxItems": len(value)}
    if kind < 0.5:
        return {"const": value}
    if kind < 0.7:
        return {"type": sorted({type_of(value), *draw.sample(TYPES, draw.randint(1, 4))}), "enum": [value]}
    return draw.choice([{"enum": [value]}, {"allOf": [{"const": value}]}, {"anyOf": [{"const": value}] * 2}])


def check(form: ToolCallGrammar, seed: int) -> bool:
    """Whether a text was written; it is parsed as what its tools mean."""
    draw, meant, tools = random.Random(seed), {}, []
    nested = draw.random() < 0.5
    for name in draw.sample(PYTHON_NAMES if "$keywords" in form.calls[0] else NAMES, draw.randint(1, 3)):
        meant[name] = {draw.choice(KEYS): value_of(draw, form) for _ in range(draw.randint(0, 3))}
        properties = {key: schema_of(draw, value, nested) for key, value in meant[name].items()}
        tools.append({"name": name, "parameters": {"properties": properties, "required": list(properties)}})
    choice, parallel = draw.choice(["required", "required", "auto"]), draw.random() < 0.5
    in_reasoning = form.reasoning is not None and draw.random() < 0.3
    vocabulary, tokens, special, end = vocabulary_of(form, draw.random() < 0.5)
    try:
        options = {"parallel": parallel, "in_reasoning": in_reasoning, "special": special}
        grammar = grammar_of(form, choice, tools, **options)
    except GrammarError:
        return False
    text, is_whole = random_text(grammar, vocabulary, tokens, end, seed, 400)
    for constrained in (True, False) if is_whole else ():
        events = events_of(form, [text], tools, in_reasoning=in_reasoning, constrained=constrained)
        assert not [event for event in events if isinstance(event, CallFailed)], text
        calls = calls_of(events)
        assert calls or choice == "auto", text
        assert len(calls) <= 1 or parallel, text
        for call in calls:
            assert (call.name in meant, call.args) == (True, meant[call.name]), text
            assert json.dumps(call.args, sort_keys=True).count("true") == json.dumps(meant[call.name]).count(
                "true"
            )
    return is_whole


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_parsed_as_it_was_meant(name: str) -> None:
    assert sum(check(FORMATS[name], seed) for seed in range(8)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_much_of_what_is_written_is_parsed_as_it_was_meant(name: str) -> None:
    assert sum(check(FORMATS[name], seed) for seed in range(8, 500)) > 50


@pytest.mark.parametrize("form, name", [("muse", "user"), ("muse", "self"), ("functionary-v3.2", "all")])
def test_recipients_that_are_no_tools(form: str, name: str) -> None:
    """A message to the user is no call, whatever tools there are."""
    with pytest.raises(GrammarError, match=f"tool {name}: expected another name"):
        grammar_of(FORMATS[form], "auto", [{"name": name}])


@pytest.mark.parametrize(
    "tool", [{"name": "ﬁnd"}, {"name": "f", "parameters": {"properties": {"e\u0301": {}}}}]
)
def test_names_that_python_changes(tool: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=f"tool {tool['name']}: .*expected"):
        grammar_of(FORMATS["lfm2"], "auto", [tool])


def test_a_list_that_its_delimiter_begins() -> None:
    """No space may follow ``functools``, because ``functools`` alone is text."""
    grammar = grammar_of(FORMATS["firefunction"], "required", [{"name": "ping"}])
    assert grammar.matches('functools[{"name": "ping", "arguments": {}}]')
    assert not grammar.matches('functools [{"name": "ping", "arguments": {}}]')
