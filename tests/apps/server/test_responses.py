"""``/v1/responses``: the library's texts as OpenAI's items, whole, streamed and kept."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from oxillama.apps.server.callers import CONTEXT, Caller, RequestContext
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.responses.from_items import chosen_tools, conversation_messages
from oxillama.apps.server.responses.namespaces import Functions
from oxillama.apps.server.responses.store import ResponseStore, Turn
from oxillama.compat.engine import InferenceEngine
from tests.support.fitted import chat_tokens
from tests.support.server import Client, serving
from tests.support.tiny_file import CHATML, write_tiny_model
from tests.support.tool_models import ROOM as FUNCTION

PATH = "/v1/responses"
COUNT = "/v1/responses/input_tokens"
ASK = [{"role": "user", "content": "hello world"}]
BASE: dict[str, Any] = {"input": "hello world", "max_output_tokens": 9, "seed": 2}
ROOM: dict[str, Any] = {"type": "function", **FUNCTION}
CALL = {"input": "hello world", "tools": [ROOM], "tool_choice": "required", "seed": 1}
CALL |= {"max_output_tokens": 300}


def joined(events: list[Any]) -> dict[str, Any]:
    """The response that the events of a stream come to, after what all streams must have."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    for event in events[:2]:
        assert (event["response"]["status"], event["response"]["output"]) == ("in_progress", [])
    response = events[-1]["response"]
    assert kinds[-1] == response["status"]
    output: list[Any] = []
    part, written, noted = None, "", []
    for kind, event in zip(kinds[2:-1], events[2:-1]):
        if kind == "output_item.added":
            output.append(event["item"])
            assert event["item"]["status"] == "in_progress"
            part, written, noted = None, "", []
        assert event["output_index"] == len(output) - 1
        item = output[-1]
        assert event.get("item_id", item["id"]) == item["id"]
        if kind == "content_part.added":
            part = event["part"]
            assert (part["text"], event["content_index"], item["content"]) == ("", 0, [])
        elif kind.endswith(".delta"):
            assert event["delta"]
            written += event["delta"]
            noted += event.get("logprobs", [])
            assert kind == f"{part['type'] if part else 'function_call_arguments'}.delta"
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (written, item["name"])
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == written and event.get("logprobs", []) == noted
        elif kind == "content_part.done":
            assert part is not None and event["part"]["text"] == written
            part = event["part"]
        elif kind == "output_item.done":
            output[-1] = event["item"]
            assert output[-1].get("content", []) == ([] if part is None else [part])
            assert "arguments" not in item or event["item"]["arguments"] == written
    assert response["output"] == output
    return dict(response)


