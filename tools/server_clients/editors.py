"""Checks of editors: the package aider, and requests in the form of Codex and of Continue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.codex import codex_body
from tools.server_clients.checks import TOOL, USER, Server, check

# --- aider --------------------------------------------------------------------------------------------


@check("aider-chat", "a message")
def _(server: Server) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hello.py").write_text("print('hello')\n")
        flags = [
            "--no-git",
            "--yes-always",
            "--no-check-update",
            "--no-show-model-warnings",
            "--no-analytics",
        ]
        flags += ["--map-tokens", "0", "--no-pretty", "--message", "Say hello.", "hello.py"]
        for stream in ("--stream", "--no-stream"):
            words = [sys.executable, "-m", "aider", "--model", f"openai/{server.model}", stream, *flags]
            reached = {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
            offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": folder}
            environment = {**os.environ, **reached, **offline}
            done = subprocess.run(
                words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
            )
            # random weights write until the context is full, which aider reports
            assert done.returncode == 0, done.stdout + done.stderr
            assert "Tokens:" in done.stdout or "Output tokens:" in done.stdout, done.stdout
            assert "RequestError" not in done.stdout and "APIError" not in done.stdout, done.stdout


# --- shapes of requests -------------------------------------------------------------------------------


def posted(server: Server, path: str, body: dict[str, Any]) -> str:
    """Posts a body; returns the text of the answer."""
    head = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def events_of(text: str) -> list[dict[str, Any]]:
    """The JSON objects of an event stream."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"enum": ["ls", "pwd"]}, "maxItems": 2}},
        "required": ["command"],
        "additionalProperties": False,
    },
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}


def codex(server: Server, items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The body of a turn. Texts are limited, because random weights do not end by themselves."""
    tools = [SHELL, PATCH, {"type": "web_search"}, {"type": "local_shell"}]
    return codex_body(server.model, items, tools, max_output_tokens=64) | more


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


@check("codex", "a turn, a call, its output")
def _(server: Server) -> None:
    items = [said("developer", "Be brief."), said("user", "<environment>"), said("user", "hello")]
    body = codex(server, items, tool_choice="required", max_output_tokens=300)
    events = events_of(posted(server, "/v1/responses", body))
    assert events[0]["type"] == "response.created"
    (last,) = [event for event in events if event["type"] == "response.completed"]
    (call,) = [item for item in last["response"]["output"] if item["type"] == "function_call"]
    assert call["name"] == "shell" and set(json.loads(call["arguments"])) == {"command"}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "README.md"}
    events = events_of(posted(server, "/v1/responses", codex(server, [*items, call, output])))
    assert events[-1]["response"]["usage"]["input_tokens"] > 0


@check("continue", "chat, as an OpenAI server")
def _(server: Server) -> None:
    body = {
        "messages": USER,
        "model": server.model,
        "max_tokens": 16,
        "temperature": 0.5,
        "top_p": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "stop": ["</done>"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [TOOL],
        "parallel_tool_calls": False,
    }
    assert events_of(posted(server, "/v1/chat/completions", body))[-1]["usage"]["completion_tokens"] > 0


@check("continue", "texts, as llama-server")
def _(server: Server) -> None:
    body = {
        "prompt": "def add(a, b):",
        "stream": True,
        "n_predict": 8,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "min_p": 0.1,
        "mirostat": 0,
        "stop": ["\n\n"],
        "top_k": 40,
        "top_p": 0.9,
        "temperature": 0.1,
    }
    assert events_of(posted(server, "/completion", body))[-1]["stop"] is True


@check("continue", "chat, as Ollama")
def _(server: Server) -> None:
    options = {"temperature": 0.5, "num_predict": 8, "num_ctx": 4096, "stop": ["</done>"], "mirostat": 0}
    body = {"model": server.model, "messages": USER, "options": options, "keep_alive": 1800, "stream": True}
    lines = posted(server, "/api/chat", body).splitlines()
    assert json.loads(lines[-1])["done"] is True
    found = json.loads(posted(server, "/api/show", {"model": server.model}))
    assert "template" in found
