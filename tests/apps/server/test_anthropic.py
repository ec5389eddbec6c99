"""``/v1/messages``: the library's texts in Anthropic's shapes, whole and streamed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from oxillama import InferenceEngine
from oxillama.apps.server.anthropic.blocks import SIGNATURE, input_of
from oxillama.apps.server.anthropic.from_blocks import conversation_messages, functions
from oxillama.apps.server.errors import ApiError
from tests.support.fitted import chat_tokens
from tests.support.server import Answer, Client, serving
from tests.support.tiny_file import CHATML, write_tiny_model
from tests.support.tool_models import ROOM as FUNCTION
from tests.support.waiting import stopped

SERVER = {"max_body_bytes": 10_000}
PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
ASK: list[dict[str, Any]] = [{"role": "user", "content": "hello world"}]
BASE: dict[str, Any] = {"messages": ASK, "max_tokens": 9, "seed": 2}
CACHED = {"cache_control": {"type": "ephemeral"}}
ROOM: dict[str, Any] = {
    "name": "room",
    "description": "Opens a room.",
    "input_schema": FUNCTION["parameters"],
    **CACHED,
}
FORMAT = {"type": "json_schema", "schema": {}}
CALL = {"messages": ASK, "tools": [ROOM], "tool_choice": {"type": "any"}, "seed": 1, "max_tokens": 300}


def joined(events: list[Any]) -> dict[str, Any]:
    """The message that the events of a stream come to, after what all streams must have."""
    first, *middle, change, last = events
    assert (first["type"], change["type"]) == ("message_start", "message_delta")
    assert last == {"type": "message_stop"}
    message = first["message"]
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    names = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
    is_open, written = False, ""
    for event in middle:
        if event["type"] == "content_block_start":
            assert not is_open
            message["content"].append(event["content_block"])
            is_open, written = True, ""
        assert is_open and event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = input_of(written)
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "signature_delta":
                block["signature"] += delta["signature"]
            else:
                name = names[delta["type"]]
                assert delta[name]
                written += delta[name]
                if name != "partial_json":
                    block[name] += delta[name]
    assert not is_open
    return {**message, **change["delta"], **{k: v for k, v in change.items() if k not in ("type", "delta")}}


def alike(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a body, which is the same whole and streamed."""
    whole = client.ask(PATH, body, status=200)
    streamed = joined(client.ask(PATH, {**body, "stream": True}).named_events)
    found: dict[str, Any] = whole.json
    for message in (found, streamed):
        assert message.pop("id").startswith("msg_")
        usage = message["usage"]
        message["usage"] = {
            "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"],
            **{name: usage[name] for name in ("output_tokens", "output_tokens_details")},
        }
    assert streamed == found
    return found


def test_the_text_is_the_librarys(client: Client, alone: InferenceEngine) -> None:
    done = alone.stream_chat(ASK, seed=2, max_tokens=9).result()
    assert alike(client, {**BASE, "model": "tiny"}) == {
        "model": "tiny",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": done.text}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": done.usage.prompt_tokens,
            "output_tokens": 9,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_cached_tokens_are_in_the_usage_from_the_beginning(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "the fox " * 20}], "max_tokens": 1}
    first = client.ask(PATH, body).json["usage"]
    events = client.ask(PATH, {**body, "stream": True}).named_events
    for usage in (events[0]["message"]["usage"], events[-2]["usage"]):
        assert usage["cache_read_input_tokens"] >= 16 and usage["cache_creation_input_tokens"] == 0
        assert usage["input_tokens"] > 0
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == sum(
            first[name] for name in ("input_tokens", "cache_read_input_tokens")
        )


def test_why_a_text_ends(client: Client, alone: InferenceEngine) -> None:
    text = alone.stream_chat(ASK, seed=2, max_tokens=40).result().text
    stop = text[8:11]
    message = alike(client, {**BASE, "max_tokens": 40, "stop_sequences": ["\0\0", stop]})
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    assert message["content"][0]["text"] == text[: text.index(stop)]
    message = alike(client, {**BASE, "max_tokens": 40, "regex": "[a-c]{3}"})
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    message = alike(client, {**BASE, "max_tokens": 4000})
    assert message["stop_reason"] == "model_context_window_exceeded"
    del message["usage"]["output_tokens_details"]
    assert sum(message["usage"].values()) == 256
    message = alike(client, {**BASE, "max_tokens": 40, "choices": [stop], "stop_sequences": [stop]})
    assert message["content"] == [{"type": "text", "text": ""}]  # clients read the first block


