"""Checks of libraries for any OpenAI server: litellm, langchain-openai, llm, llama-index, haystack."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tools.server_clients.checks import (
    CALLED,
    LONG,
    PARAMETERS,
    TOOL,
    USER,
    Answer,
    Server,
    Weather,
    arguments_of,
    check,
    weather,
)

# --- litellm ------------------------------------------------------------------------------------------


def litellm_arguments(server: Server) -> dict[str, Any]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # instead of downloading a list of prices
    return {"model": f"openai/{server.model}", "api_base": f"{server.url}/v1", "api_key": "none"}


@check("litellm", "chat")
def _(server: Server) -> None:
    how = litellm_arguments(server)
    import litellm

    done = litellm.completion(**how, messages=USER, max_tokens=8, seed=1)
    assert done.usage.completion_tokens > 0


@check("litellm", "stream")
def _(server: Server) -> None:
    how = litellm_arguments(server)
    import litellm

    ask = {**how, "messages": USER, "max_tokens": 8, "seed": 1}
    whole = litellm.completion(**ask).choices[0].message.content
    parts = list(litellm.completion(**ask, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole


@check("litellm", "tools")
def _(server: Server) -> None:
    how = litellm_arguments(server)
    import litellm

    ask = {**how, "messages": USER, "tools": [TOOL], "tool_choice": CALLED}
    arguments_of(litellm.completion(**ask).choices[0].message.tool_calls[0].function.arguments)
    parts = list(litellm.completion(**ask, stream=True))
    built = litellm.stream_chunk_builder(parts)
    arguments_of(built.choices[0].message.tool_calls[0].function.arguments)


@check("litellm", "schema")
def _(server: Server) -> None:
    how = litellm_arguments(server)
    import litellm

    done = litellm.completion(**how, messages=USER, response_format=Answer)
    Answer.model_validate_json(done.choices[0].message.content)


@check("litellm", "vectors")
def _(server: Server) -> None:
    how = litellm_arguments(server)
    import litellm

    assert len(litellm.embedding(**how, input=["hello", "world"]).data) == 2


@check("litellm", "asyncio")
def _(server: Server) -> None:
    how = litellm_arguments(server)
    import litellm

    async def main() -> None:
        ask = {**how, "messages": USER, "max_tokens": 8}
        await asyncio.gather(*(litellm.acompletion(**ask) for _ in range(8)))

    asyncio.run(main())


@check("litellm", "leaving")
def _(server: Server) -> None:
    how = litellm_arguments(server)
    import litellm

    ask = {**how, "messages": USER, "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
    server.check_leaving(lambda: litellm.acompletion(**ask))


# --- langchain-openai ---------------------------------------------------------------------------------


def langchain_model(server: Server, **options: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model=server.model, max_retries=0, **options
    )


@check("langchain-openai", "chat")
def _(server: Server) -> None:
    done = langchain_model(server, max_tokens=8, seed=1).invoke("hello")
    assert done.usage_metadata["output_tokens"] > 0


@check("langchain-openai", "stream")
def _(server: Server) -> None:
    model = langchain_model(server, max_tokens=8, seed=1)
    assert "".join(part.content for part in model.stream("hello")) == model.invoke("hello").content


@check("langchain-openai", "tools")
def _(server: Server) -> None:
    model = langchain_model(server).bind_tools([TOOL], tool_choice="weather")
    arguments_of(model.invoke("hello").tool_calls[0]["args"])
    whole = None
    for part in model.stream("hello"):
        whole = part if whole is None else whole + part
    arguments_of(whole.tool_calls[0]["args"])


@check("langchain-openai", "schema")
def _(server: Server) -> None:
    for method in ("json_schema", "function_calling"):
        model = langchain_model(server).with_structured_output(Answer, method=method)
        assert isinstance(model.invoke("hello"), Answer)


@check("langchain-openai", "vectors")
def _(server: Server) -> None:
    from langchain_openai import OpenAIEmbeddings

    # otherwise the library counts tokens with a vocabulary that it downloads from OpenAI
    embeddings = OpenAIEmbeddings(
        base_url=f"{server.url}/v1", api_key="none", model=server.model, check_embedding_ctx_length=False
    )
    assert len(embeddings.embed_documents(["hello", "world"])) == 2


@check("langchain-openai", "asyncio")
def _(server: Server) -> None:
    async def main() -> None:
        model = langchain_model(server, max_tokens=8)
        assert len(await model.abatch(["hello"] * 8)) == 8
        assert [part async for part in model.astream("hello")]

    asyncio.run(main())


@check("langchain-openai", "leaving")
def _(server: Server) -> None:
    model = langchain_model(server, max_tokens=LONG, extra_body={"ignore_eos": True})
    stream = model.stream("hello")
    next(stream)
    stream.close()
    server.check_gone()


# --- llm ----------------------------------------------------------------------------------------------


def llm_models(server: Server) -> Any:
    """The package, with the server's model under the name "here"."""
    folder = tempfile.mkdtemp()
    os.environ["LLM_USER_PATH"] = folder
    entry = {
        "model_id": "here",
        "model_name": server.model,
        "api_base": f"{server.url}/v1",
        "api_key": "none",
    }
    entry |= {"supports_schema": True, "supports_tools": True}
    path = Path(folder) / "extra-openai-models.yaml"
    path.write_text("- " + "\n  ".join(f"{name}: {json.dumps(value)}" for name, value in entry.items()))
    import llm

    return llm


