"""Ids of calls: no two answers of a conversation have the same id, and the same request has the same ids."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from oxillama.text.toolcalls.openai_form import CallIds, call_id, id_stem
from tests.support.server import Client
from tests.support.tool_models import closed

PARAMETERS = closed(n={"enum": [1]})
FUNCTION = {"name": "poll", "description": "Polls.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
BLOCK_TOOL = {"name": "poll", "description": "Polls.", "input_schema": PARAMETERS}
ASK = {"role": "user", "content": "hello"}
CHAT, MESSAGES, RESPONSES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"

Turn = tuple[list[str], list[Any]]
"""The ids of an answer, and the messages that a client appends: the answer and the results."""


def chat_turn(client: Client, messages: list[Any], **more: Any) -> Turn:
    body = {"messages": messages, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200, **more}
    answer = client.ask(CHAT, body).choice["message"]
    ids = [call["id"] for call in answer["tool_calls"]]
    return ids, [answer, *({"role": "tool", "tool_call_id": id, "content": "no"} for id in ids)]


def messages_turn(client: Client, messages: list[Any], **more: Any) -> Turn:
    body = {"messages": messages, "tools": [BLOCK_TOOL], "tool_choice": {"type": "any"}, "max_tokens": 200}
    content = client.ask(MESSAGES, {**body, **more}).json["content"]
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": "no"} for id in ids]
    return ids, [{"role": "assistant", "content": content}, {"role": "user", "content": results}]


def responses_turn(client: Client, items: list[Any], **more: Any) -> Turn:
    tool = {"type": "function", **FUNCTION}
    body = {"input": items, "tools": [tool], "tool_choice": "required", "max_output_tokens": 200, **more}
    output = client.ask(RESPONSES, body).json["output"]
    ids = [item["call_id"] for item in output if item["type"] == "function_call"]
    return ids, [*output, *({"type": "function_call_output", "call_id": id, "output": "no"} for id in ids)]


def ollama_turn(client: Client, messages: list[Any], **more: Any) -> Turn:
    body = {"messages": messages, "tools": [TOOL], "tool_choice": "required", "stream": False}
    answer = client.ask(OLLAMA, {**body, "options": {"num_predict": 200, **more}}).json["message"]
    ids = [call["id"] for call in answer["tool_calls"]]
    return ids, [answer, *({"role": "tool", "tool_call_id": id, "content": "no"} for id in ids)]


TURNS = [chat_turn, messages_turn, responses_turn, ollama_turn]


@pytest.mark.parametrize("kept", [1, 2, 4, 99])
@pytest.mark.parametrize("turn", TURNS)
def test_ids_are_unique_whatever_the_client_leaves_out(caller: Client, turn: Any, kept: int) -> None:
    """The template does not show ids, and each call is the same: so are prompts of a window of messages."""
    said: list[Any] = [ASK]
    seen: list[str] = []
    for _ in range(5):
        first = [] if said[0] is ASK and kept >= len(said) else [ASK]
        ids, new = turn(caller, [*first, *said[-kept:]], temperature=0)
        seen += ids
        said += new
    assert len(seen) >= 5 and len(set(seen)) == len(seen)
    assert all(re.fullmatch("[0-9a-zA-Z]{9}", id) for id in seen)


@pytest.mark.parametrize("turn", TURNS)
def test_the_same_request_has_the_same_ids(caller: Client, turn: Any) -> None:
    for options in ({"temperature": 0}, {"seed": 5, "temperature": 1}):
        assert turn(caller, [ASK], **options)[0] == turn(caller, [ASK], **options)[0]
    assert turn(caller, [ASK], seed=5, temperature=1)[0] != turn(caller, [ASK], seed=6, temperature=1)[0]


def test_each_of_n_texts_has_its_own_ids(caller: Client) -> None:
    body = {"messages": [ASK], "tools": [TOOL], "tool_choice": "required", "temperature": 0}
    body |= {"max_tokens": 200, "n": 3}
    whole = caller.ask(CHAT, body).json["choices"]
    ids = [call["id"] for choice in whole for call in choice["message"]["tool_calls"]]
    assert len(ids) >= 3 and len(set(ids)) == len(ids)
    streamed: dict[int, list[str]] = {}
    for event in caller.ask(CHAT, {**body, "stream": True}).events[:-1]:
        for choice in event["choices"]:
            new = [call["id"] for call in choice["delta"].get("tool_calls", ()) if "id" in call]
            streamed.setdefault(choice["index"], []).extend(new)
    assert [id for index in sorted(streamed) for id in streamed[index]] == ids


def test_streams_have_the_ids_of_whole_answers(caller: Client) -> None:
    body: dict[str, Any] = {"messages": [ASK], "tools": [BLOCK_TOOL], "tool_choice": {"type": "any"}}
    body |= {"max_tokens": 200, "temperature": 0, "stream": True}
    begun = [event.get("content_block", {}) for event in caller.ask(MESSAGES, body).named_events]
    assert [each["id"] for each in begun if "id" in each] == messages_turn(caller, [ASK], temperature=0)[0]
    body = {"messages": [ASK], "tools": [TOOL], "tool_choice": "required"}
    lines = caller.ask(OLLAMA, {**body, "options": {"temperature": 0, "num_predict": 200}}).lines
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [call["id"] for call in calls] == ollama_turn(caller, [ASK], temperature=0)[0]


def test_ids_of_the_model_are_kept_unless_an_earlier_call_has_them() -> None:
    ids = CallIds(lambda: ("stem", ["functions.f:0"]))
    assert ids.of(0, "functions.f:1") == "functions.f:1"
    assert ids.of(1, "functions.f:0") == call_id(1, "stem")
    assert ids.of(2, "functions.f:1") == call_id(2, "stem")
    assert ids.of(3, None) == call_id(3, "stem")
    assert len({call_id(i, "stem") for i in range(1000)} | {call_id(i, "other") for i in range(1000)}) == 2000
    assert id_stem([1, 2], "a") != id_stem([1, 2], "b") != id_stem([1, 3], "b")


def test_messages_of_the_library(caller: Client) -> None:
    engine, said, seen = caller.hosted.ready(), [ASK], []
    for _ in range(3):
        found = engine.stream_chat(said, tools=[TOOL], tool_choice="required", max_tokens=200).result()
        assert found.message == found.message
        calls = found.message["tool_calls"]
        seen += [call["id"] for call in calls]
        results = [{"role": "tool", "tool_call_id": each["id"], "content": "no"} for each in calls]
        said = [ASK, found.message, *results]
    assert len(seen) >= 3 and len(set(seen)) == len(seen)
    assert json.dumps(said)