def alike(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a body, which is the same whole and streamed."""
    whole = client.ask(PATH, body, status=200)
    streamed = joined(client.ask(PATH, {**body, "stream": True}).named_events)
    found: dict[str, Any] = whole.json
    prefixes = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
    for response in (found, streamed):
        assert response.pop("id").startswith("resp_")
        assert response.pop("created_at") <= (response.pop("completed_at") or 1e12)
        response["usage"].pop("input_tokens_details")
        for item in response["output"]:
            assert item.pop("id").startswith(prefixes[item["type"]])
    assert streamed == found
    return found


def text_of(response: dict[str, Any]) -> str:
    """The text of a response that is one message."""
    (item,) = response["output"]
    (part,) = item["content"]
    assert (item["type"], item["role"], part["type"]) == ("message", "assistant", "output_text")
    text: str = part["text"]
    return text


def test_the_text_is_the_librarys(client: Client, alone: InferenceEngine) -> None:
    done = alone.stream_chat(ASK, seed=2, max_tokens=9).result()
    for given in ("hello world", ASK, [{"type": "message", "role": "user", "content": "hello world"}]):
        response = alike(client, {**BASE, "model": "tiny", "input": given})
        assert text_of(response) == done.text
        assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"] == {
            "input_tokens": done.usage.prompt_tokens,
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": done.usage.total_tokens,
        }
    response = alike(client, {**BASE, "regex": "[a-c]{3}"})
    assert (response["status"], response["output"][0]["status"]) == ("completed", "completed")
    assert response["incomplete_details"] is None
    empty = alike(client, {**BASE, "choices": ["abc"], "stop": "abc"})
    assert (text_of(empty), empty["status"]) == ("", "completed")


def test_what_was_asked_for_is_in_the_answer(client: Client) -> None:
    body = {
        **BASE, "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.75,
        "tools": [{"type": "web_search"}], "max_tool_calls": 3, "user": "me",
        "include": ["reasoning.encrypted_content"], "service_tier": "auto", "store": False,
    }  # fmt: skip
    response = alike(client, body)
    for name in (
        "instructions", "metadata", "temperature", "top_p", "max_output_tokens", "max_tool_calls", "store",
    ):  # fmt: skip
        assert response[name] == body[name], name
    assert (response["model"], response["tools"]) == ("tiny", [])
    assert response["text"] == {"format": {"type": "text"}}
    assert client.ask("/responses", BASE).json["output"][0]["content"] != response["output"][0]["content"]


def test_cached_tokens(client: Client) -> None:
    body = {"input": "the fox " * 20, "max_output_tokens": 1}
    client.ask(PATH, body)
    usage = client.ask(PATH, body).json["usage"]
    assert 16 <= usage["input_tokens_details"]["cached_tokens"] < usage["input_tokens"]


def test_logprobs(client: Client, alone: InferenceEngine) -> None:
    done = alone.stream_chat(ASK, seed=2, max_tokens=9, top_logprobs=2).result()
    sampled = [each for each in done.logprobs or [] if not alone.tokenizer.is_eos(each.token)]
    response = alike(client, {**BASE, "top_logprobs": 2})
    noted = response["output"][0]["content"][0]["logprobs"]
    assert [each["logprob"] for each in noted] == [each.raw.logprob for each in sampled]
    assert {len(each["top_logprobs"]) for each in noted} == {2}
    plain = alike(client, {**BASE, "include": ["message.output_text.logprobs"]})
    noted = plain["output"][0]["content"][0]["logprobs"]
    assert [each["logprob"] for each in noted] == [each.raw.logprob for each in sampled]
    assert {len(each["top_logprobs"]) for each in noted} == {0}


def test_a_receipt_on_request(client: Client, alone: InferenceEngine) -> None:
    assert alone.verify(alike(client, {**BASE, "receipt": True})["receipt"])


def test_timings_and_progress(client: Client) -> None:
    """llama-server's extensions of a stream: how far the prompt is, and times beside each piece."""
    body = BASE | {"stream": True, "timings_per_token": True, "return_progress": True, "cache_prompt": False}
    events = client.ask(PATH, body).named_events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    told = [event for event in events if "prompt_progress" in event]
    assert told and {event["type"] for event in told} == {"response.in_progress"}
    last = told[-1]["prompt_progress"]
    assert last["processed"] == last["total"] == events[-1]["response"]["usage"]["input_tokens"]
    timed = [event for event in events if "timings" in event]
    assert timed[-1] is events[-1] and timed[-1]["timings"]["predicted_n"] == 9
    assert [event for event in events if event["type"].endswith(".delta")] == timed[:-1] != []
    counts = [event["timings"]["predicted_n"] for event in timed]
    assert counts == sorted(counts)
    plain = client.ask(PATH, BASE | {"stream": True}).named_events
    assert not any("timings" in event or "prompt_progress" in event for event in plain)


def test_formats(client: Client) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    wanted = {"text": {"format": form, "verbosity": "medium"}}
    response = alike(client, {**BASE, "max_output_tokens": 60, **wanted})
    jsonschema.validate(json.loads(text_of(response)), schema)
    assert response["text"] == {"format": form}
    assert text_of(alike(client, {**BASE, "text": {"format": {"type": "json_object"}}})).startswith("{")


# --- conversations ------------------------------------------------------------------------------------


def part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def result(id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


def test_items_as_the_template_has_them() -> None:
    function = {"call_id": "x1", "name": "room", "arguments": '{"n": 3}'}
    thought = {"type": "reasoning_text", "text": "hm"}
    said = {"type": "output_text", "text": "so", "annotations": [], "logprobs": []}
    items = [
        {"role": "developer", "content": "Be quick."},
        {"role": "user", "content": [part("a"), part("b")]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought], "encrypted_content": None},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [said]},
        {"type": "function_call", "id": "fc_1", "status": "completed", **function},
        {"type": "function_call", **function, "call_id": "x2", "arguments": "{}"},
        result("x1", "open"),
        result("x2", [part("shut")]),
        result("other", ""),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "well"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "then"}]},
        {"type": "function_call", **function, "call_id": "x3"},
        {"role": "system", "content": "Stop."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "yes"},
    ]

    def call(id: str, arguments: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "room", "arguments": arguments}}

    calls = [call("x1", '{"n": 3}'), call("x2", "{}")]
    later = {"reasoning_content": "well\nthen", "tool_calls": [call("x3", '{"n": 3}')]}
    expected = [
        {"role": "system", "content": "Be brief.\n\nBe quick."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "x1", "content": "open", "name": "room"},
        {"role": "tool", "tool_call_id": "x2", "content": "shut", "name": "room"},
        {"role": "tool", "tool_call_id": "other", "content": ""},
        {"role": "assistant", "content": "", **later},
        {"role": "system", "content": "Stop."},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "yes"},
    ]
    for cut in (0, 1, 5, len(items)):
        assert conversation_messages("Be brief.", items[:cut], items[cut:]) == expected
    assert conversation_messages(None, [], items[:1]) == [{"role": "system", "content": "Be quick."}]


