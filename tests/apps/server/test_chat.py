"""``/v1/chat/completions``: the library's texts in OpenAI's shapes, streamed as its clients expect."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from oxillama import ConfigError
from oxillama.base.config.server import ServerConfig
from oxillama.compat.engine import InferenceEngine
from oxillama.text.toolcalls import (
    ArgumentsPart,
    CallEnd,
    CallFailed,
    CallStart,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from oxillama.text.toolcalls.openai_form import CallIds, call_id, delta_of, whole_message
from tests.support.fitted import chat_tokens
from tests.support.server import Client, serving
from tests.support.tiny_file import write_tiny_model
from tests.support.tool_models import FRIEND as SCHEMA, ROOM as FUNCTION

MODEL = {"context_length": 256}
PATH = "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello world"}]
EFFORT = "{{ reasoning_effort }}{{ mode }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"


def chunks_of(events: list[Any]) -> list[dict[str, Any]]:
    """The choices of a stream's chunks, after what all of them must have."""
    *chunks, done = events
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    return [choice for chunk in chunks for choice in chunk["choices"]]


def test_the_text_is_the_librarys(client: Client, alone: InferenceEngine) -> None:
    answer = client.ask(PATH, {"model": "tiny", "messages": MESSAGES, "seed": 2, "max_tokens": 9}).json
    done = alone.stream_chat(MESSAGES, seed=2, max_tokens=9).result()
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": done.text, "refusal": None},
            "logprobs": None,
            "finish_reason": done.finish_reason,
        }
    ]
    assert answer["object"] == "chat.completion"
    usage = answer["usage"]
    assert usage["prompt_tokens"] == done.usage.prompt_tokens
    assert usage["total_tokens"] == done.usage.total_tokens


def test_as_many_tokens_as_the_context_holds(client: Client) -> None:
    usage = client.ask(PATH, {"messages": MESSAGES, "ignore_eos": True}).json["usage"]
    assert usage["total_tokens"] == 256


def test_cached_tokens_are_in_the_usage(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "the fox " * 20}], "max_tokens": 1}
    client.ask(PATH, body)
    usage = client.ask(PATH, body).json["usage"]
    assert 16 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_a_stream_has_the_shape_that_clients_expect(client: Client) -> None:
    body = {"messages": MESSAGES, "seed": 3, "max_tokens": 12, "n": 2}
    whole = client.ask(PATH, body).json
    for usage_wanted in (False, True):
        options = {"stream_options": {"include_usage": True}} if usage_wanted else {}
        events = client.ask(PATH, {**body, **options, "stream": True}).events
        if usage_wanted:
            last = events[-2]
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
            assert all(event["usage"] is None for event in events[:-2])
        else:
            assert all("usage" not in event for event in events[:-1])
        choices = chunks_of(events)
        for expected in whole["choices"]:
            first, *middle, end = (c for c in choices if c["index"] == expected["index"])
            assert first["delta"] == {"role": "assistant", "content": None}
            assert all(list(c["delta"]) == ["content"] and c["delta"]["content"] for c in middle)
            assert "".join(c["delta"]["content"] for c in middle) == expected["message"]["content"]
            assert (end["delta"], end["finish_reason"]) == ({}, expected["finish_reason"])
            assert all(c["finish_reason"] is None for c in (first, *middle))


