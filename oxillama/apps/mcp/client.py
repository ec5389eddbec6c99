"""`McpClient`: all tool servers in one object, with blocking functions and awaitables."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from oxillama.apps.mcp.configuration import McpLimits, ToolServer, read_servers, servers_of
from oxillama.apps.mcp.connection import Connection
from oxillama.apps.mcp.errors import ToolServerError
from oxillama.apps.mcp.tools import (
    MOST_NAME,
    Compile,
    McpTool,
    result_of,
    safe,
    why_not_compiled,
    with_unique_names,
)
from oxillama.base.config import checks
from oxillama.base.distribution import install
from oxillama.base.events import ToolCall
from oxillama.errors import ConfigError
from oxillama.text.toolcalls.definitions import MOST_TOOLS, Definition
from oxillama.text.toolcalls.dispatch import ToolResult

T = TypeVar("T")

CLOSE_SECONDS = 30.0
"""Seconds to wait for all servers to stop."""


@dataclass(frozen=True)
class ServerStatus:
    """The state of a server.

    Attributes:
        failure: why the server is not connected, or has no tools; None without a failure.
        n_tools: number of tools in its last list.
        is_listing: whether a list has been asked for, and has not come.
        stderr: the end of its program's stderr, and lines of its stdout that are not messages.
    """

    name: str
    is_connected: bool
    failure: str | None
    n_tools: int
    is_listing: bool
    stderr: str


def connect(config: str | os.PathLike[str] | Mapping[str, Any], limits: McpLimits | None = None) -> McpClient:
    """Connect to the servers of a ``config.json`` and list their tools; returns the client.

    A server that cannot be reached is not an error: its tools are missing, and `McpClient.servers` says why.

    Args:
        config: the path of the file, or its contents.

    Raises:
        ConfigError: the file cannot be read, or has unknown keys; the package ``mcp`` is not installed.
    """
    servers = servers_of(config) if isinstance(config, Mapping) else read_servers(config)
    client = McpClient(servers, limits)
    try:
        client.tools()
    except BaseException:
        client.close()
        raise
    return client


def check_installed() -> None:
    """Raise ConfigError if the package ``mcp`` is missing or too old."""
    try:
        import mcp
    except ImportError as error:
        wanted = f"the package mcp ({install('mcp')})"
        raise ConfigError(f"mcp: expected {wanted}, got none of {error.name}") from error
    if not hasattr(mcp, "Client"):
        raise ConfigError(f"mcp: expected the package mcp from 2.0 on ({install('mcp')}), got 1.x")
    for name in ("mcp", "httpx2"):  # without handlers, Python writes their warnings to stderr
        logging.getLogger(name).addHandler(logging.NullHandler())


class McpClient:
    """Calls tools of servers. Thread-safe; a `ToolDispatcher` for `run_tools` and `arun_tools`.

    Args:
        servers: connected when first needed.
        compile: returns why a tool's schema cannot be compiled, or None; called in threads.

    Raises:
        ConfigError: two servers have the same name; the package ``mcp`` is not installed.
    """

    def __init__(
        self,
        servers: Iterable[ToolServer],
        limits: McpLimits | None = None,
        compile: Compile = why_not_compiled,
    ) -> None:
        listed = list(servers)
        if len({server.name for server in listed}) < len(listed):
            raise ConfigError("mcp: expected another name for each server, got one twice")
        check_installed()
        self.limits: McpLimits = McpLimits() if limits is None else limits
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Lock()
        self._is_closed = False
        self._tools: dict[str, McpTool] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="oxillama mcp", daemon=True)
        self._thread.start()
        self._connections = self._wait(self._made(listed, compile))
        atexit.register(self.close)

    async def _made(self, servers: list[ToolServer], compile: Compile) -> dict[str, Connection]:
        return {each.name: Connection(each, self.limits, compile, self._collect) for each in servers}

    def __enter__(self) -> McpClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all sessions and programs. A second call has no effect."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        atexit.unregister(self.close)
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _ended(self) -> None:
        connections = getattr(self, "_connections", {}).values()
        await asyncio.gather(*(each.close() for each in connections), return_exceptions=True)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    # --- tools --------------------------------------------------------------------------------------

    def tools(self) -> list[McpTool]:
        """The tools of all servers, including refused ones. Lists that may have changed are fetched again.

        Raises ToolServerError if the client is closed.
        """
        return self._wait(self._listed(self._connections))

    async def atools(
        self, servers: Iterable[str] | None = None, seconds: float | None = None
    ) -> list[McpTool]:
        """`tools` for asyncio.

        Args:
            servers: names of the servers whose lists are waited for; None: all servers. The last list of each
                other server counts.
            seconds: after which the last lists count, too; None: the limits of `McpLimits` alone.
        """
        names = self._connections if servers is None else [n for n in servers if n in self._connections]
        return await self._away(self._listed(names, seconds))

    def definitions(self) -> list[Definition]:
        """The definitions of the usable tools, for ``tools=`` of `run_tools` and of a chat."""
        return [tool.definition for tool in self.tools() if tool.refused is None]

    def servers(self) -> list[ServerStatus]:
        """The state of each server."""
        return [
            ServerStatus(
                name, each.is_connected, each.state, len(each.tools), each.is_listing, each.stderr.text
            )
            for name, each in self._connections.items()
        ]

    def tool(self, name: str) -> McpTool | None:
        """The usable tool with this name in the last list, or None."""
        found = self._tools.get(name)
        return found if found is not None and found.refused is None else None

    def owners(self, name: str) -> list[str]:
        """The servers that may have a tool of this name."""
        return [each for each in self._connections if name.startswith(f"{safe(each)}__"[: MOST_NAME - 9])]

    async def _listed(self, servers: Iterable[str], seconds: float | None = None) -> list[McpTool]:
        asked = [asyncio.ensure_future(self._connections[name].refresh()) for name in servers]
        if asked:
            await asyncio.wait(asked, timeout=seconds)
        return list(self._tools.values())

    def _collect(self) -> None:
        """Notes the tools of all servers, after the list of one has changed."""
        found = with_unique_names([tool for each in self._connections.values() for tool in each.tools])
        self._tools = {tool.name: tool for tool in found[:MOST_TOOLS]}

    # --- calls --------------------------------------------------------------------------------------

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool. Failures are returned as results, so that the model can react to them.

        Args:
            name: as in `tools`.
        """
        try:
            return self._wait(self._called(name, arguments))
        except (ToolServerError, ConfigError) as error:
            return ToolResult(error=str(error))

    async def acall(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """`call` for asyncio. Cancelling it cancels the call at the server."""
        try:
            return await self._away(self._called(name, arguments))
        except (ToolServerError, ConfigError) as error:
            return ToolResult(error=str(error))

    def dispatch(self, call: ToolCall) -> ToolResult:
        """Run a model's tool call."""
        return self.call(call.name, call.args)

    async def adispatch(self, call: ToolCall) -> ToolResult:
        """`dispatch` for asyncio."""
        return await self.acall(call.name, call.args)

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name not in self._tools:
            await self._listed(self.owners(name))
        tool = self._tools.get(name)
        if tool is None or tool.refused is not None:
            why = "one of another name" if tool is None else tool.refused
            raise ToolServerError(f"{name[:80]}: expected a tool that can be used, got {why}")
        if not isinstance(arguments, Mapping):
            raise checks.refuse("arguments", "an object", arguments)
        found = await self._connections[tool.server].call(tool.own_name, arguments)
        return result_of(found, self.limits.result_chars)

    # --- the thread of the loop ---------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the client's loop and wait for its result; interrupting the wait cancels it."""
        future = self._started(work)
        try:
            return future.result()
        except CancelledError:
            raise ToolServerError("mcp: the client is closed") from None
        except BaseException:
            future.cancel()
            raise

    async def _away(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the client's loop from another event loop."""
        return await asyncio.wrap_future(self._started(work))

    def _started(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._is_closed:
            work.close()
            raise ToolServerError("mcp: the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)