@pytest.mark.parametrize(
    ("item", "place", "text"),
    [
        ({"role": "tool", "content": "x"}, ".role", "expected one of user, assistant, system, developer"),
        ({"content": "x"}, "", "expected an item of type message"),
        ("hello", "", "expected an item of type message"),
        ({"type": "item_reference", "id": "msg_1"}, ".id", "expected the id of an item"),
        ({"type": "web_search_call"}, "", "got 'web_search_call'"),
        ({"role": "user"}, ".content", "expected a text or a list of parts, got None"),
        ({"role": "user", "content": "x", "oops": 1}, ".oops", "got another field"),
        (
            {"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]},
            ".content[0]",
            "expected a part of type input_text or output_text, got 'input_image'",
        ),
        ({"role": "user", "content": [{"type": "input_text"}]}, ".content[0]", "got 'input_text'"),
        ({"type": "function_call", "name": "a", "arguments": "{}"}, ".call_id", "expected a text"),
        (
            {"type": "function_call", "call_id": "a", "name": "a", "arguments": []},
            ".arguments",
            "expected a text",
        ),
        ({"type": "function_call_output", "call_id": "a"}, ".output", "expected a text"),
        ({"type": "reasoning", "encrypted_content": "x"}, ".encrypted_content", "got another field"),
        ({"type": "reasoning", "content": [{"type": "x"}]}, ".content[0]", "a part of type reasoning_text"),
        ({"type": "reasoning", "summary": "x"}, ".summary", "expected a list of parts"),
    ],
)
def test_items_that_are_refused(client: Client, item: Any, place: str, text: str) -> None:
    earlier = client.ask(PATH, BASE).json["id"]
    for path in (PATH, COUNT):
        for more in ({}, {"previous_response_id": earlier}):
            answer = client.ask(path, {"input": [*ASK, item], **more}, status=400)
            assert answer.error["message"].startswith(f"input[1]{place}: "), answer.error
            assert text in answer.error["message"] and answer.error["param"] == f"input[1]{place}"


def test_the_number_of_tokens(client: Client) -> None:
    tokenizer = client.hosted.ready().tokenizer
    talk = [{"role": "system", "content": "Be brief."}, *ASK]
    counted = client.ask(COUNT, {"instructions": "Be brief.", "input": "hello world", "model": "tiny"}).json
    n_tokens = len(chat_tokens(tokenizer, talk))
    assert counted == {"object": "response.input_tokens", "input_tokens": n_tokens}
    assert client.ask(COUNT, {"input": "zq" * 500}).json["input_tokens"] > 256
    assert client.ask(COUNT, {"input": "a", "max_output_tokens": 5}).error["param"] == "max_output_tokens"


def test_a_prompt_that_does_not_fit(client: Client) -> None:
    answer = client.ask(PATH, {"input": "zq" * 500, "stream": True})
    assert answer.refusal("type", "param") == (400, "exceed_context_size_error", "input")


# --- kept ---------------------------------------------------------------------------------------------


def test_a_response_goes_on_from_another(client: Client, alone: InferenceEngine) -> None:
    first = client.ask(PATH, {**BASE, "instructions": "Be brief."}).json
    said = first["output"][0]["content"][0]["text"]
    talk = [*ASK, {"role": "assistant", "content": said}, {"role": "user", "content": "and the fox"}]
    body = {**BASE, "input": "and the fox", "previous_response_id": first["id"]}
    expected = alone.stream_chat(talk, seed=2, max_tokens=9).result().text  # without the instructions
    second = alike(client, body)
    assert text_of(second) == expected and second["previous_response_id"] == first["id"]
    stream = client.ask(PATH, {**body, "stream": True}).named_events
    third = {**BASE, "input": "time", "previous_response_id": stream[-1]["response"]["id"]}
    talk += [{"role": "assistant", "content": expected}, {"role": "user", "content": "time"}]
    assert text_of(alike(client, third)) == alone.stream_chat(talk, seed=2, max_tokens=9).result().text


def test_responses_are_kept_until_they_are_deleted(client: Client) -> None:
    response = client.ask(PATH, BASE).json
    place = f"{PATH}/{response['id']}"
    assert client.ask(place).json == response
    assert client.ask(f"{place}?stream=true").error["param"] == "stream"
    gone = client.ask(place, method="DELETE")
    assert gone.json == {"id": response["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        assert client.ask(place, method=method).refusal("code") == (404, "response_not_found")
    answer = client.ask(PATH, {**BASE, "previous_response_id": response["id"]})
    assert answer.refusal("code") == (400, "previous_response_not_found")
    assert answer.error["param"] == "previous_response_id"
    unkept = client.ask(PATH, {**BASE, "store": False}).json
    assert client.ask(f"{PATH}/{unkept['id']}").status == 404


def test_a_server_that_keeps_none(model: Path) -> None:
    with serving(model, stored_response_bytes=0) as client:
        response = client.ask(PATH, BASE).json
        assert response["store"] is False
        assert client.ask(f"{PATH}/{response['id']}").status == 404


def kept(store: ResponseStore, id: str, size: int, before: str | None = None, new: Any = "x") -> None:
    """Keeps a response of about ``size`` bytes, which continues the one named ``before``."""
    turn = None if before is None else store.get(before).turn
    output = [{"id": f"item of {id}", "text": "y" * size}]
    asyncio.run(store.put({"id": id, "output": output}, turn, [new]))


def held(store: ResponseStore) -> int:
    """Bytes of all JSON that a store refers to, each object once."""
    found: dict[int, int] = {}
    for stored in (each for of_key in store._found.values() for each in of_key.values()):
        turn: Turn | None = stored.turn
        found |= {id(piece): len(piece) for piece in stored.pieces}
        while turn is not None:
            found |= {id(item): len(item) for item in turn.items}
            turn = turn.before
    return sum(found.values())


def test_the_store_has_a_limit() -> None:
    store = ResponseStore(40_000)
    for i in range(30):
        kept(store, str(i), 900)
        if i >= 3:
            store.get("3")  # what is used stays
    assert 8 <= len(store) <= 12 and store.n_bytes <= 40_000
    assert [each["text"] for each in store.get("29").turn.conversation()[1:]] == ["y" * 900]
    assert store.get("3")
    with pytest.raises(ApiError, match=r"^response: expected the id of a response that is kept, got '4'$"):
        store.get("4")
    kept(store, "next", 100, "29")
    conversation = store.get("next").turn.conversation()
    assert [each if each == "x" else len(each["text"]) for each in conversation] == ["x", 900, "x", 100]
    kept(store, "large", 50_000)
    assert (len(store), store.n_bytes) == (0, 0)
    kept(store, "a", 10)
    store.remove("a")
    assert (len(store), store.n_bytes) == (0, 0)


def test_a_turn_counts_as_long_as_a_response_continues_it() -> None:
    store = ResponseStore(200_000)
    large = "z" * 60_000
    for i in range(4):
        kept(store, f"first {i}", 10, new=large)
        kept(store, f"second {i}", 10, f"first {i}")
        kept(store, f"other {i}", 10, f"first {i}")
        for id in (f"first {i}", f"second {i}"):
            if i < 3:
                store.remove(id)
        assert held(store) <= store.n_bytes <= 200_000
    assert store.get("other 3").turn.conversation()[0] == large
    assert store.n_bytes < held(store) + 20_000
    with pytest.raises(ApiError):  # it was removed with the large turn before it, to make room
        store.get("other 0")
    before = store.get("second 3").turn
    for id in ("first 3", "second 3", "other 3", "other 2", "other 1"):
        store.remove(id)
    assert (len(store), store.n_bytes) == (0, 0)
    asyncio.run(store.put({"id": "late", "output": []}, before, []))  # deleted while a text went on from it
    assert held(store) <= store.n_bytes and store.n_bytes > 60_000


def test_random_conversations_hold_what_is_counted() -> None:
    store, draw = ResponseStore(200_000), random.Random(3)
    ids: list[str] = []
    for i in range(600):
        ids = [id for id in ids if id in store._found.get("", {})]
        if ids and draw.random() < 0.2:
            store.remove(draw.choice(ids))
            continue
        before = draw.choice(ids) if ids and draw.random() < 0.7 else None
        kept(store, str(i), draw.randrange(3000), before, "x" * draw.randrange(20_000))
        ids.append(str(i))
        assert held(store) <= store.n_bytes <= 200_000
    for id in list(store._found.get("", {})):
        store.remove(id)
    assert (len(store), store.n_bytes) == (0, 0)


def test_no_key_loses_what_it_keeps_to_another() -> None:
    store = ResponseStore(40_000)
    for name, n in (("bob", 3), ("alice", 30)):
        CONTEXT.set(RequestContext(Caller(name)))
        for i in range(n):
            kept(store, f"{name}{i}", 900)
        with pytest.raises(ApiError):
            store.get("alice0")
    assert store.get("alice29") and 8 <= len(store) <= 12 and store.n_bytes <= 40_000
    with pytest.raises(ApiError):
        store.get("bob0")
    kept(store, "large", 50_000)
    assert len(store) == 3
    CONTEXT.set(RequestContext(Caller("bob")))
    for i in range(3):
        store.remove(f"bob{i}")
    assert (len(store), store.n_bytes) == (0, 0)


# --- reasoning ----------------------------------------------------------------------------------------


def test_reasoning_is_an_item(thinker: Client) -> None:
    engine = thinker.hosted.ready()
    done = engine.stream_chat(ASK, seed=2, max_tokens=9).result()
    response = alike(thinker, {**BASE, "reasoning": {"effort": "low", "summary": "auto"}})
    assert response["output"] == [
        {
            "type": "reasoning",
            "status": "incomplete",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": done.reasoning}],
            "encrypted_content": None,
        }
    ]
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 9}
    assert response["reasoning"] == {"effort": "low", "summary": None}
    off = engine.stream_chat(ASK, seed=2, max_tokens=9, template={"enable_thinking": False}).result()
    assert text_of(alike(thinker, {**BASE, "reasoning": {"effort": "none"}})) == off.text


def test_effort_is_a_variable_of_the_template(reasoner: Client, tmp_path: Path) -> None:
    template = "{{ reasoning_effort }}" + CHATML
    with serving(write_tiny_model(tmp_path / "model.gguf", chat_template=template)) as client:
        plain = client.ask(COUNT, {"input": "a"}).json["input_tokens"]
        high = client.ask(COUNT, {"input": "a", "reasoning": {"effort": "xhigh"}}).json["input_tokens"]
        assert high > plain
    output = reasoner.ask(PATH, {**BASE, "reasoning": {"effort": "none"}}).json["output"]
    assert [item["type"] for item in output] == ["message"]  # reasoning_budget 0


# --- tools --------------------------------------------------------------------------------------------


def check_call(item: Any) -> None:
    """An item is a call of the room, with arguments that its schema allows."""
    assert (item["type"], item["name"]) == ("function_call", "room")
    assert re.fullmatch("[0-9a-zA-Z]{9}", item["call_id"])
    jsonschema.validate(json.loads(item["arguments"]), ROOM["parameters"])


def test_a_call_that_is_wanted(caller: Client) -> None:
    other = {**ROOM, "name": "door"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "room"}]}
    for choice in ("required", {"type": "function", "name": "room"}, allowed):
        tools = [ROOM, {"type": "web_search"}, other] if isinstance(choice, dict) else [ROOM]
        body = {**CALL, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        response = alike(caller, body)
        assert response["status"] == "completed"
        (item,) = response["output"]
        check_call(item)
        assert [tool["name"] for tool in response["tools"]] == [t["name"] for t in tools if "name" in t]


def test_several_calls_and_calls_that_are_cut_off(caller: Client) -> None:
    most, ends = 0, set()
    for seed in range(6):
        for n in (45, 300):
            response = alike(caller, {**CALL, "seed": seed, "max_output_tokens": n})
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            ends.add(response["status"])
            for item in calls:
                if item["status"] == "completed" and response["status"] == "completed":
                    check_call(item)
            most = max(most, len(calls))
            assert all(item["status"] == "completed" for item in response["output"][:-1])
            assert response["output"][-1]["status"] == response["status"]
    assert most > 1 and ends == {"completed", "incomplete"}


def test_what_comes_of_a_call_goes_back_to_the_model(caller: Client) -> None:
    body = {**CALL, "parallel_tool_calls": False}
    first = caller.ask(PATH, body).json
    (call,) = first["output"]
    opened = result(call["call_id"], "open")
    by_id = alike(caller, {**body, "input": [opened], "previous_response_id": first["id"]})
    by_items = alike(caller, {**body, "input": [*ASK, call, opened]})
    check_call(by_id["output"][0])
    assert by_id["output"] == by_items["output"]


def test_calls_as_sdks_send_them_back(caller: Client) -> None:
    """The AI SDK sends ids of items that are stored, OpenAI's for Node a field that its helper has added."""
    body = {**CALL, "parallel_tool_calls": False}
    (call,) = caller.ask(PATH, body).json["output"]
    opened = result(call["call_id"], "open")
    whole = alike(caller, {**body, "input": [*ASK, call, opened]})
    parsed = [{**call, "parsed_arguments": each} for each in (None, json.loads(call["arguments"]))]
    for sent in ({"type": "item_reference", "id": call["id"]}, {"id": call["id"]}, *parsed):
        assert alike(caller, {**body, "input": [*ASK, sent, opened]})["output"] == whole["output"]
    by_items = {"model": "caller", "input": [*ASK, call, opened], "tools": CALL["tools"]}
    by_id = {**by_items, "input": [*ASK, {"id": call["id"]}, opened]}
    assert len({caller.ask(f"{PATH}/input_tokens", each).text for each in (by_items, by_id)}) == 1
    (unkept,) = caller.ask(PATH, {**body, "store": False}).json["output"]
    for id in (unkept["id"], "fc_x", 5):
        answer = caller.ask(PATH, {**body, "input": [*ASK, {"type": "item_reference", "id": id}, opened]})
        assert answer.refusal("param", "code") == (400, "input[1].id", "item_not_found")


def test_tools_in_the_form_of_chats() -> None:
    given = [{"type": "web_search"}, {**ROOM, "strict": True}, {"type": "function", "name": "a"}]
    assert Functions(given).definitions == [
        {"type": "function", "function": FUNCTION},
        {"type": "function", "function": {"name": "a", "parameters": {}}},
    ]
    tools = Functions([ROOM, {**ROOM, "name": "door"}])
    door = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "door"}]}
    assert chosen_tools(door, tools) == (tools.definitions[1:], "auto")
    for choice, param in (
        ({"type": "web_search"}, "tool_choice.type"),
        ({**door, "mode": "none"}, "tool_choice.mode"),
        ({**door, "tools": "all"}, "tool_choice.tools"),
        ({**door, "tools": [{"type": "function", "name": "x"}]}, "tool_choice.tools"),
    ):
        with pytest.raises(ApiError) as error:
            chosen_tools(choice, tools)
        assert error.value.param == param


