"""Bodies as certain clients send them, and what these clients need of the answers. No client is needed here.

`tools/server_clients` runs the clients themselves.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.support.codex import codex_body
from tests.support.server import Client
from tests.support.tool_models import closed

CHATS, RESPONSES = "/v1/chat/completions", "/v1/responses"
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = closed(good={"type": "boolean"}, level=DIGIT)
PARAMETERS = closed(days=DIGIT)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
BOTH = {"messages": [{"role": "user", "content": "hello"}], "tools": [TOOL], "response_format": FORMAT}


@pytest.fixture(scope="module")
def client(caller: Client) -> Client:
    return caller


def is_answer(message: dict[str, Any]) -> bool:
    """Whether a message is an answer that follows the schema; if not, it is calls that follow theirs."""
    calls = message.get("tool_calls")
    if calls:
        assert message["content"] is None
        for call in calls:
            jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS)
        return False
    jsonschema.validate(json.loads(message["content"]), SCHEMA)
    return True


def test_an_agent_sends_tools_and_the_schema_of_its_answer(client: Client) -> None:
    """As the agents of OpenAI, pydantic-ai and LangGraph do in each turn."""
    whole = client.ask(CHATS, {**BOTH, "seed": 1, "n": 12, "max_tokens": 400}).json["choices"]
    ended = [choice for choice in whole if choice["finish_reason"] != "length"]
    assert {is_answer(choice["message"]) for choice in ended} == {True, False}
    for choice in ended:
        assert choice["finish_reason"] == ("stop" if choice["message"].get("content") else "tool_calls")
    events = client.ask(CHATS, {**BOTH, "seed": 1, "n": 12, "max_tokens": 400, "stream": True}).events
    texts = [""] * 12
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [choice["message"]["content"] or "" for choice in whole]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_must_come_leaves_no_text_to_the_schema(client: Client, choice: Any) -> None:
    """As instructor asks for, with the same schema for both."""
    answer = client.ask(CHATS, {**BOTH, "tool_choice": choice, "seed": 1, "max_tokens": 400}).json
    assert not is_answer(answer["choices"][0]["message"])
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    form = {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}
    body = {"input": "hello", "tools": [tool], "text": {"format": form}, "tool_choice": "required", "seed": 1}
    found = client.ask(RESPONSES, {**body, "max_output_tokens": 400}).json
    assert {item["type"] for item in found["output"]} == {"function_call"}


def test_without_calls_the_schema_rules_all_of_the_text(client: Client) -> None:
    answer = client.ask(CHATS, {**BOTH, "tool_choice": "none", "seed": 1, "max_tokens": 400}).json
    assert is_answer(answer["choices"][0]["message"])
    prompt = client.ask("/apply-template", {"messages": BOTH["messages"], "tools": [TOOL]}).json["prompt"]
    assert answer["usage"]["prompt_tokens"] == len(
        client.ask("/tokenize", {"content": prompt, "add_special": True}).json["tokens"]
    )


def test_other_grammars_beside_tools_are_refused(client: Client) -> None:
    body = {"messages": BOTH["messages"], "tools": [TOOL], "guided_regex": "[a-z]+"}
    answer = client.ask(CHATS, body, status=400)
    assert answer.json["error"]["message"] == "tools: cannot be combined with regex"


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_a_receipt_of_tools_and_a_schema_is_verified(client: Client, choice: str) -> None:
    body = {**BOTH, "tool_choice": choice, "seed": 1, "max_tokens": 400, "receipt": True}
    found = client.ask(CHATS, body).choice
    is_answer(found["message"])
    receipt = json.loads(found["receipt"])
    assert receipt["finish_reason"] == "stop"
    engine = client.hosted.ready()
    assert engine.verify(found["receipt"])
    forged = {**receipt, "tokens": [*receipt["tokens"][:-2], 5, receipt["tokens"][-1]]}
    assert not engine.verify(json.dumps(forged))


CODEX_TOOLS = [
    {
        "type": "function",
        "name": "weather",
        "description": "Tells.",
        "strict": False,
        "parameters": PARAMETERS,
    },
    {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "text"}},
    {"type": "web_search", "external_web_access": False},
    {"type": "local_shell"},
]


def codex(items: list[Any], **more: Any) -> dict[str, Any]:
    return codex_body("caller", items, CODEX_TOOLS, **more)


def test_codex(client: Client) -> None:
    hello = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    body = codex([hello], tool_choice="required", max_output_tokens=400, seed=1)
    events = client.ask(RESPONSES, body).named_events
    assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.completed"]
    (call,) = events[-1]["response"]["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    events = client.ask(RESPONSES, codex([hello, call, result], max_output_tokens=16)).named_events
    assert events[-1]["response"]["usage"]["output_tokens"] > 0


REQUIRED = (
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "output"),
    *("previous_response_id", "instructions", "error", "tools", "tool_choice", "truncation", "text", "top_p"),
    *("parallel_tool_calls", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature"),
    *("reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "background", "service_tier"),
    *("metadata", "user", "safety_identifier", "prompt_cache_key"),
)
"""Fields of a response by Open Responses (https://github.com/openresponses/openresponses)."""


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


@pytest.mark.parametrize(
    "more",
    [
        {"input": [said("user", "Say hello.")]},
        {"input": [said("user", "Count.")], "stream": True},
        {"input": [said("system", "Be a pirate."), said("user", "Say hello.")]},
        {"input": [said("user", "I am Alice."), said("assistant", "Hello!"), said("user", "Who am I?")]},
        {"input": [said("user", "Rain?")], "tools": CODEX_TOOLS[:1], "tool_choice": "required"},
        {"input": [said("user", "Rain?")], "tools": [{"type": "function", "name": "f"}], "stream": True},
        {"input": "x", "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "presence_penalty": 1},
    ],
)
def test_open_responses(client: Client, more: dict[str, Any]) -> None:
    answer = client.ask(RESPONSES, {"model": "caller", "seed": 1, "max_output_tokens": 30, **more})
    found = answer.named_events[-1]["response"] if more.get("stream") else answer.json
    assert set(REQUIRED) <= set(found)
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        assert type(found[name]) is float or type(found[name]) is int
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        assert found[name] == more.get(name)
    assert found["presence_penalty"] == more.get("presence_penalty", 0)
    for tool in found["tools"]:
        assert {"type", "name", "description", "parameters", "strict"} <= set(tool)
    assert found["output"] and all({"id", "type", "status"} <= set(item) for item in found["output"])
    if more.get("stream"):
        numbers = [event["sequence_number"] for event in answer.named_events]
        assert numbers == list(range(len(numbers)))
