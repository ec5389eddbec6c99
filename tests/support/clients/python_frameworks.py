"""Loops of frameworks: most call the tool and send its result by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.clients.python_registry import LOOPS, MODEL, MORE, Loop, result_of, weather
from tests.support.clients.words import FURTHER, QUESTION, SYSTEM, TOOL

# --- langchain --------------------------------------------------------------------------------------------


def langchain_loop(model_of: Callable[[str], Any]) -> Loop:
    def run(url: str, stream: bool) -> list[str]:
        from langchain_core.messages import HumanMessage, SystemMessage
        from langchain_core.tools import tool

        bound = model_of(url).bind_tools([tool(weather)])
        messages: list[Any] = [SystemMessage(SYSTEM), HumanMessage(QUESTION)]

        def ask() -> Any:
            if not stream:
                return bound.invoke(messages)
            whole: Any = None
            for part in bound.stream(messages):
                whole = part if whole is None else whole + part
            return whole

        message = ask()
        (call,) = message.tool_calls
        messages.extend([message, tool(weather).invoke(call)])
        first = ask()
        messages.extend([first, HumanMessage(FURTHER)])
        last = ask()
        return [first.text, last.text]

    return run


def langchain_openai(url: str, **how: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", max_retries=0, **how)


def langchain_anthropic(url: str) -> Any:
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(model=MODEL, base_url=url, api_key="none", max_retries=0, max_tokens=200)


def langchain_ollama(url: str) -> Any:
    from langchain_ollama import ChatOllama

    return ChatOllama(model=MODEL, base_url=url)


LOOPS["langchain-openai (chat completions)"] = langchain_loop(langchain_openai)
LOOPS["langchain-openai (responses)"] = langchain_loop(
    lambda url: langchain_openai(url, use_responses_api=True)
)
LOOPS["langchain-anthropic"] = langchain_loop(langchain_anthropic)
LOOPS["langchain-ollama"] = langchain_loop(langchain_ollama)


# --- pydantic-ai ------------------------------------------------------------------------------------------


def pydantic_loop(model_of: Callable[[str], Any]) -> Loop:
    def run(url: str, stream: bool) -> list[str]:
        from pydantic_ai import Agent

        agent = Agent(model_of(url), instructions=SYSTEM, tools=[weather], model_settings={"max_tokens": 200})

        async def ask(prompt: str, history: Any) -> tuple[str, Any]:
            if not stream:
                done = await agent.run(prompt, message_history=history)
                return done.output, done.all_messages()
            async with agent.run_stream(prompt, message_history=history) as found:
                return await found.get_output(), found.all_messages()

        async def main() -> list[str]:
            first, history = await ask(QUESTION, None)
            return [first, (await ask(FURTHER, history))[0]]

        return asyncio.run(main())

    return run


def pydantic_openai(url: str, kind: str) -> Any:
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider

    return getattr(models, kind)(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def pydantic_anthropic(url: str) -> Any:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
    return AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))


LOOPS["pydantic-ai-slim (chat completions)"] = pydantic_loop(
    lambda url: pydantic_openai(url, "OpenAIChatModel")
)
LOOPS["pydantic-ai-slim (responses)"] = pydantic_loop(
    lambda url: pydantic_openai(url, "OpenAIResponsesModel")
)
LOOPS["pydantic-ai-slim (anthropic)"] = pydantic_loop(pydantic_anthropic)


# --- openai-agents ----------------------------------------------------------------------------------------


def agents_loop(kind: str) -> Loop:
    def run(url: str, stream: bool) -> list[str]:
        import agents
        from openai import AsyncOpenAI

        agents.set_tracing_disabled(True)
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        model = getattr(agents, kind)(model=MODEL, openai_client=client)
        agent = agents.Agent(
            name="a", instructions=SYSTEM, model=model, tools=[agents.function_tool(weather)]
        )

        async def ask(items: Any) -> Any:
            if not stream:
                return await agents.Runner.run(agent, items)
            found = agents.Runner.run_streamed(agent, items)
            async for _ in found.stream_events():
                pass
            return found

        async def main() -> list[str]:
            first = await ask(QUESTION)
            last = await ask([*first.to_input_list(), MORE])
            return [first.final_output, last.final_output]

        return asyncio.run(main())

    return run


LOOPS["openai-agents (chat completions)"] = agents_loop("OpenAIChatCompletionsModel")
LOOPS["openai-agents (responses)"] = agents_loop("OpenAIResponsesModel")


# --- strands ----------------------------------------------------------------------------------------------


def strands_loop(kind: str) -> Loop:
    def run(url: str, stream: bool) -> list[str]:
        from importlib import import_module

        import strands

        module = import_module(f"strands.models.{kind.removesuffix('Model').lower()}")
        args = {"base_url": url if kind == "AnthropicModel" else f"{url}/v1", "api_key": "none"}
        if kind == "OllamaModel":
            model = module.OllamaModel(url, model_id=MODEL)
        else:
            more: Any = {"max_tokens": 200} if kind == "AnthropicModel" else {}
            model = getattr(module, kind)(client_args=args, model_id=MODEL, **more)
        agent = strands.Agent(
            model=model, system_prompt=SYSTEM, tools=[strands.tool(weather)], callback_handler=None
        )

        async def main() -> list[str]:  # in one event loop, to which connections of the client belong
            return [str(await agent.invoke_async(text)) for text in (QUESTION, FURTHER)]

        return asyncio.run(main())

    return run


for each in ("OpenAIModel", "AnthropicModel", "OllamaModel"):
    LOOPS[f"strands-agents ({each.removesuffix('Model').lower()})"] = strands_loop(each)


# --- llama-index ------------------------------------------------------------------------------------------


def llama_index_loop(model_of: Callable[[str], Any]) -> Loop:
    def run(url: str, stream: bool) -> list[str]:
        from llama_index.core.llms import ChatMessage
        from llama_index.core.tools import FunctionTool

        model, tool = model_of(url), FunctionTool.from_defaults(weather)
        history = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=QUESTION)]

        def ask() -> Any:
            if stream:
                *_, last = model.stream_chat_with_tools([tool], chat_history=history)
                return last
            return model.chat_with_tools([tool], chat_history=history)

        found = ask()
        (call,) = model.get_tool_calls_from_response(found)
        history.extend([found.message, ChatMessage(
            role="tool",
            content=result_of(call.tool_kwargs),
            additional_kwargs={"tool_call_id": call.tool_id, "name": TOOL},
        )])  # fmt: skip
        first = ask()
        history.extend([first.message, ChatMessage(role="user", content=FURTHER)])
        return [first.message.content, ask().message.content]

    return run


def llama_index_openai(url: str) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    how: Any = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0}
    return OpenAILike(model=MODEL, api_base=f"{url}/v1", api_key="none", **how)


def llama_index_anthropic(url: str) -> Any:
    from llama_index.llms.anthropic import Anthropic

    return Anthropic(model="claude-sonnet-4-0", base_url=url, api_key="none", max_retries=0, max_tokens=200)


def llama_index_ollama(url: str) -> Any:
    from llama_index.llms.ollama import Ollama

    return Ollama(model=MODEL, base_url=url, context_window=4096)


LOOPS["llama-index-llms-openai-like"] = llama_index_loop(llama_index_openai)
LOOPS["llama-index-llms-anthropic"] = llama_index_loop(llama_index_anthropic)
LOOPS["llama-index-llms-ollama"] = llama_index_loop(llama_index_ollama)