HOUSE: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__house",
    "description": "Rooms of a house.",
    "tools": [ROOM, {"type": "custom", "name": "shout"}],
}


def test_functions_of_namespaces(caller: Client) -> None:
    """The model knows them by a name of both; answers, streams and stored responses have both."""
    bare = caller.ask(COUNT, {"input": "hello world"}).json["input_tokens"]
    assert caller.ask(COUNT, {"input": "hello world", "tools": [HOUSE]}).json["input_tokens"] > bare
    chosen: list[Any] = [
        "required",
        {"type": "function", "name": "room"},
        {"type": "function", "name": "room", "namespace": "mcp__house"},
        {"type": "function", "name": "mcp__house__room"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "mcp__house"}]},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "room"}]},
    ]
    for choice in chosen:
        body = {**CALL, "tools": [HOUSE], "tool_choice": choice, "parallel_tool_calls": False}
        response = alike(caller, body)
        (call,) = response["output"]
        assert (call["namespace"], call["name"]) == ("mcp__house", "room")
        jsonschema.validate(json.loads(call["arguments"]), ROOM["parameters"])
    (shown,) = response["tools"]
    assert shown["name"] == "mcp__house" and [each["name"] for each in shown["tools"]] == ["room"]
    first = caller.ask(PATH, body).json
    assert caller.ask(f"{PATH}/{first['id']}").json["output"] == first["output"]
    opened = result(call["call_id"], "open")
    by_id = alike(caller, {**body, "input": [opened], "previous_response_id": first["id"]})
    by_items = alike(caller, {**body, "input": [*ASK, first["output"][0], opened]})
    assert by_id["output"] == by_items["output"] and by_id["usage"] == by_items["usage"]


