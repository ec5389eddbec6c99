"""The servers of a ``config.json`` with ``mcpServers``, the form that other MCP clients have."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from oxillama.config import checks
from oxillama.errors import ConfigError

MOST_SERVERS = 64
MOST_FILE = 1 << 20
"""Bytes of the file."""

KINDS = {"stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url"}
"""The key that a server of a ``type`` must have."""
KEYS = {"command": ("args", "env", "cwd"), "url": ("headers",)}
"""The keys that go with ``command`` and with ``url``."""
COMMON = ("type", "disabled")
"""The keys that every server may have."""


@dataclass(frozen=True)
class McpLimits:
    """What a tool server may take.

    Attributes
    ----------
    connect_seconds : until it has started and listed its tools.
    call_seconds : for one call.
    result_chars : characters of a result; the rest is cut off, and the result says so.
    message_bytes : of one message of the server.

    Raises
    ------
    ConfigError : one is out of range.
    """

    connect_seconds: float = 30.0
    call_seconds: float = 60.0
    result_chars: int = 20_000
    message_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "call_seconds"):
            checks.number(name, getattr(self, name), checks.ABOVE_ZERO)
        for name in ("result_chars", "message_bytes"):
            checks.integer(name, getattr(self, name), 1)


@dataclass(frozen=True)
class ToolServer:
    """A server: a program that is started, or an address.

    Attributes
    ----------
    command, args, env, cwd : of the program; ``env`` is added to a few variables of ours, as HOME and PATH.
    url, headers : of a server that is reached by streamable HTTP.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def read_servers(path: str | os.PathLike[str]) -> list[ToolServer]:
    """The servers of a JSON file. Raises ConfigError if it cannot be read, or is no such file."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"mcp: {os.fspath(path)} cannot be read: {error.strerror or error}") from error
    if len(data) > MOST_FILE:
        raise ConfigError(f"mcp: expected at most {MOST_FILE} bytes in {os.fspath(path)}, got more")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"mcp: expected JSON in {os.fspath(path)}, got {error}") from error
    return servers_of(found)


def servers_of(found: object) -> list[ToolServer]:
    """The servers of a mapping with ``mcpServers``, without those that are disabled. Raises ConfigError."""
    table = checked_mapping("mcp", found)
    refuse_unknown("mcp", table, ("mcpServers",))
    if "mcpServers" not in table:
        raise ConfigError("mcp: expected mcpServers, got none")
    servers = checked_mapping("mcpServers", table["mcpServers"])
    if len(servers) > MOST_SERVERS:
        raise ConfigError(f"mcpServers: expected at most {MOST_SERVERS} servers, got {len(servers)}")
    made = [server_of(name, entry) for name, entry in servers.items()]
    return [server for server in made if server is not None]


def server_of(name: str, entry: object) -> ToolServer | None:
    """The server of an entry; None for one that is disabled. Raises ConfigError."""
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise checks.refuse("mcpServers", "names of 1 to 100 printable characters", name)
    where = f"mcpServers.{name}"
    table = checked_mapping(where, entry)
    refuse_unknown(where, table, (*KEYS, *(key for keys in KEYS.values() for key in keys), *COMMON))
    given = [key for key in KEYS if key in table]
    if len(given) != 1:
        raise ConfigError(f"{where}: expected either command or url, got {' and '.join(given) or 'neither'}")
    for key, others in KEYS.items():
        for other in others:
            if other in table and key not in table:
                raise ConfigError(f"{where}.{other}: expected {key} beside it, got {given[0]}")
    kind = table.get("type")
    if kind is not None and (not isinstance(kind, str) or KINDS.get(kind) != given[0]):
        wanted = " or ".join(each for each, key in KINDS.items() if key == given[0])
        raise checks.refuse(f"{where}.type", f"{wanted} beside {given[0]}", kind)
    is_off = checks.boolean(f"{where}.disabled", table.get("disabled", False))
    server = ToolServer(
        name,
        command=checked_text(f"{where}.command", table["command"]) if "command" in table else None,
        args=checked_texts(f"{where}.args", table.get("args", [])),
        env=checked_table(f"{where}.env", table.get("env", {})),
        cwd=checked_text(f"{where}.cwd", table["cwd"]) if "cwd" in table else None,
        url=checked_url(f"{where}.url", table["url"]) if "url" in table else None,
        headers=checked_table(f"{where}.headers", table.get("headers", {})),
    )
    for key, value in server.headers.items():
        if not (key and f"{key}{value}".isascii() and f"{key}{value}".isprintable()):
            raise ConfigError(f"{where}.headers: expected printable ASCII, got other characters")
    return None if is_off else server


def refuse_unknown(where: str, table: Collection[str], known: Collection[str]) -> None:
    """Raises ConfigError for the first key that is not known, with the one that may be meant."""
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise ConfigError(f"{where}: {key[:100]!r} is no key; {hint}")


def checked_mapping(where: str, value: object) -> Mapping[str, Any]:
    """An object of JSON. Raises ConfigError."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise checks.refuse(where, "an object", value)
    return value


def checked_text(where: str, value: object) -> str:
    """A text that a system call takes. Raises ConfigError."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise checks.refuse(where, "a text", value)
    return value


def checked_texts(where: str, value: object) -> tuple[str, ...]:
    """A list of texts. Raises ConfigError."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and "\0" not in v for v in value):
        raise checks.refuse(where, "a list of texts", value)
    return tuple(value)


def checked_table(where: str, value: object) -> dict[str, str]:
    """Texts by names; the message of an error does not show them. Raises ConfigError."""
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str) and "\0" not in text for pair in value.items() for text in pair
    ):
        raise ConfigError(f"{where}: expected an object of texts, got others")
    return dict(value)


def checked_url(where: str, value: object) -> str:
    """An address of HTTP. Raises ConfigError."""
    text = checked_text(where, value)
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable()
    except ValueError:
        is_good = False
    if not is_good or " " in text:
        raise checks.refuse(where, "an address that begins with http:// or https://", text)
    return text