def test_logprobs(client: Client, alone: InferenceEngine) -> None:
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}
    choice = client.ask(PATH, body).choice
    done = alone.stream_chat(MESSAGES, temperature=0, max_tokens=6, top_logprobs=2).result()
    sampled = [each for each in done.logprobs or [] if not alone.tokenizer.is_eos(each.token)]
    content = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [each.raw.logprob for each in sampled]
    data = b"".join(bytes(entry["bytes"]) for entry in content)
    assert data.decode("utf-8", "replace") == choice["message"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(sampled)
    assert content[0]["top_logprobs"][0]["logprob"] == content[0]["logprob"]
    streamed = chunks_of(client.ask(PATH, {**body, "stream": True}).events)
    assert [e for c in streamed if c["logprobs"] for e in c["logprobs"]["content"]] == content
    plain = client.ask(PATH, {**body, "top_logprobs": None}).choice["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in plain] == [[]] * len(plain)


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}, SCHEMA),
        ({"type": "json_schema", "schema": SCHEMA}, SCHEMA),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
    ],
)
def test_response_formats(client: Client, wanted: Any, schema: Any) -> None:
    body = {"messages": MESSAGES, "response_format": wanted, "seed": 1}
    choice = client.ask(PATH, body).choice
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_any_object_and_any_text(client: Client) -> None:
    body = {"messages": MESSAGES, "response_format": {"type": "json_object"}, "seed": 1, "max_tokens": 5}
    assert client.ask(PATH, body).choice["message"]["content"].startswith("{")
    plain = {**body, "response_format": {"type": "text"}}
    texts = {
        client.ask(PATH, b).choice["message"]["content"] for b in (plain, {**plain, "response_format": None})
    }
    assert len(texts) == 1 and not texts.pop().startswith("{")


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"messages": []}, "messages", "messages: expected List should have at least 1 item"),
        ({"messages": "hello"}, "messages", "messages: expected a valid list, got 'hello'"),
        (
            {"messages": [{"content": "x"}]},
            "messages[0].role",
            "messages[0].role: expected a string, got None",
        ),
        ({"messages": [{"role": "user"}]}, None, "messages[0]: expected content or tool_calls, got neither"),
        ({"messages": [{"role": "user", "content": 5}]}, None, "messages[0].content: expected a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
            "messages[0].content[0]: the model takes no pictures: it has no projector file (mmproj)",
        ),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]", ""),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: expected logprobs true beside it"),
        ({"logprobs": 2}, "logprobs", "logprobs: expected a valid boolean, got 2"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "response_format.type: expected"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", ""),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format", ""),
        (
            {"response_format": {"type": "json_object"}, "json_schema": {}},
            "json_schema",
            "json_schema: expected the value of response_format, got {}",
        ),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, None, ""),
        ({"verbosity": "low"}, "verbosity", "verbosity: expected 'medium', which is all that is supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "modalities: expected ['text']"),
        ({"web_search_options": {}}, "web_search_options", "web_search_options: expected no such field"),
        ({"best_of": 2}, "best_of", "best_of: expected 1, which is all that is supported, got 2"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", ""),
        ({"reasoning_format": "x"}, "reasoning_format", "reasoning_format: expected"),
        ({"echo": True}, "echo", "echo: expected False, which is all that is supported, got True"),
        ({"model": "other"}, "model", "model: expected tiny, got other"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(
    client: Client, body: dict[str, Any], param: str | None, message: str, stream: bool
) -> None:
    answer = client.ask(PATH, {"messages": MESSAGES, "stream": stream, **body})
    assert answer.status == (404 if "model" in body else 400), answer.text
    assert answer.error["message"].startswith(message), answer.error
    assert param is None or answer.error["param"] == param, answer.error


def test_a_conversation_that_does_not_fit(client: Client) -> None:
    answer = client.ask(PATH, {"messages": [{"role": "user", "content": "zq" * 200}]})
    assert answer.refusal("type") == (400, "exceed_context_size_error")
    assert answer.error["param"] == "messages"
    assert answer.error["n_prompt_tokens"] > answer.error["n_ctx"] == 256


def test_messages_as_templates_know_them(client: Client) -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "world"}]
    messages = [
        {"role": "developer", "content": "Be brief.", "name": None},
        {"role": "user", "content": parts},
    ]
    prompt = client.ask("/apply-template", {"messages": messages}).json["prompt"]
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello\nworld<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    whole = client.ask("/apply-template", {"messages": messages, "add_generation_prompt": False})
    assert not whole.json["prompt"].endswith("assistant\n")
    assert client.ask("/apply-template", {"messages": MESSAGES, "oops": 1}).error["param"] == "oops"


def test_variables_of_the_template(tmp_path: Path) -> None:
    with serving(write_tiny_model(tmp_path / "model.gguf", chat_template=EFFORT)) as client:
        body = {"messages": MESSAGES[1:], "reasoning_effort": "low", "chat_template_kwargs": {"mode": "x"}}
        assert client.ask("/apply-template", body).json["prompt"] == "lowxuser: hello world"
        assert client.ask(PATH, {**body, "max_tokens": 1}).status == 200


def test_a_model_without_a_template(tmp_path: Path) -> None:
    with serving(write_tiny_model(tmp_path / "model.gguf", chat_template=None)) as client:
        for stream in (False, True):
            answer = client.ask(PATH, {"messages": MESSAGES, "stream": stream})
            assert answer.refusal("code") == (400, "invalid_messages")
            assert answer.error["message"].startswith("chat template: expected one of the file's (none)")


# --- reasoning ----------------------------------------------------------------------------------------


def test_reasoning_that_the_prompt_opens(reasoner: Client) -> None:
    engine = reasoner.hosted.ready()
    body: dict[str, Any] = {"messages": MESSAGES, "seed": 5, "max_tokens": 12}
    text = engine.generate(chat_tokens(engine.tokenizer, MESSAGES), seed=5, max_tokens=12)
    message = reasoner.ask(PATH, body).choice["message"]
    assert message["content"] == ""
    assert message["reasoning_content"] == message["reasoning"] == text.strip()
    plain = reasoner.ask(PATH, {**body, "reasoning_format": "none"}).choice["message"]
    assert plain == {"role": "assistant", "content": text, "refusal": None}
    choices = chunks_of(reasoner.ask(PATH, {**body, "stream": True}).events)
    assert all("content" not in choice["delta"] for choice in choices[1:])
    for name in ("reasoning", "reasoning_content"):
        assert "".join(c["delta"].get(name, "") for c in choices) == text.strip()
    ruled = {**body, "regex": "[ab]{3}"}
    assert len(reasoner.ask(PATH, ruled).choice["message"]["content"]) == 3


# --- tools --------------------------------------------------------------------------------------------

ROOM: dict[str, Any] = {"type": "function", "function": FUNCTION}
ASK = [{"role": "user", "content": "hello"}]


def check_call(call: Any) -> None:
    """A call is one of the room, with arguments that its schema allows."""
    assert (call["type"], call["function"]["name"]) == ("function", "room")
    assert re.fullmatch("[0-9a-zA-Z]{9}", call["id"])
    jsonschema.validate(json.loads(call["function"]["arguments"]), ROOM["function"]["parameters"])


def test_a_call_that_is_required(caller: Client) -> None:
    named = {"type": "function", "function": {"name": "room"}}
    for choice in ("required", named):
        body = {"messages": ASK, "tools": [ROOM], "tool_choice": choice, "seed": 1, "max_tokens": 300}
        answer = caller.ask(PATH, {**body, "parallel_tool_calls": False}).choice
        assert answer["finish_reason"] == "tool_calls"
        assert answer["message"]["content"] is None
        (call,) = answer["message"]["tool_calls"]
        check_call(call)


def test_streamed_calls_have_the_shape_that_clients_expect(caller: Client) -> None:
    body = {"messages": ASK, "tools": [ROOM], "tool_choice": "required", "seed": 1, "max_tokens": 300, "n": 2}
    whole = caller.ask(PATH, body).json["choices"]
    choices = chunks_of(caller.ask(PATH, {**body, "stream": True}).events)
    for expected in whole:
        first, *middle, end = (c for c in choices if c["index"] == expected["index"])
        assert first["delta"] == {"role": "assistant", "content": None}
        assert (end["delta"], end["finish_reason"]) == ({}, expected["finish_reason"])
        parts = [part for c in middle for part in c["delta"].get("tool_calls", [])]
        for number, call in enumerate(expected["message"]["tool_calls"]):
            begin, *rest = (part for part in parts if part["index"] == number)
            assert begin == {"index": number, **call, "function": {"name": "room", "arguments": ""}}
            assert all(set(part) == {"index", "function"} for part in rest)
            assert all(set(part["function"]) == {"arguments"} for part in rest)
            assert "".join(part["function"]["arguments"] for part in rest) == call["function"]["arguments"]
            if expected["finish_reason"] == "tool_calls":
                check_call(call)


def test_what_comes_of_calls_goes_back_to_the_model(caller: Client) -> None:
    call = {"id": "x1", "type": "function", "function": {"name": "room", "arguments": '{"n": 3}'}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x1", "content": [{"type": "text", "text": "open"}]},
    ]
    prompt = caller.ask("/apply-template", {"messages": messages, "tools": [ROOM]}).json["prompt"]
    assert '<tools>{"type": "function"' in prompt
    assert '<tool_call>\n{"name": "room", "arguments": {"n": 3}}\n</tool_call>' in prompt
    assert "<|im_start|>tool\nopen<|im_end|>" in prompt
    body = {"messages": messages, "tools": [ROOM], "tool_choice": "required", "seed": 1, "max_tokens": 300}
    calls = caller.ask(PATH, {**body, "parallel_tool_calls": False}).choice["message"]["tool_calls"]
    check_call(calls[0])


def test_no_call_without_tools_or_where_none_is_wanted(caller: Client) -> None:
    for more in ({}, {"tools": []}, {"tools": [ROOM], "tool_choice": "none"}):
        message = caller.ask(PATH, {"messages": ASK, "seed": 1, "max_tokens": 20, **more}).choice["message"]
        assert "tool_calls" not in message and isinstance(message["content"], str)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice: expected tools"),
        ({"tools": [ROOM], "tool_choice": "other"}, "tool_choice: "),
        ({"tools": [ROOM], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice: "),
        ({"tools": [{"type": "web_search"}]}, "tools[0]: "),
        ({"tools": [ROOM, ROOM]}, "tools[1]: expected a name of its own"),
        ({"tools": ["room"]}, "tools[0]: expected a valid dictionary"),
        ({"tools": [ROOM], "regex": "a"}, ""),
        ({"tools": [ROOM], "grammar": 'root ::= "a"'}, ""),
        ({"tools": [ROOM], "reasoning_format": "none"}, 'reasoning_format: "none" cannot be combined'),
        ({"functions": [ROOM]}, "functions: expected [], which is all that is supported"),
    ],
)
def test_tools_that_are_refused(caller: Client, body: dict[str, Any], message: str) -> None:
    answer = caller.ask(PATH, {"messages": ASK, **body}, status=400)
    assert answer.error["message"].startswith(message), answer.error


def test_a_template_without_tools(client: Client) -> None:
    assert client.ask(PATH, {"messages": ASK, "tools": [ROOM]}).refusal("param") == (400, "tools")


def test_a_message_of_its_deltas() -> None:
    ids = CallIds(lambda: ("stem", ()))
    found = [
        delta_of(event, ids)
        for event in (
            ReasoningPart("so"),
            TextPart("a"),
            CallStart(0, "f"),
            ArgumentsPart(0, '{"x"'),
            ArgumentsPart(0, ": 1}"),
            CallEnd(0, ToolCall("f", {"x": 1})),
            CallFailed(None, "<tool_call>{", "cut"),
            CallStart(1, "g", "own"),
            CallFailed(1, "...", "cut"),
        )
    ]
    assert whole_message(found) == {
        "role": "assistant",
        "content": "a<tool_call>{",
        "refusal": None,
        "reasoning_content": "so",
        "reasoning": "so",
        "tool_calls": [
            {
                "id": call_id(0, "stem"),
                "type": "function",
                "function": {"name": "f", "arguments": '{"x": 1}'},
            },
            {"id": "own", "type": "function", "function": {"name": "g", "arguments": ""}},
        ],
    }


def test_times_and_numbers_of_tokens(client: Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, "ignore_eos": True}
    whole = client.ask(PATH, body).json
    n_prompt = whole["usage"]["prompt_tokens"]
    times = whole["timings"]
    assert (times["prompt_n"] + times["cache_n"], times["predicted_n"]) == (n_prompt, 5)
    for path in (PATH, "/chat/completions"):
        assert client.ask(f"{path}/input_tokens", {"messages": MESSAGES}).json["input_tokens"] == n_prompt
    assert "timings" not in client.ask(PATH, {**body, "n": 2}).json
    for asked, expected in (
        ({}, [False, True]),
        ({"timings_per_token": True}, [True, True]),
        ({"stream_options": {"include_usage": True}}, [False, False, True]),
    ):
        first, *events, done = client.ask(PATH, {**body, "stream": True, **asked}).events
        assert done == "[DONE]" and "timings" not in first
        assert ["timings" in event for event in (events[0], *events[-len(expected) + 1 :])] == expected
        assert [event["timings"]["predicted_n"] for event in events if "timings" in event][-1] == 5


def test_numbers_of_tokens_that_do_not_fit(client: Client) -> None:
    messages = [{"role": "user", "content": "hello " * 500}]
    assert client.ask(f"{PATH}/input_tokens", {"messages": messages}).json["input_tokens"] > 256
    assert client.ask(f"{PATH}/input_tokens", {"messages": []}).status == 400


def begun(answer: str, **more: Any) -> dict[str, Any]:
    """A body whose last message is the beginning of an answer."""
    last = {"role": "assistant", "content": answer, **more.pop("last", {})}
    return {"messages": [*MESSAGES, last], "continue_final_message": True, "seed": 2, "max_tokens": 9, **more}


def test_an_answer_goes_on_from_where_it_was_stopped(client: Client, alone: InferenceEngine) -> None:
    whole = alone.stream_chat(MESSAGES, seed=2, max_tokens=4, temperature=0).result().text
    for more in ({}, {"add_generation_prompt": False}):
        prompt = client.ask("/apply-template", begun(whole, **more) | {"seed": None, "max_tokens": None}).json
        assert prompt["prompt"].endswith(f"<|im_start|>assistant\n{whole}")
    rest = client.ask(PATH, begun(whole, temperature=0)).choice["message"]["content"]
    tokens = alone.tokenizer.encode_rendered(prompt["prompt"])
    assert rest == alone.stream(tokens, temperature=0, max_tokens=9).result().text
    events = client.ask(PATH, begun(whole, temperature=0, stream=True)).events
    assert "".join(c["delta"].get("content") or "" for c in chunks_of(events)) == rest


def test_what_no_answer_goes_on_from(client: Client) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for body, named in (
        ({**begun("a"), "messages": MESSAGES}, "messages[1]: expected a text of the assistant"),
        (begun(""), "messages[2]: expected a text"),
        (begun("a", last={"tool_calls": [call]}), "messages[2]: expected a text"),
        (begun("a", last={"content": ["a"]}), "messages[2]: expected a text"),
        (
            begun("a", add_generation_prompt=True),
            "add_generation_prompt: expected false beside continue_final_message, got True",
        ),
        (begun("a", regex="b+"), "continue_final_message: cannot be combined with a grammar"),
    ):
        answer = client.ask(PATH, body)
        assert answer.status == 400 and answer.error["message"].startswith(named), answer.text


def test_a_server_that_takes_last_messages_for_beginnings(client: Client, model: Path) -> None:
    """As llama-server does. What a body says comes first, and two such messages are an error."""
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "fox"}]
    bodies = [begun("A fox"), begun("A fox", last={"content": parts}), {"messages": MESSAGES}]
    for body in bodies:
        body |= {"seed": None, "max_tokens": None}
    tokenizer = client.hosted.ready().tokenizer
    stated = [client.ask("/apply-template", body).json["prompt"] for body in bodies]
    assert stated[1].endswith("assistant\nA\nfox")
    with serving(model, prefill_assistant=True) as other:
        for body, prompt in zip(bodies, stated):
            silent = {key: value for key, value in body.items() if key != "continue_final_message"}
            found = other.ask("/apply-template", silent)
            assert found.json["prompt"] == prompt
            counted = other.ask("/v1/chat/completions/input_tokens", silent)
            assert counted.json["input_tokens"] == len(tokenizer.encode_rendered(prompt))
        whole = bodies[0] | {"continue_final_message": False}
        plain = client.ask("/apply-template", whole).json["prompt"]
        assert other.ask("/apply-template", whole).json["prompt"] == plain != stated[0]
        twice = [*bodies[0]["messages"], {"role": "assistant", "content": "b"}]
        answer = other.ask(PATH, {"messages": twice})
        assert answer.status == 400 and "at most one message of the assistant" in answer.error["message"]
        answer = other.ask(PATH, {"messages": bodies[0]["messages"], "regex": "b+"})
        assert answer.status == 400 and "cannot be combined with a grammar" in answer.error["message"]