def test_names_of_functions_in_namespaces() -> None:
    door = {**ROOM, "name": "door", "description": None}
    spaces = [{**HOUSE, "tools": [ROOM, door]}, {**HOUSE, "name": "a", "description": "", "tools": [ROOM]}]
    found = Functions([*spaces, {**ROOM, "name": "a__room"}, {**ROOM, "name": "b" * 120}])
    told = {each["function"]["name"]: each["function"].get("description") for each in found.definitions}
    assert told == {
        "mcp__house__room": "Opens a room.\n\nmcp__house: Rooms of a house.",
        "mcp__house__door": None,
        "room": "Opens a room.",  # a__room is another function
        "a__room": "Opens a room.",
        "b" * 120: "Opens a room.",
    }
    assert found.name("room", "a") == "room" and found.name("room", "mcp__house") == "mcp__house__room"
    assert found.name("door") == "mcp__house__door" and found.name("gone", "a") == "a__gone"
    long = Functions([{**HOUSE, "name": "n" * 100, "tools": [{**ROOM, "name": "r" * 40}]}])
    assert long.own_names == {"r" * 40: ("n" * 100, "r" * 40)}


def test_calls_and_results_of_namespaces_in_messages() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "room", "arguments": "{}"}
    call["namespace"] = "mcp__house"
    items = [call, {"type": "function_call_output", "call_id": "1", "output": "open"}]
    other = {"name": "room", "namespace": "x"}
    items.append({"type": "function_call_output", "call_id": "2", "output": "shut", **other})
    for tools in ([], [HOUSE]):
        asked, *results = conversation_messages(None, (), items, Functions(tools))
        assert asked["tool_calls"][0]["function"]["name"] == "mcp__house__room"
        assert [each["name"] for each in results] == ["mcp__house__room", "x__room"]
    del call["namespace"]
    (asked, *_) = conversation_messages(None, (), items, Functions([HOUSE]))
    assert asked["tool_calls"][0]["function"]["name"] == "mcp__house__room"