def test_a_receipt_on_request(client: Client, alone: InferenceEngine) -> None:
    receipt = alike(client, {**BASE, "receipt": True})["receipt"]
    assert alone.verify(receipt)


# --- conversations ------------------------------------------------------------------------------------


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def result(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **more}


def test_messages_as_the_template_has_them() -> None:
    call = {"type": "tool_use", "id": "x1", "name": "room", "input": {"n": 3, "s": "ä"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    calls = [{**call, "caller": {"type": "direct"}}, {**call, "id": "x2", "input": {}}]
    results = [result("x2", content="open"), result("x1", is_error=True, content=[text("a"), text("b")])]
    messages = [
        {"role": "user", "content": "one"},
        said("user", text("two", **CACHED)),
        said("assistant", thought, text("so", citations=None), *calls),
        said("user", *results, text("go"), result("other")),
        {"role": "system", "content": "Be quick."},
        said("assistant", text("I")),
        {"role": "assistant", "content": "go"},
    ]
    function = {"name": "room", "arguments": '{"n": 3, "s": "ä"}'}
    found, answer = conversation_messages([text("Be"), text("brief.")], messages)
    assert answer == "I\ngo"
    assert found == [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "one\ntwo"},
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "x1", "type": "function", "function": function},
                {"id": "x2", "type": "function", "function": {"name": "room", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "x2", "content": "open", "name": "room"},
        {"role": "tool", "tool_call_id": "x1", "content": "Error: a\nb", "name": "room"},
        {"role": "user", "content": "go"},
        {"role": "tool", "tool_call_id": "other", "content": ""},
        {"role": "system", "content": "Be quick."},
    ]
    assert conversation_messages("", messages[:1]) == ([{"role": "user", "content": "one"}], "")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
URL_IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}


@pytest.mark.parametrize(
    ("message", "place", "wanted"),
    [
        ({"role": "tool", "content": "x"}, ".role", "expected one of user, assistant, system, got 'tool'"),
        ({"content": "x"}, ".role", "expected one of"),
        ({"role": "user"}, ".content", "expected a text or a list of blocks, got None"),
        ({"role": "user", "content": "x", "name": "y"}, ".name", "expected one of role, content"),
        (said("system", IMAGE), ".content[0]", "of type text, got 'image'"),
        (said("user", {"type": "image"}), ".content[0].source", "expected an object"),
        (said("user", URL_IMAGE), ".content[0].source.type", "the server fetches nothing"),
        (said("user", {"type": "document"}), ".content[0]", "got 'document'"),
        (said("user", "x"), ".content[0]", "expected a block of type text or image"),
        (said("user", {"type": "tool_use"}), ".content[0]", "got 'tool_use'"),
        (said("system", {"type": "thinking"}), ".content[0]", "got 'thinking'"),
        (said("user", {"type": "text"}), ".content[0].text", "expected a text, got None"),
        (said("user", text("x", oops=1)), ".content[0].oops", "got another field"),
        (said("user", text("x", citations=[1])), ".content[0].citations", "expected none"),
        (
            said("user", result("a", content=[URL_IMAGE])),
            ".content[0].content[0].source.type",
            "expected base64",
        ),
        (said("user", result("a", is_error="no")), ".content[0].is_error", "expected true or false"),
        (said("user", {"type": "tool_result"}), ".content[0].tool_use_id", "expected a text"),
        (
            said("assistant", {"type": "tool_use", "id": "a", "name": "b", "input": "{}"}),
            ".content[0].input",
            "expected an object",
        ),
        (
            said("assistant", {"type": "thinking", "thinking": "x"}),
            ".content[0]",
            "expected text alone in a last message that the answer goes on from",
        ),
    ],
)
def test_messages_that_are_refused(client: Client, message: Any, place: str, wanted: str) -> None:
    for path, more in ((PATH, {"max_tokens": 1}), (COUNT, {})):
        fault = error_of(client.ask(path, {"messages": [*ASK, message], **more}), 400)
        assert fault["message"].startswith(f"messages[1]{place}: "), fault
        assert wanted in fault["message"]


