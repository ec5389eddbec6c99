"""Loops of the vendors' clients, and of LiteLLM, which has the form of OpenAI's."""

from __future__ import annotations

from typing import Any

from tests.support.clients.python_registry import (
    ASK,
    CHAT_TOOL,
    HEAD,
    LOOPS,
    MODEL,
    MORE,
    Loop,
    loop,
    result_of,
)
from tests.support.clients.words import ABOUT, BESIDE, PARAMETERS, SYSTEM, TOOL

# --- openai -----------------------------------------------------------------------------------------------


@loop("openai (chat completions)")
def _(url: str, stream: bool) -> list[str]:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [HEAD, ASK]

    def ask() -> Any:
        how: Any = {"model": MODEL, "messages": messages, "tools": [CHAT_TOOL]}
        if not stream:
            return client.chat.completions.create(**how).choices[0].message
        with client.chat.completions.stream(**how) as events:
            return events.get_final_completion().choices[0].message

    message = ask()
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": result_of(call.function.arguments)}
    messages += [message, result]
    first = ask()
    messages += [first, MORE]
    return [first.content, ask().content]


@loop("openai (responses)")
def _(url: str, stream: bool) -> list[str]:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    items: list[Any] = [ASK]
    tool = {"type": "function", "strict": True, **CHAT_TOOL["function"]}  # type: ignore[dict-item]

    def ask() -> Any:
        how: Any = {"model": MODEL, "instructions": SYSTEM, "input": items, "tools": [tool], "store": False}
        how["include"] = ["reasoning.encrypted_content"]
        if not stream:
            return client.responses.create(**how)
        with client.responses.stream(**how) as events:
            return events.get_final_response()

    found = ask()
    (call,) = [item for item in found.output if item.type == "function_call"]
    items += found.output
    output = result_of(call.arguments)
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    first = ask()
    items += [*first.output, MORE]
    return [first.output_text, ask().output_text]


# --- anthropic --------------------------------------------------------------------------------------------


@loop("anthropic")
def _(url: str, stream: bool) -> list[str]:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    messages: list[Any] = [ASK]
    cached = {"cache_control": {"type": "ephemeral"}}
    tool = {"name": TOOL, "description": ABOUT, "input_schema": PARAMETERS, **cached}
    system = [{"type": "text", "text": SYSTEM, **cached}]

    def ask() -> Any:
        how: Any = {
            "model": MODEL,
            "max_tokens": 200,
            "system": system,
            "messages": messages,
            "tools": [tool],
        }
        if not stream:
            return client.messages.create(**how)
        with client.messages.stream(**how) as events:
            return events.get_final_message()

    def text_of(message: Any) -> str:
        return "".join(block.text for block in message.content if block.type == "text")

    found = ask()
    (call,) = [block for block in found.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": result_of(call.input)}
    beside = {"type": "text", "text": BESIDE}
    messages += [
        {"role": "assistant", "content": found.content},
        {"role": "user", "content": [result, beside]},
    ]
    first = ask()
    messages += [{"role": "assistant", "content": first.content}, MORE]
    return [text_of(first), text_of(ask())]


# --- ollama -----------------------------------------------------------------------------------------------


@loop("ollama")
def _(url: str, stream: bool) -> list[str]:
    import ollama

    client = ollama.Client(url)
    messages: list[Any] = [HEAD, ASK]

    def ask() -> Any:
        if not stream:
            return client.chat(MODEL, messages, tools=[CHAT_TOOL]).message
        content, thinking, calls = "", "", []
        for part in client.chat(MODEL, messages, tools=[CHAT_TOOL], stream=True):
            content += part.message.content or ""
            thinking += part.message.thinking or ""
            calls += part.message.tool_calls or []
        return ollama.Message(role="assistant", content=content, thinking=thinking, tool_calls=calls)

    message = ask()
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_name": call.function.name, "content": result_of(call.function.arguments)}
    messages += [message, result]
    first = ask()
    messages += [first, MORE]
    return [first.content, ask().content]


# --- litellm ----------------------------------------------------------------------------------------------


def litellm_loop(provider: str, path: str) -> Loop:
    def run(url: str, stream: bool) -> list[str]:
        import litellm

        messages: list[Any] = [HEAD, ASK]

        def ask() -> Any:
            how: Any = {"model": f"{provider}/{MODEL}", "messages": messages, "tools": [CHAT_TOOL]}
            how |= {"api_base": url + path, "api_key": "none", "max_retries": 0, "max_tokens": 200}
            if stream:
                parts = list(litellm.completion(**how, stream=True))
                return litellm.stream_chunk_builder(parts, messages=messages).choices[0].message
            return litellm.completion(**how).choices[0].message

        message = ask()
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": result_of(call.function.arguments)}
        messages.extend([message, {**result, "name": TOOL}])
        first = ask()
        messages.extend([first, MORE])
        return [first.content, ask().content]

    return run


LOOPS["litellm (openai)"] = litellm_loop("openai", "/v1")
LOOPS["litellm (anthropic)"] = litellm_loop("anthropic", "")
LOOPS["litellm (ollama_chat)"] = litellm_loop("ollama_chat", "")
