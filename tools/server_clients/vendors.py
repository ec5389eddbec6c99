"""Checks of the vendors' clients: openai, anthropic, ollama."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tools.server_clients.checks import (
    CALLED,
    LONG,
    PARAMETERS,
    TOOL,
    USER,
    Answer,
    Server,
    arguments_of,
    check,
)

# --- openai -------------------------------------------------------------------------------------------


def openai_client(server: Server) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@check("openai", "chat")
def _(server: Server) -> None:
    done = openai_client(server).chat.completions.create(
        model=server.model, messages=USER, max_tokens=8, seed=1, logprobs=True, top_logprobs=2, n=2
    )
    assert [choice.index for choice in done.choices] == [0, 1] and done.usage.completion_tokens > 0


@check("openai", "stream")
def _(server: Server) -> None:
    ask = {"model": server.model, "messages": USER, "max_tokens": 8, "seed": 1}
    completions = openai_client(server).chat.completions
    whole = completions.create(**ask).choices[0].message.content
    parts = list(completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == whole
    assert parts[-1].usage.completion_tokens > 0


@check("openai", "tools")
def _(server: Server) -> None:
    ask = {"model": server.model, "messages": USER, "tools": [TOOL], "tool_choice": CALLED, "seed": 1}
    completions = openai_client(server).chat.completions
    message = completions.create(**ask).choices[0].message
    arguments_of(message.tool_calls[0].function.arguments)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    completions.create(
        model=server.model, messages=[*USER, message, result], tools=[TOOL], tool_choice="none", max_tokens=4
    )
    with completions.stream(**ask) as stream:
        final = stream.get_final_completion()
    arguments_of(final.choices[0].message.tool_calls[0].function.arguments)


@check("openai", "schema")
def _(server: Server) -> None:
    done = openai_client(server).chat.completions.parse(
        model=server.model, messages=USER, response_format=Answer, seed=1
    )
    assert isinstance(done.choices[0].message.parsed, Answer)


@check("openai", "vectors")
def _(server: Server) -> None:
    found = openai_client(server).embeddings.create(model=server.model, input=["hello", "world"])
    assert [entry.index for entry in found.data] == [0, 1] and len(found.data[0].embedding) > 1


@check("openai", "asyncio")
def _(server: Server) -> None:
    async def main() -> None:
        import openai

        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            ask = {"model": server.model, "messages": USER, "max_tokens": 8}
            done = await asyncio.gather(*(client.chat.completions.create(**ask, seed=i) for i in range(8)))
            assert len(done) == 8
            text = ""
            async for part in await client.chat.completions.create(**ask, seed=3, stream=True):
                text += part.choices[0].delta.content or ""
            assert text == done[3].choices[0].message.content

    asyncio.run(main())


@check("openai", "leaving")
def _(server: Server) -> None:
    with openai_client(server).chat.completions.create(
        model=server.model, messages=USER, max_tokens=LONG, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    server.check_gone()


@check("openai", "responses")
def _(server: Server) -> None:
    client = openai_client(server)
    done = client.responses.create(model=server.model, input="hello", max_output_tokens=16)
    assert done.usage.output_tokens > 0
    kinds = [
        event.type
        for event in client.responses.create(
            model=server.model, input="hello", max_output_tokens=16, stream=True
        )
    ]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    parsed = client.responses.parse(model=server.model, input="hello", text_format=Answer)
    assert isinstance(parsed.output_parsed, Answer)


# --- anthropic ----------------------------------------------------------------------------------------


ANTHROPIC_TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": PARAMETERS}


def anthropic_client(server: Server) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


@check("anthropic", "chat")
def _(server: Server) -> None:
    messages = anthropic_client(server).messages
    done = messages.create(model=server.model, max_tokens=8, system="Be brief.", messages=USER)
    assert done.usage.output_tokens > 0 and done.stop_reason in ("end_turn", "max_tokens")
    assert messages.count_tokens(model=server.model, messages=USER).input_tokens > 0


@check("anthropic", "stream")
def _(server: Server) -> None:
    with anthropic_client(server).messages.stream(
        model=server.model, max_tokens=8, messages=USER, extra_body={"ignore_eos": True}
    ) as stream:
        text = "".join(stream.text_stream)
        assert text == stream.get_final_message().content[0].text


@check("anthropic", "tools")
def _(server: Server) -> None:
    ask = {
        **{"model": server.model, "max_tokens": 400, "messages": USER, "tools": [ANTHROPIC_TOOL]},
        **{"tool_choice": {"type": "tool", "name": "weather"}},
    }
    messages = anthropic_client(server).messages
    (call,) = [block for block in messages.create(**ask).content if block.type == "tool_use"][:1]
    arguments_of(call.input)
    with messages.stream(**ask) as stream:
        blocks = stream.get_final_message().content
    arguments_of(next(block for block in blocks if block.type == "tool_use").input)


@check("anthropic", "asyncio")
def _(server: Server) -> None:
    async def main() -> None:
        import anthropic

        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as client:
            ask = {"model": server.model, "max_tokens": 8, "messages": USER}
            await asyncio.gather(*(client.messages.create(**ask) for _ in range(8)))

    asyncio.run(main())


@check("anthropic", "leaving")
def _(server: Server) -> None:
    with anthropic_client(server).messages.create(
        model=server.model, max_tokens=LONG, messages=USER, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    server.check_gone()


# --- ollama -------------------------------------------------------------------------------------------


def ollama_client(server: Server) -> Any:
    import ollama

    return ollama.Client(server.url)


@check("ollama", "chat")
def _(server: Server) -> None:
    client = ollama_client(server)
    done = client.chat(server.model, USER, options={"num_predict": 8, "seed": 1})
    assert done.eval_count > 0
    assert [entry.model for entry in client.list().models]
    assert client.show(server.model).details is not None


@check("ollama", "stream")
def _(server: Server) -> None:
    client, options = ollama_client(server), {"num_predict": 8, "seed": 1}
    whole = client.chat(server.model, USER, options=options).message.content
    parts = client.chat(server.model, USER, options=options, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole


@check("ollama", "tools")
def _(server: Server) -> None:
    body = {"model": server.model, "messages": USER, "tools": [TOOL], "stream": False, "tool_choice": CALLED}
    found = ollama_client(server)._client.post("/api/chat", json=body).json()
    arguments_of(found["message"]["tool_calls"][0]["function"]["arguments"])
    ollama_client(server).chat(server.model, USER, tools=[TOOL], options={"num_predict": 8})


@check("ollama", "schema")
def _(server: Server) -> None:
    done = ollama_client(server).chat(server.model, USER, format=Answer.model_json_schema())
    Answer.model_validate_json(done.message.content)


@check("ollama", "vectors")
def _(server: Server) -> None:
    assert len(ollama_client(server).embed(server.model, ["hello", "world"]).embeddings) == 2


@check("ollama", "asyncio")
def _(server: Server) -> None:
    async def main() -> None:
        import ollama

        client = ollama.AsyncClient(server.url)
        ask = {"model": server.model, "messages": USER, "options": {"num_predict": 8}}
        await asyncio.gather(*(client.chat(**ask) for _ in range(8)))

    asyncio.run(main())


@check("ollama", "leaving")
def _(server: Server) -> None:
    async def main() -> None:
        import ollama

        options = {"num_predict": LONG, "ignore_eos": True}
        client = ollama.AsyncClient(server.url)
        stream: AsyncIterator[Any] = await client.chat(server.model, USER, options=options, stream=True)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    server.check_gone()
