"""Reads the servers of a ``config.json`` with ``mcpServers``, the format of other MCP clients."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from oxillama.base.config import checks
from oxillama.errors import ConfigError

MOST_SERVERS = 64
MOST_FILE = 1 << 20
"""The maximum size of the file in bytes."""

KINDS = {"stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url"}
"""The key that a server with this ``type`` must have."""
KEYS = {"command": ("args", "env", "cwd"), "url": ("headers",)}
"""The further keys that ``command`` and ``url`` allow."""
COMMON = ("type", "disabled")
"""The keys that every server may have."""


@dataclass(frozen=True)
class McpLimits:
    """Limits of a tool server.

    Attributes:
        connect_seconds: time to start and to list its tools.
        call_seconds: time of one call.
        result_chars: max characters of a result; a longer result is cut, and says so.
        message_bytes: max bytes of a message from the server.
        message_values: max values of a message: objects, lists and what they hold.
        message_levels: max levels of a message: lists and objects inside each other.

    Raises:
        ConfigError: a limit is out of range.
    """

    connect_seconds: float = 30.0
    call_seconds: float = 60.0
    result_chars: int = 20_000
    message_bytes: int = 16 << 20
    message_values: int = 65_536
    message_levels: int = 100

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "call_seconds"):
            checks.number(name, getattr(self, name), checks.ABOVE_ZERO)
        for name in ("result_chars", "message_bytes", "message_values", "message_levels"):
            checks.integer(name, getattr(self, name), 1)


@dataclass(frozen=True)
class ToolServer:
    """A server: a program that is started, or an address.

    Attributes:
        command, args, env, cwd: the program; ``env`` is added to a few inherited variables such as HOME and
            PATH.
        url, headers: a server reached by streamable HTTP.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def read_servers(path: str | os.PathLike[str]) -> list[ToolServer]:
    """The servers of a JSON file. Raises ConfigError if it cannot be read, or has another format."""
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
    """The servers of a mapping with ``mcpServers``, without disabled ones. Raises ConfigError."""
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
    """The server of an entry; None if it is disabled. Raises ConfigError."""
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
    """Raise ConfigError for the first unknown key, with a suggestion."""
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise ConfigError(f"{where}: {key[:100]!r} is no key; {hint}")


def checked_mapping(where: str, value: object) -> Mapping[str, Any]:
    """Check that a value is a JSON object. Raises ConfigError."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise checks.refuse(where, "an object", value)
    return value


def checked_text(where: str, value: object) -> str:
    """Check that a value is a nonempty text without NUL. Raises ConfigError."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise checks.refuse(where, "a text", value)
    return value


def checked_texts(where: str, value: object) -> tuple[str, ...]:
    """Check that a value is a list of texts. Raises ConfigError."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and "\0" not in v for v in value):
        raise checks.refuse(where, "a list of texts", value)
    return tuple(value)


def checked_table(where: str, value: object) -> dict[str, str]:
    """Check that a value maps names to texts. Raises ConfigError, without showing the texts."""
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str) and "\0" not in text for pair in value.items() for text in pair
    ):
        raise ConfigError(f"{where}: expected an object of texts, got others")
    return dict(value)


def checked_url(where: str, value: object) -> str:
    """Check that a value is an HTTP address. Raises ConfigError."""
    text = checked_text(where, value)
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable()
    except ValueError:
        is_good = False
    if not is_good or " " in text:
        raise checks.refuse(where, "an address that begins with http:// or https://", text)
    return text