def error_of(answer: Answer, status: int, kind: str = "invalid_request_error") -> dict[str, Any]:
    """The error that an answer is, in Anthropic's shape."""
    assert answer.status == status, answer.text
    body = answer.json
    assert body["type"] == "error" and body["error"]["type"] == kind
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    found: dict[str, Any] = body["error"]
    return found


def test_the_number_of_tokens(client: Client, caller: Client) -> None:
    tokenizer = client.hosted.ready().tokenizer
    talk = [{"role": "system", "content": "Be brief."}, *ASK]
    counted = client.ask(COUNT, {"system": "Be brief.", "messages": ASK, "model": "tiny"})
    assert counted.json == {"input_tokens": len(chat_tokens(tokenizer, talk))}
    usage = client.ask(PATH, {**BASE, "system": "Be brief."}).json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted.json["input_tokens"]
    long = {"messages": [{"role": "user", "content": "zq" * 500}]}
    assert client.ask(COUNT, long).json["input_tokens"] > 256
    assert error_of(client.ask(COUNT, {**long, "max_tokens": 5}), 400)["param"] == "max_tokens"
    plain = caller.ask(COUNT, {"messages": ASK}).json["input_tokens"]
    with_tools = caller.ask(COUNT, {"messages": ASK, "tools": [ROOM], "tool_choice": {"type": "any"}})
    assert with_tools.json["input_tokens"] > plain + 20


def test_an_answer_that_was_begun(client: Client, alone: InferenceEngine) -> None:
    begun = [*ASK, {"role": "assistant", "content": "the fo"}]
    prompt = alone.tokenizer.apply_chat_template(ASK) + "the fo"
    expected = alone.generate(alone.tokenizer.encode_rendered(prompt), seed=2, max_tokens=9)
    message = alike(client, {**BASE, "messages": begun})
    assert message["content"] == [{"type": "text", "text": expected}]
    for more, name in (
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking"),
        ({"output_config": {"format": FORMAT}}, "output_config.format"),
        ({"tools": [ROOM]}, "tools"),
    ):
        fault = error_of(client.ask(PATH, {**BASE, "messages": begun, **more}), 400)
        wanted = f"messages[1]: expected a last message that is the user's, beside {name}"
        assert fault["message"].startswith(wanted)


# --- reasoning ----------------------------------------------------------------------------------------


def test_reasoning_is_a_block(thinker: Client) -> None:
    engine = thinker.hosted.ready()
    done = engine.stream_chat(ASK, seed=2, max_tokens=9).result()
    for thinking in (None, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}):
        message = alike(thinker, {**BASE, "thinking": thinking})
        block = {"type": "thinking", "thinking": done.reasoning, "signature": SIGNATURE}
        assert message["content"] == [block]
        assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 9}
    hidden = alike(thinker, {**BASE, "thinking": {"type": "adaptive", "display": "omitted"}})
    assert hidden["content"] == [{"type": "thinking", "thinking": "", "signature": SIGNATURE}]
    assert hidden["usage"]["output_tokens"] == 9


def test_reasoning_is_switched_off(thinker: Client) -> None:
    engine = thinker.hosted.ready()
    done = engine.stream_chat(ASK, seed=2, max_tokens=9, template={"enable_thinking": False}).result()
    for more in ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert alike(thinker, {**BASE, **more})["content"] == [{"type": "text", "text": done.text}]
    begun = alike(thinker, {**BASE, "messages": [*ASK, {"role": "assistant", "content": "fox"}]})
    assert begun["content"][0]["type"] == "text"
    tokenizer = engine.tokenizer
    (was,) = (id for id in range(tokenizer.n_vocab) if tokenizer.token_bytes(id) == b" was")
    body = {**BASE, "messages": [*ASK, {"role": "assistant", "content": "the"}], "allowed_tokens": [was]}
    assert alike(thinker, {**body, "max_tokens": 2})["content"] == [{"type": "text", "text": " was was"}]


def test_reasoning_without_a_switch(reasoner: Client) -> None:
    answer = reasoner.ask(PATH, {**BASE, "thinking": {"type": "disabled"}}).json
    assert [block["type"] for block in answer["content"]] == ["text"]  # reasoning_budget 0
    begun = {**BASE, "messages": [*ASK, {"role": "assistant", "content": "fox"}]}
    assert "opens reasoning" in error_of(reasoner.ask(PATH, begun), 400)["message"]