def test_an_answer_behind_reasoning_goes_on(reasoner: Client) -> None:
    body = begun("hello", last={"reasoning_content": " I see.\n"}, seed=None, max_tokens=None)
    prompt = reasoner.ask("/apply-template", body).json["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n<think>\nI see.\n</think>\n\nhello")
    message = reasoner.ask(PATH, body | {"max_tokens": 5}).choice["message"]
    assert message["content"] and "reasoning" not in message
    answer = reasoner.ask(PATH, begun("hello"))
    assert answer.status == 400 and "opens reasoning" in answer.error["message"]


def test_what_a_request_came_to(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "A fox"}],
        "max_tokens": 4,
        "seed": 3,
        "temperature": 0.5,
    }
    prompt = client.ask("/apply-template", {"messages": body["messages"]}).json["prompt"]
    plain = client.ask(PATH, body).json
    assert "__verbose" not in plain
    found = client.ask(PATH, {**body, "verbose": True}).json
    told = found.pop("__verbose")
    assert found["choices"] == plain["choices"]
    assert told["prompt"].endswith(prompt)
    assert told["content"] == found["choices"][0]["message"]["content"] and len(told["tokens"]) == 4
    settings = told["generation_settings"]
    assert (settings["seed"], settings["temperature"], settings["max_tokens"]) == (3, 0.5, 4)
    *others, last, done = client.ask(PATH, {**body, "verbose": True, "stream": True}).events
    assert done == "[DONE]" and not any("__verbose" in event for event in others)
    same = {name: value for name, value in told.items() if name != "timings"}
    assert {name: last["__verbose"][name] for name in same} == same