@check("llm", "chat")
def _(server: Server) -> None:
    assert llm_models(server).get_model("here").prompt("hello", max_tokens=8, stream=False).text() is not None


@check("llm", "stream")
def _(server: Server) -> None:
    model = llm_models(server).get_model("here")
    parts = list(model.prompt("hello", max_tokens=8, seed=1))
    assert "".join(parts) == model.prompt("hello", max_tokens=8, seed=1, stream=False).text()


@check("llm", "tools")
def _(server: Server) -> None:
    llm = llm_models(server)

    def weather(city: str) -> str:
        """Tells the weather."""
        return f"sunny in {city}"

    for stream in (False, True):
        llm.get_model("here").prompt("hello", tools=[weather], max_tokens=8, stream=stream).tool_calls()


@check("llm", "schema")
def _(server: Server) -> None:
    text = llm_models(server).get_model("here").prompt("hello", schema=Answer, stream=False).text()
    Answer.model_validate_json(text)


@check("llm", "asyncio")
def _(server: Server) -> None:
    model = llm_models(server).get_async_model("here")

    async def main() -> None:
        texts = await asyncio.gather(*(one(i) for i in range(4)))
        assert len(texts) == 4

    async def one(seed: int) -> str:
        return str(await model.prompt("hello", max_tokens=8, seed=seed).text())

    asyncio.run(main())


@check("llm", "leaving")
def _(server: Server) -> None:
    stream = iter(llm_models(server).get_model("here").prompt("hello", max_tokens=LONG))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    server.check_gone()


# --- llama-index --------------------------------------------------------------------------------------


def llama_index_model(server: Server, **options: Any) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        **{"model": server.model, "api_base": f"{server.url}/v1", "api_key": "none", "max_retries": 0},
        **{"is_chat_model": True, "is_function_calling_model": True, "context_window": 4096},
        **options,
    )


LLAMA_INDEX = "llama-index-llms-openai-like"


@check(LLAMA_INDEX, "chat")
def _(server: Server) -> None:
    from llama_index.core.llms import ChatMessage

    model = llama_index_model(server, max_tokens=8, additional_kwargs={"seed": 1})
    done = model.chat([ChatMessage(role="user", content="hello world")])
    assert done.message.content and done.raw.usage.completion_tokens > 0
    assert llama_index_model(server, max_tokens=8).complete("hello").text


@check(LLAMA_INDEX, "stream")
def _(server: Server) -> None:
    from llama_index.core.llms import ChatMessage

    model = llama_index_model(server, max_tokens=8, additional_kwargs={"seed": 1})
    ask = [ChatMessage(role="user", content="hello world")]
    parts = list(model.stream_chat(ask))
    assert "".join(part.delta or "" for part in parts) == model.chat(ask).message.content


