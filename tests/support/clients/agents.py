"""The first three requests of agents and editors, written by hand in the documented shapes of their requests.

Each agent is a generator: it yields a path, a body and headers, and is sent the answer. The texts are short,
and the words of `words.py` are where the agents have instructions, questions and results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.clients.wiretap import Exchange, Tap
from tests.support.clients.words import ABOUT, BESIDE, FURTHER, PARAMETERS, QUESTION, RESULT, SYSTEM, TOOL
from tests.support.codex import codex_body

MODEL = "scripted"
SCHEMA = "https://json-schema.org/draft/2020-12/schema"
FUNCTION = {"name": TOOL, "description": ABOUT, "parameters": PARAMETERS}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
NOTE = "<system-reminder>\nneedlenote Be careful.\n</system-reminder>"


@dataclass
class Said:
    """An answer of any interface: its text, its reasoning, the call (id, name, arguments), its items."""

    text: str = ""
    reasoning: str = ""
    call: tuple[str, str, dict[str, Any]] = ("", "", {})
    items: list[Any] = field(default_factory=list)


Turn = tuple[str, dict[str, Any], Mapping[str, str]]
Agent = Generator[Turn, Said, list[str]]
AGENTS: dict[str, Callable[[], Agent]] = {}
JSON = {"Content-Type": "application/json"}


def agent(name: str) -> Callable[[Callable[[], Agent]], Callable[[], Agent]]:
    """A decorator that registers an agent."""

    def add(run: Callable[[], Agent]) -> Callable[[], Agent]:
        AGENTS[name] = run
        return run

    return add


def run_agent(name: str, template: str, tap: Tap) -> tuple[list[Exchange], list[str]]:
    """The exchanges of an agent with the server of a template, and the texts that it got."""
    tap.exchanges.clear()
    turns, said = AGENTS[name](), None
    try:
        while True:
            path, body, headers = turns.send(said)  # type: ignore[arg-type]
            request = Request(tap.urls[template] + path, json.dumps(body).encode(), dict(headers))
            try:
                with urlopen(request) as answer:
                    said = said_of(path, answer.read().decode())
            except HTTPError as error:
                raise AssertionError(f"{error.code}: {error.read().decode()} for {body}") from None
    except StopIteration as end:
        return list(tap.exchanges), end.value


# --- answers ------------------------------------------------------------------------------------------


def said_of(path: str, text: str) -> Said:
    """What an answer says: whole, as events or as lines."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{"))]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    read = {"/v1/chat/completions": of_chat, "/v1/messages": of_blocks, "/v1/responses": of_items}
    return read.get(path.partition("?")[0], of_lines)(events)


def of_chat(events: list[Any]) -> Said:
    said, id, name, arguments = Said(), "", "", ""
    for part in (choice for event in events for choice in event["choices"]):
        message = part.get("message") or part["delta"]
        said.text += message.get("content") or ""
        said.reasoning += message.get("reasoning_content") or ""
        for call in message.get("tool_calls") or ():
            id, name = id or call.get("id", ""), name or call["function"].get("name", "")
            arguments += call["function"].get("arguments") or ""
    said.call = id, name, json.loads(arguments or "{}")
    return said


def of_blocks(events: list[Any]) -> Said:
    blocks: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "input": ""})
        elif event["type"] == "content_block_delta":
            for key in ("text", "thinking", "signature"):
                if key in event["delta"]:
                    blocks[-1][key] = blocks[-1].get(key, "") + event["delta"][key]
            blocks[-1]["input"] += event["delta"].get("partial_json", "")
    said = Said()
    for block in blocks:
        given = json.loads(block.pop("input") or "{}")
        if block["type"] == "tool_use":
            block["input"] = given
            said.call = block["id"], block["name"], given
        said.text += block.get("text", "")
        said.reasoning += block.get("thinking", "")
    said.items = blocks
    return said


