"""OpenAI's own client against the server: chat, streams, schemas, embeddings, errors, asyncio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import openai
import pytest
from pydantic import BaseModel

from tests.support.server import Client
from tests.support.waiting import until

MODEL, SERVER = {"ends": False}, {"api_keys": ("secret",)}
MESSAGES = [{"role": "user", "content": "hello world"}]
ASK: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
TEXT: dict[str, Any] = {"model": "tiny", "input": "hello world"}


class Friend(BaseModel):
    name: Literal["Mia", "Tom"]
    brave: bool


@pytest.fixture
def client(server: Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.server.url}/v1", api_key="secret", max_retries=0) as found:
        yield found


def test_chat(client: openai.OpenAI, server: Client) -> None:
    expected = server.hosted.ready().chat(MESSAGES, seed=4, max_tokens=8)
    done = client.chat.completions.create(**ASK, seed=4, max_completion_tokens=8)
    assert done.choices[0].message.content == expected
    assert done.choices[0].finish_reason == "length"
    assert done.usage is not None and done.usage.completion_tokens == 8
    assert done._request_id is not None


def test_a_streamed_chat(client: openai.OpenAI, server: Client) -> None:
    expected = server.hosted.ready().chat(MESSAGES, seed=4, regex="[a-z ]{20}")
    more: dict[str, Any] = {"stream_options": {"include_usage": True}, "extra_body": {"regex": "[a-z ]{20}"}}
    with client.chat.completions.stream(**ASK, seed=4, **more) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    text = "".join(event.delta for event in events if event.type == "content.delta")
    assert text == final.choices[0].message.content == expected
    assert final.usage is not None and final.usage.completion_tokens > 0


def test_a_schema_by_a_class(client: openai.OpenAI) -> None:
    done = client.chat.completions.parse(**ASK, response_format=Friend, seed=1)
    friend = done.choices[0].message.parsed
    assert isinstance(friend, Friend)
    assert json.loads(done.choices[0].message.content or "") == friend.model_dump()


def test_streamed_tool_calls(caller: Client) -> None:
    class Room(BaseModel):
        n: Literal[1, 2, 3]

    wanted: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "model": "caller"}
    wanted["tools"] = [openai.pydantic_function_tool(Room)]
    with (
        openai.OpenAI(base_url=f"{caller.server.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(**{**ASK, **wanted}, seed=1) as stream,
    ):
        events = [event for event in stream if event.type.startswith("tool_calls")]
        choice = stream.get_final_completion().choices[0]
        response = client.responses.parse(**{**TEXT, **wanted}, extra_body={"seed": 1})
    item = response.output[0]
    assert item.type == "function_call" and isinstance(item.parsed_arguments, Room)
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Room)
    assert events[-1].type == "tool_calls.function.arguments.done"


def test_responses(client: openai.OpenAI, server: Client) -> None:
    engine = server.hosted.ready()
    done = client.responses.create(**TEXT, max_output_tokens=8, extra_body={"seed": 4})
    assert done.output_text == engine.chat(MESSAGES, seed=4, max_tokens=8)
    assert done.incomplete_details is not None and done.incomplete_details.reason == "max_output_tokens"
    talk = [*MESSAGES, {"role": "assistant", "content": done.output_text}, MESSAGES[0]]
    more = {"seed": 4, "regex": "[a-z ]{20}"}
    with client.responses.stream(**TEXT, previous_response_id=done.id, extra_body=more) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == engine.chat(talk, seed=4, regex="[a-z ]{20}")
    assert client.responses.retrieve(final.id).output_text == text
    client.responses.delete(final.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(final.id)
    counted = client.responses.input_tokens.count(**TEXT)
    assert done.usage is not None and counted.input_tokens == done.usage.input_tokens


def test_responses_by_a_class(client: openai.OpenAI) -> None:
    done = client.responses.parse(**TEXT, text_format=Friend, extra_body={"seed": 1})
    assert isinstance(done.output_parsed, Friend)


def test_completions(client: openai.OpenAI, server: Client) -> None:
    expected = server.hosted.ready().generate("hello", temperature=0, max_tokens=6)
    body: dict[str, Any] = {"model": "tiny", "prompt": "hello", "temperature": 0, "max_tokens": 6}
    done = client.completions.create(**body, logprobs=2, extra_body={"top_k": 3})
    assert done.choices[0].text == expected
    assert done.choices[0].logprobs is not None and len(done.choices[0].logprobs.tokens or []) == 6
    parts = client.completions.create(**body, stream=True)
    assert "".join(part.choices[0].text for part in parts) == expected


def test_embeddings_in_base64_as_the_client_asks(client: openai.OpenAI, server: Client) -> None:
    answer = client.embeddings.create(model="tiny", input=["hello", "world"])
    expected = server.hosted.ready().embed_batch(["hello", "world"], normalize=True)
    assert (np.array([entry.embedding for entry in answer.data], np.float32) == expected).all()


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"


def test_errors_are_the_clients(client: openai.OpenAI, server: Client) -> None:
    def ask(**options: object) -> object:
        return client.chat.completions.create(**{**ASK, **options})  # type: ignore[call-overload]

    with pytest.raises(openai.NotFoundError, match="model: expected tiny, got gpt-4"):
        ask(model="gpt-4")
    with pytest.raises(openai.BadRequestError, match="temperature: expected a number") as error:
        ask(temperature=-1)
    assert (error.value.param, error.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as error:
        ask(messages=[{"role": "user", "content": "zq" * 5000}], stream=True)
    assert error.value.code == "context_length_exceeded"
    stranger = openai.OpenAI(base_url=f"{server.server.url}/v1", api_key="other", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError, match="api key: expected a valid one"):
        stranger.models.list()


def test_asyncio_and_cancelling(server: Client) -> None:
    engine = server.hosted.ready()

    async def main() -> None:
        url = f"{server.server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="secret", max_retries=0) as client:
            create = client.chat.completions.create
            done = await asyncio.gather(*(create(**ASK, seed=i, max_tokens=8) for i in range(6)))
            for i, each in enumerate(done):
                expected = await asyncio.to_thread(engine.chat, MESSAGES, seed=i, max_tokens=8)
                assert each.choices[0].message.content == expected
            stream = await create(**ASK, stream=True)
            async for _ in stream:
                break
            await stream.close()
            task = asyncio.ensure_future(create(**ASK, max_tokens=4000))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    until(lambda: not engine.metrics.snapshot().running)
    engine.model.check_integrity()
