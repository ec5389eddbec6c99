"""Tools of MCP servers: the paths of the page, and chats whose tools the server runs."""

from __future__ import annotations

import gc
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError
from oxillama.apps.server.openai.served_tools import ServedTools
from oxillama.apps.server.processes import JobTooLate, Processes, process_ended
from oxillama.apps.server.tool_servers import ToolServers
from oxillama.base.config.server import ServerConfig
from oxillama.text.toolcalls import run
from tests.support.paths import ROOT
from tests.support.server import Client, bearer, serving
from tests.support.tool_models import NO_THOUGHTS, tool_model
from tests.support.waiting import until

RAW = str(ROOT / "tests/support/raw_mcp_server.py")
MCP = {"type": "mcp", "server_label": "raw", "require_approval": "never", "allowed_tools": ["echo"]}
MESSAGES = [{"role": "user", "content": "hello"}]


def test_a_configuration_that_is_wrong(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="needs the package mcp: pip install 'oxillama-cpu[mcp]'")
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="mcp: expected mcpServers, got none"):
        ToolServers(ServerConfig(mcp=path), Processes(0))
    assert not ToolServers(ServerConfig(), Processes(0))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tool_model(tmp_path_factory.mktemp("model") / "m.gguf", NO_THOUGHTS)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mcp", reason="needs the package mcp: pip install 'oxillama-cpu[mcp]'")
    path = tmp_path_factory.mktemp("mcp") / "config.json"
    servers = {
        "raw": {"command": sys.executable, "args": [RAW, "plain"]},
        "odd": {"command": sys.executable, "args": [RAW, "schemas"]},
        "none": {"command": "no-such-program"},
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@pytest.fixture(scope="module")
def client(model: Path, config: Path) -> Iterator[Client]:
    with serving(model, mcp=config, cors_origins=("*",)) as found:
        yield found


def test_a_server_without_tools(model: Path) -> None:
    with serving(model) as client:
        assert client.ask("/mcp/tools").json == {"tools": [], "servers": []}
        refused = client.ask("/mcp/call", {"name": "a", "arguments": {}})
        assert refused.refusal("code") == (404, "no_tool_servers")
        refused = client.ask("/v1/chat/completions", {"messages": MESSAGES, "tools": [MCP]})
        assert refused.status == 400 and "no tool servers (--mcp)" in refused.error["message"]


def test_the_tools_are_listed_and_called(client: Client) -> None:
    found = client.ask("/mcp/tools").json
    tools = {tool["name"]: tool for tool in found["tools"]}
    assert tools["raw__echo"]["refused"] is None and tools["raw__echo"]["own_name"] == "echo"
    assert "registry" in tools["odd__refused"]["refused"]
    failures = {server["name"]: server["failure"] for server in found["servers"]}
    assert failures["raw"] is None and failures["none"].startswith("expected a program")
    body = {"name": "raw__echo", "arguments": {"a": "<b>"}, "digest": tools["raw__echo"]["digest"]}
    called = {"name": "raw__echo", "content": '{"a": "<b>"}', "is_error": False}
    assert client.ask("/mcp/call", body).json == called
    died = client.ask("/mcp/call", {"name": "raw__die", "arguments": {}}).json
    assert died["is_error"] and died["content"] == "Error: raw: it has ended with status 3"
    assert client.ask("/mcp/call", body).status == 200


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"name": "raw__echo"}, 400, "arguments: expected a value"),
        ({"name": "raw__echo", "arguments": []}, 400, "arguments: expected"),
        ({"name": "raw__echo", "arguments": {}, "more": 1}, 400, "more"),
        ({"name": "no", "arguments": {}}, 404, "name: expected a tool that can be used, got no"),
        ({"name": "odd__refused", "arguments": {}}, 404, "name: expected a tool that can be used"),
        ({"name": "raw__echo", "arguments": {}, "digest": "x"}, 409, "has changed since it was listed"),
        ([], 400, "body: expected an object"),
    ],
)
def test_wrong_calls(client: Client, body: Any, status: int, said: str) -> None:
    answer = client.ask("/mcp/call", body)
    assert answer.status == status and said in answer.error["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_foreign_pages_are_refused_whatever_else_they_may_do(
    client: Client, headers: dict[str, str], status: int
) -> None:
    assert client.ask("/mcp/tools", headers=headers).status == status
    body = {"name": "raw__echo", "arguments": {}}
    assert client.ask("/mcp/call", body, headers=headers).status == status
    plain = {**headers, "Content-Type": "text/plain"}
    assert client.ask("/mcp/call", body, headers=plain).status in (403, 415)


def test_keys(model: Path, config: Path) -> None:
    with serving(model, mcp=config, api_keys=("alice", "bob")) as client:
        assert client.ask("/mcp/tools").status == 401
        body = {"name": "raw__echo", "arguments": {}}
        assert client.ask("/mcp/call", body).status == 401
        head = bearer("alice")
        assert client.ask("/mcp/tools", headers=head).status == 200
        assert client.ask("/mcp/call", body, headers=head).status == 200


def chat(client: Client, status: int | None = None, **more: Any) -> Any:
    body = {"messages": MESSAGES, "max_tokens": 100, "seed": 1, **more}
    return client.ask("/v1/chat/completions", body, status=status)


