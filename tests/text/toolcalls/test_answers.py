"""Tools beside a JSON schema: a message is calls, or an answer that follows the schema, and is parsed so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oxillama.errors import ConfigError
from oxillama.text.toolcalls import CallStart, TextPart
from oxillama.text.toolcalls.answer_format import compiled, with_answers
from oxillama.text.toolcalls.formats import GRAMMARS
from tests.support.tool_models import random_text, vocabulary_of
from tests.support.toolcalls import events_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"s": {"type": "string"}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["s", "n"],
    "additionalProperties": False,
}
PING = {"type": "function", "function": {"name": "ping", "parameters": {}}}
REFUSED = ("harmony", "muse", "functionary-v3.2")
"""Formats of several messages in one, or whose calls could begin as JSON does."""
FORMATS = [name for name, form in GRAMMARS.items() if form.has_calls and name not in REFUSED]


@pytest.mark.parametrize("name", FORMATS)
def test_random_messages_are_calls_or_answers(name: str) -> None:
    form = with_answers(GRAMMARS[name])
    vocabulary, tokens, special, end = vocabulary_of(form, special=False)
    grammar = compiled(form, [PING["function"]], "auto", True, False, special, (SCHEMA, False))  # type: ignore[list-item]
    kinds = set()
    for seed in range(90):
        text, has_ended = random_text(grammar, vocabulary, tokens, end, seed, 200)
        if not has_ended:
            continue
        events = events_of(form, [text], [PING], constrained=True, answers=True)
        answer = "".join(event.text for event in events if isinstance(event, TextPart)).strip()
        called = [event.name for event in events if isinstance(event, CallStart)]
        kinds.add(bool(called))
        if called:
            assert not answer and set(called) == {"ping"}
        else:
            found = json.loads(answer)
            assert set(found) == {"s", "n"} and 0 <= found["n"] <= 9
    assert kinds == {True, False}


@pytest.mark.parametrize("name", FORMATS)
def test_what_looks_like_a_call_inside_an_answer_is_text(name: str) -> None:
    form = with_answers(GRAMMARS[name])
    text = json.dumps({"s": "".join(form.delimiters), "n": 1})
    for pieces in ([text], list(text)):
        assert events_of(form, pieces, [PING], constrained=True, answers=True) == [TextPart(text)]


@pytest.mark.parametrize("name", REFUSED)
def test_formats_that_cannot_tell_them_apart_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"tools: cannot be combined with json_schema in the format {name}"):
        with_answers(GRAMMARS[name])