def of_items(events: list[Any]) -> Said:
    response = events[-1].get("response", events[-1])
    said = Said(items=response["output"])
    for item in response["output"]:
        if item["type"] == "function_call":
            said.call = item["call_id"], item["name"], json.loads(item["arguments"])
        elif item["type"] == "message":
            said.text += "".join(part["text"] for part in item["content"])
    return said


def of_lines(events: list[Any]) -> Said:
    said = Said()
    for message in (event["message"] for event in events):
        said.text += message.get("content") or ""
        said.reasoning += message.get("thinking") or ""
        for call in message.get("tool_calls") or ():
            said.call = "", call["function"]["name"], call["function"]["arguments"]
    return said


# --- Anthropic's interface ----------------------------------------------------------------------------


@agent("Claude Code")
def _() -> Agent:
    """https://docs.claude.com/en/docs/claude-code: system blocks, reminders, a late system message."""
    cached = {"cache_control": {"type": "ephemeral"}}
    head = {**JSON, "anthropic-version": "2023-06-01", "x-api-key": "none", "x-app": "cli"}
    head["anthropic-beta"] = "claude-code-20250219,interleaved-thinking-2025-05-14"
    body: dict[str, Any] = {
        "model": MODEL,
        "system": [
            {"type": "text", "text": "You are a coding agent."},
            {"type": "text", "text": SYSTEM, **cached},
        ],
        "tools": [{"name": TOOL, "description": ABOUT, "input_schema": {"$schema": SCHEMA, **PARAMETERS}}],
        "metadata": {"user_id": "user_1_account__session_2"},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }
    question = [{"type": "text", "text": NOTE}, {"type": "text", "text": QUESTION, **cached}]
    messages: list[Any] = [{"role": "user", "content": question}]
    found = yield "/v1/messages?beta=true", {**body, "messages": messages}, head
    result = {"type": "tool_result", "tool_use_id": found.call[0], "content": RESULT, **cached}
    messages += [
        {"role": "assistant", "content": found.items},
        {"role": "user", "content": [{**result, "is_error": False}, {"type": "text", "text": BESIDE}]},
        {"role": "system", "content": [{"type": "text", "text": "needlelate The date has changed."}]},
    ]
    first = yield "/v1/messages?beta=true", {**body, "messages": messages}, head
    messages += [{"role": "assistant", "content": first.items}, {"role": "user", "content": FURTHER}]
    last = yield "/v1/messages?beta=true", {**body, "messages": messages}, head
    return [first.text, last.text]


# --- OpenAI's responses -------------------------------------------------------------------------------


@agent("Codex")
def _() -> Agent:
    """A developer message and two messages of the user before the first question; nothing is stored."""

    def said(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    tools = [
        {"type": "function", "strict": False, **FUNCTION},
        {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "text"}},
        {"type": "web_search", "external_web_access": False},
    ]
    items: list[Any] = [
        said("developer", f"<permissions>{SYSTEM}</permissions>"),
        said("user", "<environment_context>needleplace</environment_context>"),
        said("user", QUESTION),
    ]
    found = yield "/v1/responses", codex_body(MODEL, items, tools), JSON
    items += found.items
    items.append({"type": "function_call_output", "call_id": found.call[0], "output": f"Output:\n{RESULT}"})
    first = yield "/v1/responses", codex_body(MODEL, items, tools), JSON
    items += [*first.items, said("developer", "needlelate Be careful."), said("user", FURTHER)]
    last = yield "/v1/responses", codex_body(MODEL, items, tools), JSON
    return [first.text, last.text]


# --- OpenAI's chats -----------------------------------------------------------------------------------


