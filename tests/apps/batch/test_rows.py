"""What a row may be, and what its answer is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import EngineClosed, EngineConfig, InferenceEngine, RequestFailed
from oxillama.apps.batch.engines import for_jobs
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.rows import Rows, has_failed
from tests.support.tiny_file import write_tiny_model
from tests.support.tool_models import AS_IT_IS, tool_model

PROMPT = "once upon a time"
MESSAGES = [{"role": "user", "content": "hello world"}]
SETTINGS = Settings(model_name="tiny")


def answer(engine: InferenceEngine, row: Any, settings: Settings = SETTINGS, number: int = 3) -> Any:
    line = row if isinstance(row, bytes) else json.dumps(row).encode()
    return json.loads(asyncio.run(Rows(engine, settings).line(number, line)))


def api_row(url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": "mine", "method": "POST", "url": url, "body": body}


def test_a_prompt(engine: InferenceEngine) -> None:
    found = answer(engine, {"prompt": PROMPT, "max_tokens": 8, "temperature": 0.5, "id": [1], "seed": None})
    text = engine.generate(PROMPT, max_tokens=8, temperature=0.5, seed=0)
    done = engine.stream(PROMPT, max_tokens=8, temperature=0.5, seed=0).result()
    usage = {"prompt_tokens": len(engine.tokenizer.encode(PROMPT)), "completion_tokens": 8}
    assert found == {
        "id": [1],
        "text": text,
        "tokens": done.tokens,
        "finish_reason": "length",
        "usage": usage,
        "error": None,
    }


def test_token_ids_as_the_prompt(engine: InferenceEngine) -> None:
    found = answer(engine, {"prompt": [5, 6, 7], "max_tokens": 4})
    assert found["text"] == engine.generate([5, 6, 7], max_tokens=4, seed=0)


def test_messages(engine: InferenceEngine) -> None:
    found = answer(engine, {"messages": MESSAGES, "max_tokens": 8, "seed": 4, "custom_id": "x"})
    assert found["text"] == engine.chat(MESSAGES, max_tokens=8, seed=4)
    assert found["custom_id"] == "x"


def test_variables_of_the_template(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", chat_template="{{ messages[0].content }} {{ mood }}")
    row = {"messages": MESSAGES, "max_tokens": 6, "chat_template_kwargs": {"mood": "there"}}
    with InferenceEngine(for_jobs(EngineConfig(model_path=model))) as one:
        expected = one.chat(MESSAGES, max_tokens=6, template={"mood": "there"})
        assert (
            answer(one, row)["text"] == expected != answer(one, {**row, "chat_template_kwargs": None})["text"]
        )


def test_an_embedding(engine: InferenceEngine) -> None:
    found = answer(engine, {"input": PROMPT, "pooling": "mean", "metadata": {"a": 1}})
    assert np.array_equal(
        np.float32(found["embedding"]), engine.embed(PROMPT, pooling="mean", normalize=True)
    )
    assert found["usage"] == {"prompt_tokens": len(engine.tokenizer.encode(PROMPT)), "completion_tokens": 0}
    assert found["metadata"] == {"a": 1} and found["error"] is None


def test_log_probabilities(engine: InferenceEngine) -> None:
    found = answer(engine, {"prompt": PROMPT, "max_tokens": 4, "top_logprobs": 2})
    done = engine.stream(PROMPT, max_tokens=4, top_logprobs=2, seed=0).result()
    assert done.logprobs is not None
    assert found["logprobs"] == [each.raw.logprob for each in done.logprobs]
    tops = [[(one["token"], one["logprob"]) for one in top] for top in found["top_logprobs"]]
    assert tops == [list(each.raw.top) for each in done.logprobs]
    assert "top_logprobs" not in answer(engine, {"prompt": PROMPT, "max_tokens": 4, "logprobs": True})


def test_a_schema_gives_its_value(engine: InferenceEngine) -> None:
    row = {"prompt": PROMPT, "json_schema": {"enum": [{"a": [1, None]}]}}
    found = answer(engine, row)
    assert found["parsed"] == {"a": [1, None]} == json.loads(found["text"])
    assert answer(engine, {**row, "max_tokens": 2})["parsed"] is None
    assert "parsed" not in answer(engine, {"prompt": PROMPT, "max_tokens": 2})


def test_a_call_of_a_tool(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"up": {"const": True}}, "required": ["up"]}
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    row = {"messages": MESSAGES, "tools": tools, "tool_choice": "required", "max_tokens": 300, "seed": 1}
    thought, rest = AS_IT_IS.index("{% if m.reasoning"), AS_IT_IS.index("{{ m.content }}")
    model = tool_model(
        tmp_path / "m.gguf", AS_IT_IS[:thought] + AS_IT_IS[rest:]
    )  # the model would not end its reasoning
    with InferenceEngine(for_jobs(EngineConfig(model_path=model))) as engine:
        found = answer(engine, row)
        assert found["finish_reason"] == "tool_calls", found
        assert found["tool_calls"][0]["function"]["name"] == "look"
        assert "error" in found and "tool_calls" not in answer(
            engine, {"messages": MESSAGES, "max_tokens": 2}
        )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"", "line: expected JSON"),
        (b"\n", "line: expected JSON"),
        (b'{"prompt": "a"', "line: expected JSON"),
        (b'{"prompt": NaN}', "line: expected JSON, got NaN, which JSON does not have"),
        (b"\xff{}", "line: expected JSON"),
        (b"[" * 100_000, "line: expected JSON"),
        (b"[1]", "line: expected an object, got list"),
        ({}, "row: expected one of prompt, messages, input, questions, got none"),
        (
            {"prompt": "a", "input": "b"},
            "row: expected one of prompt, messages, input, questions, got prompt and input",
        ),
        ({"prompt": "a", "temprature": 1}, "temprature: is no option; did you mean temperature?"),
        ({"prompt": "a", "label": 1}, "label: is no option"),
        ({"prompt": "a", "temperature": "hot"}, "temperature: "),
        ({"prompt": "a", "logprobs": 3}, "logprobs: "),
        ({"prompt": "a", "adapters": "x"}, "adapters: is no option"),
        (
            {"prompt": "a", "chat_template_kwargs": {}},
            "chat_template_kwargs: expected an object beside messages",
        ),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a " * 5000}, "prompt"),
        ({"prompt": "a", "regex": "("}, "regex"),
        ({"messages": "hello"}, "messages: expected a list of objects, got 'hello'"),
        ({"input": "a", "temperature": 1}, "temperature: is no option"),
        ({"input": "a", "pooling": "best"}, "pooling: "),
    ],
)
def test_what_is_wrong_with_a_row_is_in_its_answer(engine: InferenceEngine, row: Any, said: str) -> None:
    found = answer(engine, row)
    assert found["error"]["message"].startswith(said), found
    assert found["error"]["type"] == "invalid_request_error"
    assert found["text"] is found["tokens"] is found["usage"] is None
    assert has_failed(found)


def test_an_error_keeps_the_id(engine: InferenceEngine) -> None:
    settings = Settings(model_name="tiny", keep=("label",))
    found = answer(engine, {"prompt": "a", "top_x": 1, "id": 7, "label": "b"}, settings)
    assert (found["id"], found["label"], found["error"]["param"]) == (7, "b", "top_x")
    assert answer(engine, {"prompt": "a", "label": "b", "max_tokens": 1}, settings)["label"] == "b"


def test_most_tokens_of_rows_that_do_not_say(engine: InferenceEngine) -> None:
    few = Settings(model_name="tiny", max_tokens=3)
    assert len(answer(engine, {"prompt": PROMPT}, few)["tokens"]) == 3
    assert len(answer(engine, {"prompt": PROMPT, "max_tokens": 4}, few)["tokens"]) == 4
    for name, most in (("max_tokens", None), ("max_tokens", 5), ("max_completion_tokens", 6)):
        body = {"messages": MESSAGES} | {name: most}
        found = answer(engine, api_row("/v1/chat/completions", **body), few)["response"]["body"]
        assert found["usage"]["completion_tokens"] == (most or 3)
    long = answer(engine, {"prompt": "a " * 1000}, Settings(model_name="tiny", max_tokens=-1))
    assert sum(long["usage"].values()) == engine.context_size


def test_rows_of_openais_format(engine: InferenceEngine) -> None:
    found = answer(engine, api_row("/v1/chat/completions", model="tiny", messages=MESSAGES, max_tokens=8))
    assert (found["id"], found["custom_id"], found["error"]) == ("batch_req_3", "mine", None)
    response = found["response"]
    assert (response["status_code"], response["request_id"]) == (200, "req_3")
    body = response["body"]
    assert (body["id"], body["created"], body["model"]) == ("chatcmpl-3", 0, "tiny")
    assert body["choices"][0]["message"]["content"] == engine.chat(MESSAGES, max_tokens=8, seed=0)
    assert body["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert not has_failed(found)
    text = answer(engine, api_row("/v1/completions", prompt=PROMPT))["response"]["body"]["choices"][0]["text"]
    assert text == engine.generate(PROMPT, max_tokens=16, seed=0)
    vector = answer(engine, api_row("/v1/embeddings", input=PROMPT))["response"]["body"]["data"][0][
        "embedding"
    ]
    assert np.array_equal(np.float32(vector), engine.embed(PROMPT, normalize=True))


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"messages": MESSAGES, "temprature": 1}, 400, "temprature: is no option"),
        ({"messages": MESSAGES, "model": "gpt"}, 404, "model: expected tiny, got gpt"),
        ({"prompt": "a"}, 400, "messages: expected a value, got none"),
    ],
)
def test_bodies_that_the_server_refuses(engine: InferenceEngine, body: Any, status: int, said: str) -> None:
    found = answer(engine, api_row("/v1/chat/completions", **body))
    assert found["response"]["status_code"] == status and found["error"] is None
    assert found["response"]["body"]["error"]["message"].startswith(said)
    assert has_failed(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"custom_id": None}, "custom_id: expected a text, got None"),
        ({"method": "GET"}, "method: expected \"POST\", got 'GET'"),
        ({"url": "/v1/files"}, "url: expected one of /v1/chat/completions, /v1/completions, /v1/embeddings"),
        ({"body": "x"}, "body: expected an object, got 'x'"),
        (
            {"body": {"messages": MESSAGES, "stream": True}},
            "body.stream: expected false in a batch, got True",
        ),
        ({"priority": 1}, "priority: is no field of a batch's rows"),
    ],
)
def test_rows_that_are_not_of_the_format(engine: InferenceEngine, change: Any, said: str) -> None:
    found = answer(engine, {**api_row("/v1/chat/completions", messages=MESSAGES), **change})
    assert found["response"] is None
    assert found["error"]["message"].startswith(said)
    assert has_failed(found)


def test_an_answer_does_not_depend_on_what_ran_before(engine: InferenceEngine) -> None:
    rows = [
        api_row("/v1/chat/completions", messages=MESSAGES, max_tokens=8, n=2),
        api_row("/v1/completions", prompt=PROMPT, max_tokens=8, logprobs=2, echo=True),
        {"prompt": PROMPT, "max_tokens": 8, "logprobs": True},
    ]
    lines = [json.dumps(row).encode() for row in rows]

    async def together() -> list[bytes]:
        found = Rows(engine, SETTINGS)
        return list(await asyncio.gather(*(found.line(i % 3, lines[i % 3]) for i in range(12))))

    assert (
        asyncio.run(together())
        == [asyncio.run(Rows(engine, SETTINGS).line(i, lines[i])) for i in range(3)] * 4
    )


def test_a_failure_of_the_engine_is_no_answer(tmp_path: Path) -> None:
    engine = InferenceEngine(write_tiny_model(tmp_path / "m.gguf"))
    engine.close()
    with pytest.raises(EngineClosed):
        answer(engine, {"prompt": "a"})
    with pytest.raises(RequestFailed, match="row 3: "):
        answer(engine, api_row("/v1/completions", prompt="a"))


def test_no_memory_for_a_row_is_its_error(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", ends=False)
    config = for_jobs(EngineConfig(model_path=model, kv_memory_limit=1 << 16))
    with InferenceEngine(config) as engine:
        long = {"prompt": "a " * 1000, "max_tokens": 4}
        assert answer(engine, long)["error"]["code"] == "out_of_memory"
        assert answer(engine, api_row("/v1/completions", **long))["response"]["status_code"] == 503
        assert answer(engine, {"prompt": "a", "max_tokens": 4})["error"] is None


def test_a_lone_surrogate_is_written_as_it_was_read(engine: InferenceEngine) -> None:
    assert answer(engine, b'{"prompt": "a", "max_tokens": 1, "id": "\\ud800"}')["id"] == "\ud800"