# --- what is refused ----------------------------------------------------------------------------------

NO_NAMESPACE = {"type": "function_call", "call_id": "1", "name": "a", "arguments": "{}", "namespace": 1}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": None}, "input"),
        ({"instructions": ["x"]}, "instructions"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "x"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"include": ["everything"]}, "include[0]"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"tools": [{**ROOM, "oops": 1}]}, "tools[0].oops"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**HOUSE, "oops": 1}]}, "tools[0].oops"),
        ({"tools": [{**HOUSE, "name": None}]}, "tools[0].name"),
        ({"tools": [{**HOUSE, "tools": {}}]}, "tools[0].tools"),
        ({"tools": [{**HOUSE, "tools": [ROOM, {"type": "function"}]}]}, "tools[0].tools[1].name"),
        ({"tools": [{**HOUSE, "tools": [ROOM, ROOM]}]}, "tools[0].tools[1].name"),
        ({"tools": [{**HOUSE, "tools": [{**ROOM, "name": "a b"}]}]}, "tools[0].tools[0]"),
        ({"tools": [{**ROOM, "description": 1}]}, "tools[0].description"),
        ({"input": [NO_NAMESPACE]}, "input[0].namespace"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [ROOM]}, "tool_choice"),
        ({"n": 2}, "n"),
        ({"messages": ASK}, "messages"),
        ({"logprobs": True}, "logprobs"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(caller: Client, body: dict[str, Any], param: str, stream: bool) -> None:
    answer = caller.ask(PATH, {**BASE, "stream": stream, **body}, status=400)
    assert answer.error["param"] == param and answer.error["message"].startswith(param), answer.error


@pytest.mark.parametrize("value", ["1e400", "[" * 300 + "]" * 300])
@pytest.mark.parametrize("stream", ["false", "true"])
def test_what_an_answer_cannot_repeat(client: Client, value: str, stream: str) -> None:
    body = f'{{"input": "a", "max_output_tokens": 1, "stream": {stream}, "metadata": {{"a": {value}}}}}'
    answer = client.ask(PATH, body.encode())
    assert answer.status == (200 if "[" in value else 400), answer.text
    assert "[" in value or answer.error["param"] == "body"


def test_an_error_in_the_middle_of_a_stream(model: Path) -> None:
    with serving(model) as client:
        body = {**BASE, "max_output_tokens": 200}
        rest = client.failed_stream(PATH, body, b"event: response.output_text.delta")
        name, data = rest.split("\n\n")[-2].split("\n")
        failed = json.loads(data.removeprefix("data: "))
        assert name == f"event: {failed['type']}" == "event: response.failed"
        error = {"code": "server_error", "message": "the server failed; its log says more"}
        assert (failed["response"]["status"], failed["response"]["error"]) == ("failed", error)
        assert client.ask(f"{PATH}/{failed['response']['id']}").status == 404
