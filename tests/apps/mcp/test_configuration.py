"""The file of tool servers: what is read, and what is refused; without the package `mcp`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oxillama.apps.mcp.configuration import McpLimits, ToolServer, read_servers, servers_of
from oxillama.errors import ConfigError


def test_the_form_that_other_clients_have(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    entries = {
        "files": {"command": "npx", "args": ["-y", "files", "/tmp"], "env": {"A": "1"}, "cwd": "/tmp"},
        "web": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer x"}},
        "off": {"command": "no", "disabled": True},
    }
    path.write_text(json.dumps({"mcpServers": entries}))
    assert read_servers(path) == [
        ToolServer("files", command="npx", args=("-y", "files", "/tmp"), env={"A": "1"}, cwd="/tmp"),
        ToolServer("web", url="https://example.org/mcp", headers={"Authorization": "Bearer x"}),
    ]
    assert servers_of({"mcpServers": {}}) == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"comand": "a"}, r"mcpServers\.a: 'comand' is no key; did you mean command\?"),
        ({"command": "a", "zzz": 1}, r"mcpServers\.a: 'zzz' is no key; expected one of command, url, args"),
        ({}, "expected either command or url, got neither"),
        ({"command": "a", "url": "http://a"}, "expected either command or url, got command and url"),
        ({"command": ""}, r"mcpServers\.a\.command: expected a text, got ''"),
        ({"command": "a\0"}, "command: expected a text"),
        ({"command": "a", "args": "b"}, "args: expected a list of texts, got 'b'"),
        ({"command": "a", "args": [1]}, "args: expected a list of texts"),
        ({"command": "a", "env": {"KEY": 5}}, "env: expected an object of texts, got others"),
        ({"command": "a", "headers": {}}, r"headers: expected url beside it, got command"),
        ({"url": "http://a", "cwd": "/"}, r"cwd: expected command beside it, got url"),
        ({"url": "ftp://a"}, "url: expected an address that begins with http:// or https://, got 'ftp://a'"),
        ({"url": "http://"}, "url: expected an address"),
        ({"url": "http://[a"}, "url: expected an address"),
        ({"url": "http://a", "headers": {"A": "b\r\nc: d"}}, "headers: expected printable ASCII"),
        (
            {"url": "http://a", "type": "sse"},
            "type: expected http or streamable-http or .+ beside url, got 'sse'",
        ),
        ({"command": "a", "type": "http"}, "type: expected stdio beside command, got 'http'"),
        ({"command": "a", "disabled": 1}, "disabled: expected"),
        ("a", r"mcpServers\.a: expected an object, got 'a'"),
    ],
)
def test_wrong_servers(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        servers_of({"mcpServers": {"a": entry}})


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "mcp: expected an object"),
        ({"mcpservers": {}}, r"'mcpservers' is no key; did you mean mcpServers\?"),
        ({}, "expected mcpServers, got none"),
        ({"mcpServers": []}, "mcpServers: expected an object"),
        ({"mcpServers": {" ": {}}}, "names of 1 to 100 printable characters"),
        ({"mcpServers": {f"a{i}": {"command": "a"} for i in range(65)}}, "at most 64 servers, got 65"),
    ],
)
def test_wrong_files(found: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        servers_of(found)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_servers(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="mcp: expected JSON in"):
        read_servers(path)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="mcp: expected JSON in"):
        read_servers(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="mcp: expected JSON in"):
        read_servers(path)
    path.write_text(" " * (1 << 20) + "{}")
    with pytest.raises(ConfigError, match="expected at most 1048576 bytes"):
        read_servers(path)


def test_secrets_are_not_in_messages() -> None:
    for key in ("env", "headers"):
        kind = {"command": "a"} if key == "env" else {"url": "http://a"}
        with pytest.raises(ConfigError) as caught:
            servers_of({"mcpServers": {"a": {**kind, key: {"TOKEN": "s3cret", "x": 5}}}})
        assert "s3cret" not in str(caught.value)


def test_limits() -> None:
    for name in ("connect_seconds", "call_seconds", "result_chars", "message_bytes"):
        with pytest.raises(ConfigError, match=name):
            McpLimits(**{name: 0})  # type: ignore[arg-type]