def test_a_chat_with_tools_that_the_server_runs(client: Client) -> None:
    answer = chat(client, status=200, tools=[MCP], tool_choice="raw__echo")
    (choice,) = answer.json["choices"]
    assert choice["message"]["mcp_calls"][0] == {
        "type": "mcp_call",
        "server_label": "raw",
        "name": "echo",
        "arguments": "{}",
        "output": "{}",
        "error": None,
    }
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] != "tool_calls"
    assert answer.json["usage"]["total_tokens"] > 100
    wanted = {"stream": True, "stream_options": {"include_usage": True}}
    events = chat(client, tools=[MCP], tool_choice="raw__echo", **wanted).events
    assert events[-1] == "[DONE]" and events[-2]["usage"] == answer.json["usage"]
    deltas = [event["choices"][0]["delta"] for event in events[:-2]]
    assert "".join(delta.get("content") or "" for delta in deltas) == (choice["message"]["content"] or "")
    calls = [call for delta in deltas for call in delta.get("mcp_calls", ())]
    assert calls == choice["message"]["mcp_calls"]
    assert [e["choices"][0]["finish_reason"] for e in events[:-2]][-1] == choice["finish_reason"]


def test_the_last_of_eight_answers_makes_no_calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_fields", lambda fields, run: fields)  # each answer has to make a call
    answer = chat(client, status=200, tools=[MCP], tool_choice="raw__echo")
    (choice,) = answer.json["choices"]
    assert len(choice["message"]["mcp_calls"]) == 7
    assert choice["finish_reason"] != "tool_calls"


def test_without_asking_no_tools_are_offered(client: Client) -> None:
    plain = chat(client).json
    assert "mcp_calls" not in plain["choices"][0]["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"server_label": "other"}, "tools[0].server_label"),
        ({"server_label": None}, "tools[0].server_label"),
        ({"require_approval": "always"}, "tools[0].require_approval"),
        ({"require_approval": None}, "tools[0].require_approval"),
        ({"require_approval": {"never": {"tool_names": ["echo"]}}}, "tools[0].require_approval"),
        ({"allowed_tools": ["no"]}, "tools[0].allowed_tools"),
        ({"allowed_tools": "echo"}, "tools[0].allowed_tools"),
        ({"server_url": "http://127.0.0.1/mcp"}, "tools[0].server_url"),
        ({"headers": {"A": "b"}}, "tools[0].headers"),
    ],
)
def test_wrong_tools_of_servers(client: Client, change: dict[str, Any], param: str) -> None:
    tool = {key: value for key, value in {**MCP, **change}.items() if value is not None}
    answer = chat(client, tools=[tool])
    assert answer.refusal("param") == (400, param), answer.text


def test_what_goes_not_with_them(client: Client) -> None:
    function = {"type": "function", "function": {"name": "f"}}
    assert chat(client, tools=[MCP, function]).error["param"] == "tools[1].type"
    assert chat(client, tools=[MCP], n=2).error["param"] == "n"
    for name in ("logprobs", "receipt", "verbose", "return_progress", "timings_per_token"):
        assert chat(client, tools=[MCP], **{name: True}).error["param"] == name


@pytest.fixture(scope="module")
def mute(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server with tool servers, of which one never answers and one has died."""
    pytest.importorskip("mcp", reason="needs the package mcp: pip install 'oxillama-cpu[mcp]'")
    path = tmp_path_factory.mktemp("mcp") / "config.json"
    servers = {
        "raw": {"command": sys.executable, "args": [RAW, "plain"]},
        "mute": {"command": sys.executable, "args": [RAW, "mute"]},
        "dead": {"command": sys.executable, "args": [RAW, "fails"]},
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    with serving(model, mcp=path, mcp_connect_seconds=600) as found:
        yield found


def test_a_tool_server_that_never_answers_holds_up_its_own_chats_alone(mute: Client) -> None:
    began = time.monotonic()
    assert mute.ask("/mcp/call", {"name": "raw__echo", "arguments": {}}).json["content"] == "{}"
    answer = chat(mute, tools=[MCP], tool_choice="raw__echo")
    assert answer.status == 200 and answer.choice["message"]["mcp_calls"]
    found = mute.ask("/mcp/tools").json
    assert {tool["server"] for tool in found["tools"]} == {"raw"}
    failures = {each["name"]: each["failure"] for each in found["servers"]}
    assert {each["name"] for each in found["servers"] if each["is_listing"]} == {"mute"}
    assert failures["raw"] is None and failures["mute"] == "it has not listed its tools yet"
    assert time.monotonic() - began < 60


def test_a_chat_with_tools_of_a_server_that_has_failed(mute: Client) -> None:
    answer = chat(mute, tools=[{**MCP, "server_label": "dead", "allowed_tools": None}])
    assert answer.refusal("code") == (503, "tool_server_failed")
    assert answer.error["message"] == "tools[0].server_label: dead has no tools: it has ended with status 4"


def test_schemas_are_compiled_in_processes_where_a_thread_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [process_ended(), JobTooLate("late")]

    def fails(*arguments: Any, **how: Any) -> Any:
        raise errors.pop()

    definition = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    servers = ToolServers(ServerConfig(), Processes(0))
    assert servers._why_not_compiled(definition) is None
    monkeypatch.setattr("oxillama.apps.server.tool_servers.AT_ONCE", -1.0)
    assert servers._why_not_compiled(definition) is None
    monkeypatch.setattr(Processes, "run", fails)
    for said in ("compiled within 5 s", "has ended"):
        assert said in (servers._why_not_compiled(definition) or "")


def test_a_reader_that_leaves_is_freed_without_a_collection(client: Client) -> None:
    """The bodies of requests are large, and a collection may not come for a long time."""
    body = {"messages": MESSAGES, "tools": [MCP], "stream": True, "max_tokens": 400, "ignore_eos": True}
    data = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    gc.collect()
    gc.disable()
    try:
        with socket.socket() as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            leaving.connect(("127.0.0.1", client.port))
            leaving.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
            assert leaving.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: not len(client.server._app.state.in_flight))
        until(lambda: not any(isinstance(each, ServedTools) for each in gc.get_objects()))
    finally:
        gc.enable()