@check(LLAMA_INDEX, "text")
def _(server: Server) -> None:
    model = llama_index_model(server, max_tokens=8)
    model.is_chat_model = False
    assert model.complete("hello").text
    assert list(model.stream_complete("hello"))


@check(LLAMA_INDEX, "tools")
def _(server: Server) -> None:
    from llama_index.core.tools import FunctionTool

    tool, model = FunctionTool.from_defaults(weather, fn_schema=Weather), llama_index_model(server)
    done = model.chat_with_tools([tool], "hello", tool_choice="weather")
    for call in model.get_tool_calls_from_response(done):
        arguments_of(call.tool_kwargs)


@check(LLAMA_INDEX, "schema")
def _(server: Server) -> None:
    model = llama_index_model(server, should_use_structured_outputs=True)
    assert isinstance(model.as_structured_llm(Answer).complete("hello").raw, Answer)


@check(LLAMA_INDEX, "vectors")
def _(server: Server) -> None:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    embeddings = OpenAILikeEmbedding(
        model_name=server.model, api_base=f"{server.url}/v1", api_key="none", max_retries=0
    )
    assert len(embeddings.get_text_embedding_batch(["hello", "world"])) == 2


@check(LLAMA_INDEX, "asyncio")
def _(server: Server) -> None:
    async def main() -> None:
        model = llama_index_model(server, max_tokens=8)
        assert len(await asyncio.gather(*(model.acomplete("hello") for _ in range(8)))) == 8

    asyncio.run(main())


@check(LLAMA_INDEX, "leaving")
def _(server: Server) -> None:
    body = {"extra_body": {"ignore_eos": True}}
    stream = llama_index_model(server, max_tokens=LONG, additional_kwargs=body).stream_complete("hello")
    next(stream)
    stream.close()
    server.check_gone()


# --- haystack -----------------------------------------------------------------------------------------


def haystack_model(server: Server, **how: Any) -> Any:
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.utils import Secret

    key = Secret.from_token("none")
    return OpenAIChatGenerator(
        api_key=key, model=server.model, api_base_url=f"{server.url}/v1", max_retries=0, **how
    )


def haystack_ask() -> Any:
    from haystack.dataclasses import ChatMessage

    return [ChatMessage.from_user("hello world")]


@check("haystack-ai", "chat")
def _(server: Server) -> None:
    (reply,) = haystack_model(server).run(haystack_ask(), generation_kwargs={"max_tokens": 8})["replies"]
    assert reply.meta["usage"]["completion_tokens"] > 0


@check("haystack-ai", "stream")
def _(server: Server) -> None:
    parts: list[str] = []
    model = haystack_model(server, streaming_callback=lambda chunk: parts.append(chunk.content))
    options = {"max_tokens": 8, "seed": 1}
    (reply,) = model.run(haystack_ask(), generation_kwargs=options)["replies"]
    (whole,) = haystack_model(server).run(haystack_ask(), generation_kwargs=options)["replies"]
    assert "".join(parts) == reply.text == whole.text


@check("haystack-ai", "tools")
def _(server: Server) -> None:
    from haystack.tools import Tool

    tool = Tool("weather", "Tells the weather.", PARAMETERS, lambda city, days: f"sunny in {city}")
    options = {"tool_choice": CALLED}
    for streamed in (False, True):
        how = {"streaming_callback": lambda chunk: None} if streamed else {}
        answer = haystack_model(server, tools=[tool], **how).run(haystack_ask(), generation_kwargs=options)
        arguments_of(answer["replies"][0].tool_calls[0].arguments)


@check("haystack-ai", "schema")
def _(server: Server) -> None:
    answer = haystack_model(server).run(haystack_ask(), generation_kwargs={"response_format": Answer})
    Answer.model_validate_json(answer["replies"][0].text)


@check("haystack-ai", "vectors")
def _(server: Server) -> None:
    from haystack.components.embedders import OpenAITextEmbedder
    from haystack.utils import Secret

    embedder = OpenAITextEmbedder(
        api_key=Secret.from_token("none"), model=server.model, api_base_url=f"{server.url}/v1"
    )
    assert len(embedder.run("hello")["embedding"]) > 1