def test_a_budget_ends_reasoning(reasoner: Client) -> None:
    options: dict[str, Any] = {"max_tokens": 60, "seed": 1, "temperature": 2.0}
    expected = reasoner.hosted.ready().stream_chat(ASK, reasoning_budget=9, **options).result()
    assert expected.text and expected.reasoning
    thinking = {"type": "enabled", "budget_tokens": 9}
    kinds = {
        block["type"]: block
        for block in alike(reasoner, {**BASE, **options, "thinking": thinking})["content"]
    }
    assert (kinds["thinking"]["thinking"], kinds["text"]["text"]) == (expected.reasoning, expected.text)
    for name in ("reasoning_budget", "thinking_budget_tokens", "thinking_budget"):
        said = reasoner.ask("/v1/chat/completions", {"messages": ASK, **options, name: 9}).json
        assert said["choices"][0]["message"]["content"] == expected.text
    free = reasoner.ask("/v1/chat/completions", {"messages": ASK, **options, "reasoning_budget": -1}).json
    assert not free["choices"][0]["message"]["content"]


def test_effort_and_budget_are_variables_of_the_template(tmp_path: Path) -> None:
    template = "{{ reasoning_effort }}/{{ thinking_budget }}" + CHATML
    model = write_tiny_model(tmp_path / "model.gguf", chat_template=template)
    engine = InferenceEngine.from_gguf(model, num_threads=1)
    with serving(engine) as client:

        def count(**body: Any) -> int:
            found: int = client.ask(COUNT, {"messages": ASK, **body}).json["input_tokens"]
            return found

        def expected(beginning: str) -> int:
            rest = engine.tokenizer.apply_chat_template(ASK).removeprefix("/")
            return len(engine.tokenizer.encode_rendered(beginning + rest))

        thinking = {"type": "enabled", "budget_tokens": 12345}
        assert count() == expected("/")
        assert count(output_config={"effort": "high"}, thinking=thinking) == expected("high/12345")
        assert count(thinking={"type": "disabled"}) == expected("/0")


# --- tools --------------------------------------------------------------------------------------------


def check_call(block: Any) -> None:
    """A block is a call of the room, with an input that its schema allows."""
    assert (block["type"], block["name"]) == ("tool_use", "room")
    assert re.fullmatch("[0-9a-zA-Z]{9}", block["id"])
    jsonschema.validate(block["input"], ROOM["input_schema"])


def test_a_call_that_is_wanted(caller: Client) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "room"}):
        choice = {**choice, "disable_parallel_tool_use": True}
        message = alike(caller, {**CALL, "tool_choice": choice})
        assert message["stop_reason"] == "tool_use"
        (block,) = message["content"]
        check_call(block)


def test_several_calls(caller: Client) -> None:
    found = 0
    for seed in range(6):
        message = alike(caller, {**CALL, "seed": seed})
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        if message["stop_reason"] == "tool_use":
            for call in calls:
                check_call(call)
        found = max(found, len(calls))
    assert found > 1


def test_a_call_that_is_cut_off(caller: Client) -> None:
    stops = []
    for n in range(30, 70, 4):
        message = alike(caller, {**CALL, "max_tokens": n})
        stops.append(message["stop_reason"])
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        assert all(isinstance(block["input"], dict) for block in calls)
    assert "max_tokens" in stops


def test_no_call_where_none_is_wanted(caller: Client) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    plain = alike(caller, {**BASE, "max_tokens": 20})
    assert alike(caller, {**BASE, "max_tokens": 20, "tools": [search]}) == plain
    message = alike(caller, {**BASE, "tools": [ROOM], "tool_choice": {"type": "none"}})
    assert [block["type"] for block in message["content"]] == ["text"]


