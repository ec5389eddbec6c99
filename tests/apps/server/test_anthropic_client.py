"""Anthropic's own client against the server: messages, streams, tools, schemas, errors, asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam
from pydantic import BaseModel

from tests.support.server import Client
from tests.support.tool_models import closed
from tests.support.waiting import until

MODEL, SERVER = {"ends": False}, {"api_keys": ("secret",)}
ASK: list[MessageParam] = [{"role": "user", "content": "hello world"}]
PLAIN = [{"role": "user", "content": "hello world"}]
SEED = {"seed": 4}


@pytest.fixture
def client(server: Client) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.server.url, api_key="secret", max_retries=0) as found:
        yield found


def test_a_message(client: anthropic.Anthropic, server: Client) -> None:
    expected = server.hosted.ready().chat(PLAIN, seed=4, max_tokens=8)
    done = client.messages.create(model="tiny", max_tokens=8, messages=ASK, extra_body=SEED)
    (block,) = done.content
    assert block.type == "text" and block.text == expected
    assert (done.stop_reason, done.usage.output_tokens) == ("max_tokens", 8)
    assert done._request_id is not None
    counted = client.messages.count_tokens(model="tiny", messages=ASK)
    cached = done.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == done.usage.input_tokens + cached


def test_a_streamed_message(client: anthropic.Anthropic, server: Client) -> None:
    expected = server.hosted.ready().chat(PLAIN, seed=4, regex="[a-z ]{20}")
    more = {**SEED, "regex": "[a-z ]{20}"}
    with client.messages.stream(model="tiny", max_tokens=80, messages=ASK, extra_body=more) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == expected  # type: ignore[union-attr]
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 0


def test_a_schema_by_a_class(client: anthropic.Anthropic) -> None:
    class Friend(BaseModel):
        name: Literal["Mia", "Tom"]
        brave: bool

    done = client.messages.parse(
        model="tiny", max_tokens=200, messages=ASK, output_format=Friend, extra_body=SEED
    )
    assert isinstance(done.parsed_output, Friend)


def test_tools_and_their_results(caller: Client) -> None:
    room: ToolParam = {"name": "room", "input_schema": closed(n={"enum": [1, 2, 3]})}
    messages, ids = list(ASK), list[str]()
    with anthropic.Anthropic(base_url=caller.server.url, api_key="none", max_retries=0) as client:
        for _ in range(2):
            with client.messages.stream(
                model="caller",
                max_tokens=300,
                messages=messages,
                tools=[room],
                tool_choice={"type": "any", "disable_parallel_tool_use": True},
                extra_body={"seed": 1},
            ) as stream:
                pieces = [event.partial_json for event in stream if event.type == "input_json"]
                final = stream.get_final_message()
            assert final.stop_reason == "tool_use"
            (call,) = final.content
            assert call.type == "tool_use" and call.id not in ids
            ids.append(call.id)
            assert call.input in ({"n": 1}, {"n": 2}, {"n": 3}) and str(call.input["n"]) in "".join(pieces)
            messages.append({"role": "assistant", "content": final.content})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "open"}
            messages.append({"role": "user", "content": [result]})  # type: ignore[list-item]


def test_errors_are_the_clients(client: anthropic.Anthropic, server: Client) -> None:
    def ask(**options: object) -> object:
        usual = {"model": "tiny", "max_tokens": 4, "messages": ASK}
        return client.messages.create(**{**usual, **options})  # type: ignore[call-overload]

    with pytest.raises(anthropic.NotFoundError, match="model: expected tiny, got claude"):
        ask(model="claude")
    with pytest.raises(anthropic.BadRequestError, match="temperature: expected a number") as error:
        ask(extra_body={"temperature": -1})
    assert error.value.type == "invalid_request_error"
    long = [{"role": "user", "content": "zq" * 5000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(messages=long, stream=True)
    stranger = anthropic.Anthropic(base_url=server.server.url, api_key="other", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError, match="api key: expected a valid one"):
        stranger.messages.create(model="tiny", max_tokens=1, messages=ASK)


def test_asyncio_and_cancelling(server: Client) -> None:
    engine = server.hosted.ready()

    async def main() -> None:
        url = server.server.url
        async with anthropic.AsyncAnthropic(base_url=url, api_key="secret", max_retries=0) as client:

            def ask(seed: int, n: int = 8) -> object:
                return client.messages.create(
                    model="tiny", max_tokens=n, messages=ASK, extra_body={"seed": seed}
                )

            for seed, done in enumerate(await asyncio.gather(*(ask(seed) for seed in range(6)))):  # type: ignore[call-overload]
                expected = await asyncio.to_thread(engine.chat, PLAIN, seed=seed, max_tokens=8)
                assert done.content[0].text == expected
            stream = await client.messages.create(model="tiny", max_tokens=4000, messages=ASK, stream=True)
            events = aiter(stream)
            assert (await anext(events)).type == "message_start"
            await stream.close()

    asyncio.run(main())
    until(lambda: not engine.metrics.snapshot().running)
    engine.model.check_integrity()