def chat_agent(
    head: list[Any],
    more: dict[str, Any],
    message: Callable[[Said], dict[str, Any]],
    headers: Mapping[str, str] = JSON,
    beside: tuple[Any, ...] = (),
    parts: bool = False,
) -> Callable[[], Agent]:
    """An agent that uses chat completions.

    Args:
        head: the messages before the question.
        more: the fields beside model and messages.
        message: the message of the assistant as the agent sends it back.
        beside: messages after a result.
        parts: whether the contents of the user are parts.
    """

    def user(text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": text}] if parts else text}

    def run() -> Agent:
        messages = [*head, user(QUESTION)]
        found = yield "/v1/chat/completions", {"model": MODEL, "messages": messages, **more}, headers
        result = {"role": "tool", "tool_call_id": found.call[0], "content": RESULT}
        messages = [*messages, message(found), result, *beside]
        first = yield "/v1/chat/completions", {"model": MODEL, "messages": messages, **more}, headers
        messages = [*messages, message(first), user(FURTHER)]
        last = yield "/v1/chat/completions", {"model": MODEL, "messages": messages, **more}, headers
        return [first.text, last.text]

    return run


def assistant(said: Said, content: Any = "", **more: Any) -> dict[str, Any]:
    """The assistant's message; ``content`` is what a message with a call and without a text has."""
    message: dict[str, Any] = {"role": "assistant", "content": said.text or content, **more}
    if said.call[0]:
        id, name, arguments = said.call
        function = {"name": name, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": id, "type": "function", "function": function}]
    return message


STREAM = {"stream": True, "stream_options": {"include_usage": True}}
HEAD = {"role": "system", "content": SYSTEM}

AGENTS["opencode"] = chat_agent(
    # two system messages; reasoning goes back by the name that openai-compatible servers have
    [HEAD, {"role": "system", "content": "needleplace The folder is empty."}],
    {
        "max_tokens": 32000,
        "tools": [CHAT_TOOL],
        "tool_choice": "auto",
        "temperature": 0,
        "top_p": 1,
        **STREAM,
    },
    lambda said: assistant(said, reasoning_content=said.reasoning) if said.reasoning else assistant(said),
)
AGENTS["Continue"] = chat_agent(
    # a call has a content of one space; the question is followed by what the editor adds
    [HEAD],
    {"max_tokens": 4096, "tools": [CHAT_TOOL], "parallel_tool_calls": False, **STREAM},
    lambda said: assistant(said, " "),
    beside=({"role": "user", "content": BESIDE},),
    parts=True,
)
AGENTS["Zed"] = chat_agent(
    # null for a content beside calls; parts for the user's text
    [HEAD],
    {"tools": [CHAT_TOOL], "stop": [], "temperature": 1.0, "prompt_cache_key": "thread-1", **STREAM},
    lambda said: assistant(said, None),
    parts=True,
)
AGENTS["Copilot"] = chat_agent(
    # null for a content beside calls, a user's message with the context before the question
    [HEAD, {"role": "user", "content": "<context>needleplace</context>", "name": "context"}],
    {"tools": [CHAT_TOOL], "n": 1, "temperature": 0, "top_p": 1, "max_tokens": 4096, **STREAM},
    lambda said: assistant(said, None, **({"reasoning_content": said.reasoning} if said.reasoning else {})),
    headers={**JSON, "X-Initiator": "user", "Openai-Intent": "conversation-panel"},
)


# --- Ollama's chats -----------------------------------------------------------------------------------


@agent("Home Assistant")
def _() -> Agent:
    """Ollama's client: options with whole numbers as decimals, keep_alive, thinking, a tool_name."""
    body: dict[str, Any] = {
        "model": f"{MODEL}:latest",
        "tools": [CHAT_TOOL],
        "stream": True,
        "options": {"num_ctx": 8192},
        "keep_alive": "-1s",
    }
    messages: list[Any] = [HEAD, {"role": "user", "content": QUESTION}]
    found = yield "/api/chat", {**body, "messages": messages}, JSON
    function = {"name": found.call[1], "arguments": found.call[2]}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": found.text,
        "tool_calls": [{"function": function}],
    }
    if found.reasoning:
        message["thinking"] = found.reasoning
    result = {"role": "tool", "content": json.dumps({"speech": RESULT}), "tool_name": found.call[1]}
    messages += [message, result]
    first = yield "/api/chat", {**body, "messages": messages}, JSON
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": FURTHER}]
    last = yield "/api/chat", {**body, "messages": messages}, JSON
    return [first.text, last.text]