def test_what_comes_of_a_call_goes_back_to_the_model(caller: Client) -> None:
    body = {**CALL, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    content = caller.ask(PATH, body).json["content"]
    result = {"type": "tool_result", "tool_use_id": content[0]["id"], "content": "open"}
    messages = [*ASK, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    check_call(alike(caller, {**body, "messages": messages})["content"][0])


def test_tools_in_openais_form() -> None:
    tools = [{"type": "bash_20250124", "name": "bash"}, ROOM, {**ROOM, "type": "custom"}]
    assert functions(tools) == [{"type": "function", "function": FUNCTION}] * 2
    for tool, place in (
        ({"input_schema": {}}, "tools[0].name"),
        ({"name": "a"}, "tools[0].input_schema"),
        ({**ROOM, "input_examples": [{"n": 1}]}, "tools[0].input_examples"),
    ):
        with pytest.raises(ApiError) as error:
            functions([tool])
        assert error.value.param == place


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"], "stop": ["b"]}, "stop"),
        ({"thinking": {"type": "always"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [ROOM], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [ROOM], "tool_choice": {"type": "auto", "name": "room"}}, "tool_choice.name"),
        ({"tools": [ROOM], "tool_choice": {"type": "tool", "name": "door"}}, "tool_choice"),
        ({"tools": [ROOM, ROOM], "tool_choice": {"type": "any"}}, "tools[1]"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": FORMAT}, "output_format": FORMAT}, "output_format"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"speed": "fast"}, "speed"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(caller: Client, body: dict[str, Any], param: str, stream: bool) -> None:
    fault = error_of(caller.ask(PATH, {**BASE, "stream": stream, **body}), 400)
    assert fault["param"] == param and fault["message"].startswith(param), fault


def test_harmless_fields(client: Client) -> None:
    plain = alike(client, BASE)
    more = {
        "metadata": {"user_id": "x"},
        "service_tier": "standard_only",
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "mcp_servers": [],
        "tools": [],
        "speed": None,
    }
    assert alike(client, {**BASE, **more}) == plain


def test_a_schema(client: Client) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "schema": schema}
    for more in ({"output_config": {"format": form}}, {"output_format": form}, {"json_schema": schema}):
        message = alike(client, {**BASE, "max_tokens": 60, **more})
        jsonschema.validate(json.loads(message["content"][0]["text"]), schema)


def test_errors_of_the_frame_have_the_shape(client: Client, model: Path) -> None:
    error_of(client.ask(PATH), 405)
    error_of(client.ask("/v1/messages/batches", {}), 404, "not_found_error")
    error_of(client.ask(PATH, {**BASE, "model": "claude"}), 404, "not_found_error")
    error_of(client.ask(PATH, b"x" * 10_001), 413, "request_too_large")
    error_of(client.ask(PATH, b"{"), 400)
    for version, status in (("2023-06-01", 200), ("2026-10-21", 200), ("2023-01-01", 400)):
        assert client.ask(PATH, BASE, headers={"anthropic-version": version}).status == status
    for status, path in ((404, "/v1/messagesx"), (404, "/v1/nothing")):
        answer = client.ask(path)
        assert answer.status == status and set(answer.json) == {"error"}
    fault = error_of(client.ask(PATH, {**BASE, "messages": [{"role": "user", "content": "zq" * 500}]}), 400)
    assert fault["message"].startswith("prompt is too long: messages: expected at most 255 tokens")
    assert fault["n_prompt_tokens"] > fault["n_ctx"] == 256
    engine = InferenceEngine.from_gguf(model, num_threads=1)
    with serving(engine, api_keys=("k",)) as other:
        error_of(other.ask(PATH, BASE), 401, "authentication_error")
        engine.close()
        error_of(other.ask(PATH, BASE, headers={"x-api-key": "k"}), 503, "overloaded_error")


def test_pings_and_errors_in_a_stream(model: Path) -> None:
    engine = InferenceEngine.from_gguf(model, num_threads=1)
    with serving(engine, ping_seconds=0.02) as client:
        with stopped(engine):
            connection, response = client.open(PATH, {**BASE, "max_tokens": 200, "stream": True})
            first = [response.readline() for _ in range(3)]
            assert first == [b"event: ping\n", b'data: {"type": "ping"}\n', b"\n"]
        connection.close()
        rest = client.failed_stream(PATH, {**BASE, "max_tokens": 200}, b"event: content_block_delta")
    name, data = rest.split("\n\n")[-2].split("\n")
    error = {"type": "api_error", "message": "the server failed; its log says more", "code": "internal_error"}
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {"type": "error", "error": error}
