"""Ollama's own client against the server: chats, streams, schemas, tools, thinking, vectors, asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import ollama
import pytest
from ollama._utils import convert_function_to_tool
from pydantic import BaseModel

from tests.support.server import Client, bearer
from tests.support.waiting import until

MODEL, SERVER = {"ends": False}, {"api_keys": ("secret",)}
MESSAGES = [{"role": "user", "content": "hello world"}]
OPTIONS = {"seed": 4, "num_predict": 8}


@pytest.fixture
def client(server: Client) -> Iterator[ollama.Client]:
    with ollama.Client(server.server.url, headers=bearer("secret")) as found:
        yield found


def test_chats(client: ollama.Client, server: Client) -> None:
    expected = server.hosted.ready().chat(MESSAGES, seed=4, max_tokens=8)
    done = client.chat("tiny", MESSAGES, options=OPTIONS)
    assert (done.message.content, done.done_reason, done.eval_count) == (expected, "length", 8)
    parts = list(client.chat("tiny", MESSAGES, options=ollama.Options(seed=4, num_predict=8), stream=True))
    assert "".join(part.message.content or "" for part in parts) == expected
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_texts(client: ollama.Client, server: Client) -> None:
    engine = server.hosted.ready()
    raw = client.generate("tiny", "hello", raw=True, options=OPTIONS)
    assert raw.response == engine.generate("hello", seed=4, max_tokens=8)
    first = client.generate("tiny", "hello", options=OPTIONS)
    assert first.response == engine.chat([{"role": "user", "content": "hello"}], seed=4, max_tokens=8)
    again = client.generate("tiny", "more", context=first.context, options=OPTIONS, keep_alive="5m")
    assert (again.prompt_eval_count or 0) > len(first.context or ())
    parts = client.generate("tiny", "hello", options=OPTIONS, stream=True)
    assert "".join(part.response or "" for part in parts) == first.response


def test_a_schema(client: ollama.Client) -> None:
    class Friend(BaseModel, extra="forbid"):
        name: Literal["Mia", "Tom"]
        brave: bool

    done = client.chat("tiny", MESSAGES, format=Friend.model_json_schema(), options={"seed": 1})
    assert Friend.model_validate_json(done.message.content or "")


def test_tools(caller: Client) -> None:
    def room(n: int) -> str:
        """How a room is.

        Args:
            n (int): its number
        """
        return f"room {n}"

    call = {"function": {"name": "room", "arguments": {"n": 1}}}
    told = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
    told.append({"role": "tool", "tool_name": "room", "content": room(1)})
    with ollama.Client(caller.server.url) as client:
        done = client.chat("caller", told, tools=[room], options=OPTIONS)
        short = client.chat("caller", told, options=OPTIONS)
        assert (done.prompt_eval_count or 0) > (short.prompt_eval_count or 0)  # the template tells of tools
        body = {"messages": MESSAGES, "tools": [tool_of(room)], "tool_choice": "required", "stream": False}
        answer = caller.ask("/api/chat", {**body, "options": {"seed": 1}})
        message = ollama.ChatResponse(**answer.json).message
        assert message.tool_calls
        assert message.tool_calls[0].function.name == "room"
        assert isinstance(message.tool_calls[0].function.arguments["n"], int)


def tool_of(function: Any) -> Any:
    """The definition that the client makes of a function."""
    return convert_function_to_tool(function).model_dump(exclude_none=True)


def test_vectors(client: ollama.Client, server: Client) -> None:
    engine = server.hosted.ready()
    found = client.embed("tiny", ["hello", "world"])
    expected = engine.embed_batch(["hello", "world"], normalize=True)
    assert np.array_equal(np.array(found.embeddings, np.float32), expected)
    one = client.embeddings("tiny", "hello")
    assert np.array_equal(np.array(one.embedding, np.float32), engine.embed("hello"))


def test_models(client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert listed.model == "tiny:latest" and listed.details is not None
    (running,) = client.ps().models
    assert running.context_length == 4096
    shown = client.show("tiny")
    assert shown.capabilities == ["completion"] and shown.modelinfo
    assert client.pull("tiny").status == "success"


def test_errors(client: ollama.Client, server: Client) -> None:
    with pytest.raises(ollama.ResponseError, match="model: expected tiny, got other") as found:
        client.chat("other", MESSAGES)
    assert found.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="context_length_exceeded"):
        list(client.generate("tiny", "hello " * 5000, stream=True))
    with pytest.raises(ollama.ResponseError, match="num_ctx"):
        client.generate("tiny", "hello", options={"num_ctx": 5000})
    with ollama.Client(server.server.url) as stranger, pytest.raises(ollama.ResponseError) as found:
        stranger.list()
    assert (found.value.status_code, found.value.error) == (401, "api key: expected a valid one, got none")


def test_asyncio_and_leaving(server: Client) -> None:
    engine = server.hosted.ready()
    expected = engine.chat(MESSAGES, seed=4, max_tokens=8)

    async def run() -> list[str]:
        async with ollama.AsyncClient(server.server.url, headers=bearer("secret")) as client:
            done = await asyncio.gather(*(client.chat("tiny", MESSAGES, options=OPTIONS) for _ in range(4)))
            endless = await client.generate("tiny", "hello", stream=True)
            async for _ in endless:
                break
            await endless.aclose()  # type: ignore[attr-defined]
            return [each.message.content or "" for each in done]

    assert asyncio.run(run()) == [expected] * 4
    until(lambda: engine.metrics.snapshot().running == 0)