def test_variables_of_the_server(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    text = "{{ thinks }} {{ place }}{% for m in messages %} {{ m.content }}{% endfor %}"
    template.write_text(text, encoding="utf-8")
    engine = InferenceEngine.from_gguf(model, num_threads=1, chat_template=template)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    with serving(engine, chat_template_kwargs='{"thinks": false, "place": "here"}') as client:
        for own, wanted in (({}, "False here a"), ({"place": "there"}, "False there a")):
            asked = {**body, "chat_template_kwargs": own}
            templated = {"messages": body["messages"], "chat_template_kwargs": own}
            assert client.ask("/apply-template", templated).json["prompt"] == wanted
            found = client.ask(PATH, {**asked, "verbose": True}).json
            assert found["__verbose"]["prompt"].endswith(wanted)
    for wrong in ("[]", "{", '{"messages": []}', "1"):
        with pytest.raises(ConfigError, match=r"^chat_template_kwargs: expected a JSON"):
            ServerConfig(chat_template_kwargs=wrong)


def test_a_message_longer_than_the_context_is_refused_before_it_is_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from oxillama import InferenceEngine, demo
    from oxillama.apps.server.chats import Chat
    from oxillama.apps.server.errors import ApiError

    def rendered(*_: object) -> str:
        raise AssertionError("rendered")

    monkeypatch.setattr("oxillama.text.chat.prompt.fitted_text", rendered)
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        for content in ("fox " * 100_000, [{"type": "text", "text": "fox " * 100_000}]):
            long, short = {"role": "user", "content": content}, {"role": "user", "content": "A Fox"}
            with pytest.raises(ApiError, match="for the context of 512, got") as found:
                Chat([short, long]).tokens(engine)
            assert found.value.code == "context_length_exceeded"
            for messages in ([long, short], [{"role": "user", "content": " " * 400_000 + "A Fox"}]):
                with pytest.raises(AssertionError, match="rendered"):
                    Chat(messages).tokens(engine)
