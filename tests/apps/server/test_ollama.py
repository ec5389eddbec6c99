"""Ollama's interface: its fields, shapes and times, over the library's texts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from oxillama import InferenceEngine, demo
from oxillama.apps.server.chats import Chat
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.ollama.about import listed
from oxillama.apps.server.ollama.asking import conversation, idle_seconds
from oxillama.apps.server.ollama.bodies import Message
from tests.support.fitted import chat_tokens
from tests.support.server import Client, answer_of, serving, serving_models
from tests.support.tiny_file import CHATML, FIM, THINKING, write_tiny_model
from tests.support.tool_models import ROOM as FUNCTION
from tests.support.waiting import stopped, until

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello world"}]
SEEDED = {"seed": 4, "num_predict": 8}
SWITCHED = "{% if enable_thinking is not defined or enable_thinking %}T{% endif %}" + THINKING
ROOM: dict[str, Any] = {"type": "function", "function": FUNCTION}


def ask(client: Client, path: str, **body: Any) -> Any:
    return client.ask(path, {"stream": False, **body}, status=200).json


def refusal(client: Client, path: str, **body: Any) -> tuple[int, str]:
    answer = client.ask(path, {"stream": False, **body})
    assert answer.json.keys() == {"error"}
    return answer.status, answer.json["error"]


# --- chats --------------------------------------------------------------------------------------------


def test_a_chat(client: Client, alone: InferenceEngine) -> None:
    done = alone.stream_chat(MESSAGES, seed=4, max_tokens=8).result()
    for name in ("tiny", "tiny:latest"):
        found = ask(client, "/api/chat", model=name, messages=MESSAGES, options=SEEDED)
        assert found["message"] == {"role": "assistant", "content": done.text}
        assert (found["model"], found["done"], found["done_reason"]) == (name, True, "length")
        counts = (found["prompt_eval_count"], found["eval_count"])
        assert counts == (done.usage.prompt_tokens, 8)
        for field in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
            assert type(found[field]) is int and found[field] >= 0
        assert found["total_duration"] > found["eval_duration"] > 1000  # nanoseconds
        assert found["created_at"].endswith("Z")


def test_a_streamed_chat(client: Client) -> None:
    whole = ask(client, "/api/chat", messages=MESSAGES, options=SEEDED)
    answer = client.ask("/api/chat", {"model": "tiny", "messages": MESSAGES, "options": SEEDED})
    assert answer.headers["content-type"] == "application/x-ndjson"
    *parts, last = answer.lines
    assert [part["done"] for part in parts] == [False] * len(parts)
    assert "".join(part["message"]["content"] for part in parts) == whole["message"]["content"]
    assert all(part["message"]["content"] for part in parts)
    assert last["message"] == {"role": "assistant", "content": ""}
    assert last.keys() == whole.keys() and last["done_reason"] == "length"


def test_formats(client: Client, alone: InferenceEngine) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    found = ask(client, "/api/chat", messages=MESSAGES, format=schema, options={"seed": 1})
    jsonschema.validate(json.loads(found["message"]["content"]), schema)
    expected = alone.generate("hello", json_schema={"type": "object"}, seed=1, max_tokens=9)
    options = {"seed": 1, "num_predict": 9}
    found = ask(client, "/api/generate", prompt="hello", raw=True, format="json", options=options)
    assert found["response"] == expected and expected.lstrip()[0] == "{"


def test_options(client: Client, alone: InferenceEngine) -> None:
    options = {"temperature": 0.7, "top_k": 5, "repeat_penalty": 1.2, "repeat_last_n": 32, "min_p": 0.01}
    options |= {"stop": ["zz"], "num_predict": 9, "seed": 7, "num_thread": 4, "num_gpu": 99, "num_ctx": 99}
    found = ask(client, "/api/generate", prompt="hello", raw=True, options={**options, "receipt": True})
    expected = alone.generate(
        "hello", temperature=0.7, top_k=5, repetition_penalty=1.2, repetition_window=32, min_p=0.01,
        stop=["zz"], max_tokens=9, seed=7,
    )  # fmt: skip
    assert found["response"] == expected
    assert alone.verify(found["receipt"])


def test_the_size_of_the_context(client: Client) -> None:
    body: dict[str, Any] = {"prompt": "hello", "raw": True}
    found = ask(client, "/api/generate", **body, options={"num_ctx": 20, "ignore_eos": True})
    assert found["prompt_eval_count"] + found["eval_count"] == 20
    for limit in ({"num_predict": -1}, {"num_predict": -2}, {}):
        found = ask(client, "/api/generate", **body, options={**limit, "ignore_eos": True})
        assert found["prompt_eval_count"] + found["eval_count"] == 256
    status, error = refusal(client, "/api/generate", prompt="hello " * 30, raw=True, options={"num_ctx": 20})
    assert status == 400 and "for the context of 20" in error and "context_length_exceeded" in error
    status, error = refusal(client, "/api/generate", **body, options={"num_ctx": 257})
    wanted = "options.num_ctx: expected an integer from 1 to 256, the context that the model was loaded with"
    assert (status, error) == (400, f"{wanted}, got 257")


def test_logprobs(client: Client) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "options": SEEDED, "logprobs": True, "top_logprobs": 2}
    whole = ask(client, "/api/chat", **body)
    assert len(whole["logprobs"]) == 8
    first = whole["logprobs"][0]
    assert first["logprob"] <= 0 and len(first["top_logprobs"]) == 2 and bytes(first["bytes"])
    parts = client.ask("/api/chat", body).lines
    assert [entry for part in parts for entry in part.get("logprobs", [])] == whole["logprobs"]


def test_thinking(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", chat_template=SWITCHED, ends=False)
    engine = InferenceEngine.from_gguf(path, num_threads=1)
    with serving(engine) as client:
        body: dict[str, Any] = {"messages": MESSAGES, "options": SEEDED}
        for think in (None, True, False):
            variables = {} if think is None else {"enable_thinking": think}
            tokens = chat_tokens(engine.tokenizer, MESSAGES, **variables)
            text = engine.generate(tokens, seed=4, max_tokens=8)
            found = ask(client, "/api/chat", **body, think=think)
            assert found["message"] == {"role": "assistant", "content": "", "thinking": text.strip()}
            assert found["prompt_eval_count"] == len(tokens)
        found = client.ask("/api/generate", {"prompt": "hello", "options": SEEDED, "think": True}).lines
        assert all(part["response"] == "" for part in found)
        assert "".join(part.get("thinking", "") for part in found).strip()
        status, error = refusal(client, "/api/chat", **body, think="high")
        assert (status, error.partition(",")[0]) == (400, "think: expected true or false")
        assert refusal(client, "/api/chat", **body, think="much")[0] == 400


def test_thinking_by_the_template_alone(tmp_path: Path) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "options": SEEDED}
    for template, right, wrong in (
        (THINKING, (None, True), ("low",)),
        ("{{ reasoning_effort }}" + THINKING, ("low", "high", True), ()),
    ):
        with serving(write_tiny_model(tmp_path / "m.gguf", chat_template=template, ends=False)) as client:
            counts = {think: ask(client, "/api/chat", **body, think=think) for think in right}
            assert all(found["message"]["thinking"] for found in counts.values())
            off = ask(client, "/api/chat", **body, think=False)["message"]  # reasoning_budget 0
            assert off["content"] and "thinking" not in off
            for think in wrong:
                assert refusal(client, "/api/chat", **body, think=think)[0] == 400
            assert "thinking" in ask_show(client, "story")["capabilities"]


def test_a_model_that_does_not_think(client: Client) -> None:
    ask(client, "/api/chat", messages=MESSAGES, options=SEEDED, think=False)
    status, error = refusal(client, "/api/chat", messages=MESSAGES, think=True)
    assert (status, error.partition(",")[0]) == (400, "think: expected a model that thinks")


def test_tools(caller: Client) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "tools": [ROOM], "options": {"seed": 1}}
    found = ask(caller, "/api/chat", **body, tool_choice="required")
    assert found["message"]["content"] == ""
    calls = found["message"]["tool_calls"]
    assert calls
    for i, call in enumerate(calls):
        assert (call["function"]["index"], call["function"]["name"]) == (i, "room")
        jsonschema.validate(call["function"]["arguments"], ROOM["function"]["parameters"])
    lines = caller.ask("/api/chat", {**body, "tool_choice": "required"}).lines
    assert [call for part in lines for call in part["message"].get("tool_calls", [])] == calls
    assert lines[-1]["done_reason"] == found["done_reason"] == "stop"
    told = [*MESSAGES, {"role": "assistant", "tool_calls": calls[:1]}]
    told.append({"role": "tool", "tool_name": "room", "content": "warm"})
    again = ask(caller, "/api/chat", **{**body, "messages": told, "options": SEEDED})
    assert again["prompt_eval_count"] > found["prompt_eval_count"]


def test_results_belong_to_calls() -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    other = {"function": {"name": "g", "arguments": {}}, "id": "own"}
    messages = [
        {"role": "assistant", "tool_calls": [call, other, call], "thinking": "hm"},
        *({"role": "tool", "tool_name": name, "content": name} for name in ("g", "f", "f", "f")),
    ]
    first, *results = conversation([Message(**message) for message in messages])  # type: ignore[arg-type]
    ids = [each["id"] for each in first["tool_calls"]]
    assert (ids[1], len(set(ids)), first["reasoning_content"]) == ("own", 3, "hm")
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    assert [each.get("tool_call_id") for each in results] == [ids[1], ids[0], ids[2], None]


def named(name: str, id: str | None = None) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {}}, "id": id}


@pytest.mark.parametrize(
    ("calls", "results", "wanted"),
    [
        # by their ids, in another order
        ([named("f", "a"), named("f", "b")], [("b", None), ("a", None)], [("b", "f"), ("a", "f")]),
        # by their ids, whatever the names say
        ([named("f", "a"), named("g", "b")], [("b", "f"), ("a", "g")], [("b", "g"), ("a", "f")]),
        # some clients send the ids of results alone
        ([named("f"), named("g")], [("x", None), ("y", None)], [("call00000", "f"), ("call00001", "g")]),
        ([named("f"), named("g")], [("x", "g"), ("y", "f")], [("call00001", "g"), ("call00000", "f")]),
        # the call of an unknown id was left out: it is none of the calls with other ids
        ([named("f", "a")], [("x", None), ("a", None)], [("x", None), ("a", "f")]),
        ([named("f", "a"), named("g")], [("x", None), ("y", "f")], [("call00001", "g"), ("y", "f")]),
    ],
)
def test_results_with_ids(calls: list[Any], results: list[Any], wanted: list[Any]) -> None:
    messages: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": calls}]
    messages += [{"role": "tool", "tool_call_id": id, "tool_name": name} for id, name in results]
    _, *found = conversation([Message(**message) for message in messages])
    assert [(each.get("tool_call_id"), each.get("name")) for each in found] == wanted


# --- texts --------------------------------------------------------------------------------------------


def test_generate(client: Client, alone: InferenceEngine) -> None:
    expected = alone.chat(MESSAGES, seed=4, max_tokens=8)
    body: dict[str, Any] = {"prompt": "hello world", "system": "Be brief.", "options": SEEDED}
    found = ask(client, "/api/generate", **body, template=CHATML)
    assert found["response"] == expected
    assert found["context"][: found["prompt_eval_count"]] == chat_tokens(alone.tokenizer, MESSAGES)
    assert len(found["context"]) == found["prompt_eval_count"] + 8
    lines = client.ask("/api/generate", body).lines
    assert "".join(part["response"] for part in lines) == expected
    assert lines[-1]["context"] == found["context"]
    raw = ask(client, "/api/generate", prompt="hello", raw=True, options=SEEDED)
    assert raw["response"] == alone.generate("hello", seed=4, max_tokens=8)
    assert "context" not in raw


def test_a_context_goes_on(client: Client, alone: InferenceEngine) -> None:
    first = ask(client, "/api/generate", prompt="hello", options=SEEDED)["context"]
    found = ask(client, "/api/generate", prompt="world", context=first, options=SEEDED)
    opening = chat_tokens(alone.tokenizer, [{"role": "user", "content": "world"}])
    tokens = [*first, *opening[opening[0] == alone.tokenizer.bos_id :]]
    assert found["response"] == alone.generate(tokens, seed=4, max_tokens=8)
    assert refusal(client, "/api/generate", prompt="x", context=[10**6])[0] == 400


def test_a_suffix(tmp_path: Path) -> None:
    with serving(write_tiny_model(tmp_path / "coder.gguf", metadata=FIM), "coder") as client:
        found = ask(client, "/api/generate", prompt="hello wor", suffix=" there", options=SEEDED)
        other = {"prompt": "hello wor", "suffix": " there", "seed": 4, "max_tokens": 8}
        assert found["response"] == client.ask("/v1/completions", other).choice["text"]
        assert "insert" in ask_show(client, "coder")["capabilities"]


def test_a_model_without_a_template(tmp_path: Path) -> None:
    plain = demo.DRAFT.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_nothing_")
    (tmp_path / "draft.gguf").write_bytes(plain)
    engine = InferenceEngine.from_gguf(tmp_path / "draft.gguf", num_threads=1)
    with serving(engine, "draft") as client:
        expected = engine.generate("Once upon", seed=4, max_tokens=8)
        for body in ({}, {"template": "{{ .Prompt }}"}, {"raw": True}):
            found = ask(client, "/api/generate", prompt="Once upon", options=SEEDED, **body)
            assert found["response"] == expected
        assert "system: expected a model" in refusal(client, "/api/generate", prompt="x", system="y")[1]
        assert refusal(client, "/api/chat", messages=MESSAGES)[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/chat", {"messages": MESSAGES, "model": "other"}, 404, "model: expected tiny, got other"),
        ("/api/chat", {"messages": MESSAGES, "n": 2}, 400, "n: is no option"),
        ("/api/chat", {"messages": MESSAGES, "options": {"temprature": 1}}, 400, "temprature: is no option"),
        ("/api/chat", {"messages": MESSAGES, "options": {"temperature": -1}}, 400, "temperature: expected"),
        ("/api/chat", {"messages": MESSAGES, "format": "yaml"}, 400, "format: expected"),
        ("/api/chat", {"messages": MESSAGES, "keep_alive": "soon"}, 400, "keep_alive: expected"),
        ("/api/chat", {"messages": [{"role": "user", "images": ["aa"]}]}, 400, "messages[0].images"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "name": "y"}]}, 400, "messages[0].name"),
        ("/api/chat", {"messages": [{"role": "user", "tool_name": "y"}]}, 400, "messages[0].tool_name"),
        ("/api/chat", {"messages": MESSAGES, "top_logprobs": 2}, 400, "top_logprobs: expected logprobs"),
        ("/api/generate", {"prompt": "x", "images": ["aa"]}, 400, "images[0]: the model takes no pictures"),
        ("/api/generate", {"prompt": "x", "template": "y"}, 400, "template: expected that of the"),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, 400, "system: expected none beside"),
        ("/api/generate", {"prompt": "x", "raw": True, "context": [1]}, 400, "context: expected none beside"),
        ("/api/generate", {"prompt": "x", "raw": True, "suffix": "y"}, 400, "suffix: expected none beside"),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, 400, "suffix: expected a model with tokens"),
        ("/api/embed", {"input": "x", "options": {"temperature": 1}}, 400, "temperature: is no option"),
        ("/api/embed", {"input": "hello " * 300}, 400, "input: expected at most 256 tokens"),
        ("/api/embed", {"input": "x", "dimensions": 65}, 400, "dimensions: expected at most 64, got 65"),
        ("/api/show", {"model": "other"}, 404, "model: expected tiny, got other"),
        ("/api/pull", {"model": "other"}, 404, "model: expected tiny, got other"),
        ("/api/create", {"model": "other", "from": "tiny"}, 501, "/api/create: the models are those"),
        ("/api/copy", {"source": "tiny", "destination": "b"}, 501, "/api/copy: the models are those"),
        ("/api/push", {"model": "tiny"}, 501, "/api/push: the models are those"),
        ("/api/nothing", {}, 404, "POST /api/nothing: Not Found"),
    ],
)  # fmt: skip
def test_what_is_refused(client: Client, path: str, body: dict[str, Any], status: int, message: str) -> None:
    answer = client.ask(path, body)
    assert (answer.status, answer.json.keys()) == (status, {"error"})
    assert answer.json["error"].startswith(message), answer.text


# --- vectors ------------------------------------------------------------------------------------------


def test_vectors(client: Client, alone: InferenceEngine) -> None:
    texts = ["hello", "world"]
    found = client.ask("/api/embed", {"model": "tiny", "input": texts, "truncate": True}, status=200).json
    expected = alone.embed_batch(texts, normalize=True)
    assert np.array_equal(np.array(found["embeddings"], np.float32), expected)
    assert found["prompt_eval_count"] == sum(len(alone.tokenizer.encode(text)) for text in texts)
    assert found["total_duration"] >= found["load_duration"] >= 0
    (short,) = client.ask("/api/embed", {"input": "hello", "dimensions": 8}, status=200).json["embeddings"]
    assert len(short) == 8 and abs(float(np.linalg.norm(short)) - 1) < 1e-6
    assert client.ask("/api/embed", {"input": []}, status=200).json["embeddings"] == []
    one = client.ask("/api/embeddings", {"prompt": "hello"}, status=200).json["embedding"]
    assert np.array_equal(np.array(one, np.float32), alone.embed("hello"))
    assert client.ask("/api/embeddings", {}, status=200).json["embedding"] == []


def ask_show(client: Client, name: str, **more: Any) -> Any:
    return client.ask("/api/show", {"model": name, **more}, status=200).json


# --- the models ---------------------------------------------------------------------------------------


def test_what_is_known_of_models(client: Client, model: Path) -> None:
    (listed,) = client.ask("/api/tags").json["models"]
    assert (listed["name"], listed["model"]) == ("tiny:latest", "tiny:latest")
    assert listed["size"] == model.stat().st_size
    assert len(listed["digest"]) == 64
    details = listed["details"]
    assert (details["family"], details["format"], details["quantization_level"]) == ("llama", "gguf", "F32")
    assert details["parameter_size"].endswith("K")
    (running,) = client.ask("/api/ps").json["models"]
    assert (running["name"], running["context_length"], running["size_vram"]) == ("tiny:latest", 256, 0)
    assert running["expires_at"] == "9999-12-31T23:59:59Z"
    shown = ask_show(client, "tiny")
    assert (shown["template"], shown["capabilities"]) == (CHATML, ["completion"])
    info = shown["model_info"]
    assert (info["general.architecture"], info["llama.context_length"]) == ("llama", 256)
    assert info["tokenizer.ggml.tokens"] is None
    verbose = ask_show(client, "tiny", verbose=True)["model_info"]["tokenizer.ggml.tokens"]
    assert len(verbose) == client.hosted.ready().tokenizer.n_vocab
    assert client.ask("/api/version").json["version"].count(".") == 2
    assert ask(client, "/api/pull", model="tiny") == {"status": "success"}
    assert client.ask("/api/pull", {"model": "tiny"}).lines == [{"status": "success"}]
    assert client.ask("/", method="HEAD").status == 200
    answer = client.ask("/api/delete", {"model": "tiny"}, method="DELETE")
    assert answer.status == 501 and "/api/delete: the models are those" in answer.json["error"]


@pytest.mark.slow
def test_how_long_a_model_is_kept() -> None:
    def load() -> InferenceEngine:
        return InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)

    with serving_models(Hosted("draft", load=load, path=str(demo.DRAFT))) as client:
        hosted = client.hosted
        until(lambda: client.ask("/health").status == 200)
        body: dict[str, Any] = {"prompt": "Once upon", "options": {"num_predict": 1}}
        ask(client, "/api/generate", **body, keep_alive="5m")
        (running,) = client.ask("/api/ps").json["models"]
        assert running["expires_at"] < "9999"
        ask(client, "/api/generate", **body, keep_alive=-1)
        assert client.ask("/api/ps").json["models"][0]["expires_at"] == "9999-12-31T23:59:59Z"
        done = ask(client, "/api/generate", keep_alive=0)
        assert (done["response"], done["done"], done["done_reason"]) == ("", True, "unload")
        until(lambda: hosted.engine is None)
        assert client.ask("/api/ps").json["models"] == []
        assert client.ask("/api/tags").json["models"][0]["details"]["family"]
        assert ask_show(client, "draft")["details"]["format"] == "gguf"
        assert ask(client, "/api/chat", keep_alive="0s")["done_reason"] == "unload"
        assert hosted.engine is None  # a model is not loaded only to be unloaded
        assert client.ask("/api/generate", {}).lines[0]["done_reason"] == "load"
        assert hosted.engine is not None
        found = ask(client, "/api/generate", **body, keep_alive=0)
        assert found["done_reason"] == "length"
        until(lambda: hosted.engine is None)
        found = ask(client, "/api/generate", **body)
        assert found["total_duration"] > found["load_duration"] > 10**6  # it was loaded again


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((None, None), (0, 0), (-1, -1), (2.5, 2.5)),
        *(("10", 10), ("5m", 300), ("1h30m", 5400), ("-1s", -1), ("300ms", 0.3)),
    ],
)
def test_times(value: Any, seconds: float | None) -> None:
    assert idle_seconds(value) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("value", ["", "5 m", "m", "5x", "1h30", "nan", "1e99", 1e99, "inf"])
def test_times_that_are_none(value: Any) -> None:
    with pytest.raises(ApiError, match=r"^keep_alive: expected"):
        idle_seconds(value)


def test_a_model_without_a_file_has_no_size() -> None:
    found = listed(Hosted("gone", path="/nowhere/gone.gguf"))
    assert (found["size"], len(found["digest"]), found["details"]) == (0, 64, {})


def test_a_stream_of_lines_has_no_pings() -> None:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    with serving(engine, ping_seconds=0.001) as client:
        with stopped(engine):
            connection = client.begin("/api/generate", {"prompt": "Once", "options": {"num_predict": 3}})
            time.sleep(0.1)  # a hundred pings
        lines = answer_of(connection).lines
        assert len(lines) > 1 and all(isinstance(line, dict) for line in lines)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_calls_may_be_parallel_unless_a_client_forbids_them(
    client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    prepared = Chat.prepared

    def noted(chat: Chat, *args: Any, **more: Any) -> Any:
        seen.append(chat.parallel_tool_calls)
        return prepared(chat, *args, **more)

    monkeypatch.setattr(Chat, "prepared", noted)
    assert client.ask(path, {"messages": MESSAGES, "stream": False}).status == 200
    assert seen == [True]
