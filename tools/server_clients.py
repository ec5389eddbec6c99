"""Has the clients that people use talk to the server: chats, streams, tools, schemas, vectors, leaving.

    python tools/server_clients.py [--client NAME ...] [--url URL --model NAME]

Each client is a package of its own: openai, anthropic, litellm (with mcp), ollama, langchain-openai, llm.
Those that are not installed are said to be missing. Without a URL a server is started with a small model of
random weights and a template for tools: what a schema or a tool asks for holds all the same. With a URL it is
the server there, which needs a chat template for tools. Exits with 1 if anything fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from pydantic import BaseModel, ConfigDict, Field

USER = [{"role": "user", "content": "hello world"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells the weather.", "parameters": PARAMETERS},
}
CALLED = {"type": "function", "function": {"name": "weather"}}
LONG = 3000
"""Tokens of a text that nobody waits for."""


class Answer(BaseModel):
    """What a schema asks for."""

    model_config = ConfigDict(extra="forbid")

    good: bool
    level: int = Field(ge=0, le=9)


@dataclass
class Server:
    """Where the server is, and what its model is called."""

    url: str
    model: str

    def running(self) -> float:
        """Requests that run now."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        return sum(map(float, re.findall(r"^llamacpp:requests_processing\S* (\S+)$", text, re.MULTILINE)))

    def check_gone(self, began: bool = True) -> None:
        """Waits until no request runs; only what a client has left can have ended one that is so long."""
        assert began, "the text had ended before the client left"
        deadline = time.monotonic() + 10
        while self.running():
            assert time.monotonic() < deadline, "a request goes on whose client has gone"
            time.sleep(0.02)


Check = Callable[[Server], Any]
CHECKS: dict[str, dict[str, Check]] = {}
"""By package, then by what is checked."""


def check(client: str, what: str) -> Callable[[Check], Check]:
    """Adds a check of a client."""

    def add(run: Check) -> Check:
        CHECKS.setdefault(client, {})[what] = run
        return run

    return add


def arguments_of(text: str | dict[str, Any]) -> None:
    """Asserts that the arguments of a call fit the tool."""
    found = json.loads(text) if isinstance(text, str) else text
    assert set(found) == {"city", "days"} and isinstance(found["days"], int), found


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


# --- litellm ------------------------------------------------------------------------------------------


def litellm_arguments(server: Server) -> dict[str, Any]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices
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

    async def main() -> None:
        answer = litellm.acompletion(**how, messages=USER, max_tokens=LONG, extra_body={"ignore_eos": True})
        task = asyncio.ensure_future(answer)
        while not server.running():
            await asyncio.sleep(0.01)
            assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.check_gone(task.cancelled())

    asyncio.run(main())


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

    # otherwise it counts tokens with a vocabulary that it fetches from OpenAI
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


# --- all of them --------------------------------------------------------------------------------------


@contextmanager
def own_server() -> Iterator[Server]:
    """A server in a process of its own."""
    from tests.support.tiny_file import write_tiny_model
    from tests.support.tool_models import AS_IT_IS

    # random weights would think for as long as the context is
    template = re.sub(r"{% if m.reasoning_content.*?{% endif %}", "", AS_IT_IS, flags=re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "tiny.gguf", chat_template=template, ends=False)
        command = [sys.executable, "-m", "oxillama", "serve", str(model), "--port", "0", "-t", "1"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            text = ""
            while not (ready := re.search(r"is ready at (http://\S+)", text)):
                line = process.stderr.readline()
                assert line, f"the server has ended: {text}"
                text += line
            log = Path(folder) / "log"
            with log.open("w") as file:
                reader = subprocess.Popen(["cat"], stdin=process.stderr, stdout=file)
                yield Server(ready[1], "tiny")
        finally:
            process.terminate()
            process.wait()
            reader.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--client", action="append", choices=CHECKS, metavar="NAME", help="(default: all)")
    parser.add_argument("--url", help="of a server; without it one is started")
    parser.add_argument("--model", help="what the server at the URL calls its model")
    args = parser.parse_args()
    if (args.url is None) != (args.model is None):
        parser.error("--url and --model: expected both or none")
    if args.url is not None:
        return run(Server(args.url.rstrip("/"), args.model), args.client)
    with own_server() as server:
        return run(server, args.client)


def run(server: Server, clients: list[str] | None) -> int:
    """Runs the checks of clients, all for None; 1 if one fails."""
    failed = 0
    for client in clients or CHECKS:
        if find_spec(client.replace("-", "_")) is None:
            print(f"{client}: is not installed")
            continue
        for what, test in CHECKS[client].items():
            begun = time.perf_counter()
            try:
                test(server)
            except Exception:
                failed += 1
                print(f"{client}, {what}: FAILED\n{traceback.format_exc(limit=-4)}")
            else:
                print(f"{client}, {what}: good, {time.perf_counter() - begun:.1f} s", flush=True)
    print(f"{failed} failed" if failed else "all good")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
