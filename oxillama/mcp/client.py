"""All tool servers behind one face: plain functions for threads, awaitables for asyncio."""

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

from oxillama.config import checks
from oxillama.distribution import install
from oxillama.errors import ConfigError
from oxillama.events import ToolCall
from oxillama.mcp.configuration import McpLimits, ToolServer, read_servers, servers_of
from oxillama.mcp.connection import Connection
from oxillama.mcp.errors import ToolServerError
from oxillama.mcp.tools import McpTool, result_of, with_unique_names
from oxillama.toolcalls.definitions import MOST_TOOLS, Definition
from oxillama.toolcalls.dispatch import ToolResult

T = TypeVar("T")

CLOSE_SECONDS = 30.0
"""For which the end of all servers is waited for."""


@dataclass(frozen=True)
class ServerStatus:
    """What is known of a server.

    Attributes
    ----------
    failure : why it is not connected, or has no tools; None while nothing is wrong.
    n_tools : that it listed last.
    stderr : the end of what its program wrote there, and the lines of its stdout that are no messages.
    """

    name: str
    is_connected: bool
    failure: str | None
    n_tools: int
    stderr: str


def connect(config: str | os.PathLike[str] | Mapping[str, Any], limits: McpLimits | None = None) -> McpClient:
    """A client of the servers of a ``config.json``, whose tools are listed.

    A server that cannot be reached is no error: its tools are missing, and `McpClient.servers` says why.

    Parameters
    ----------
    config : the path of the file, or what is in it.

    Raises
    ------
    ConfigError : the file cannot be read, or has unknown keys; the package ``mcp`` is not installed.
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
    """Raises ConfigError if the package ``mcp`` is missing, or too old."""
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

    Parameters
    ----------
    servers : that are connected when they are first needed.

    Raises
    ------
    ConfigError : two servers have the same name; the package ``mcp`` is not installed.
    """

    def __init__(self, servers: Iterable[ToolServer], limits: McpLimits | None = None) -> None:
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
        self._connections = self._wait(self._made(listed))
        atexit.register(self.close)

    async def _made(self, servers: list[ToolServer]) -> dict[str, Connection]:
        return {server.name: Connection(server, self.limits) for server in servers}

    def __enter__(self) -> McpClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all sessions and programs. A second call does nothing."""
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
        """The tools of all servers, also those that cannot be used. Lists that changed are asked for again.

        Raises ToolServerError if the client is closed.
        """
        return self._wait(self._listed())

    async def atools(self) -> list[McpTool]:
        """`tools`, in asyncio."""
        return await self._away(self._listed())

    def definitions(self) -> list[Definition]:
        """The definitions of the tools that can be used, for ``tools=`` of `run_tools` and of a chat."""
        return [tool.definition for tool in self.tools() if tool.refused is None]

    def servers(self) -> list[ServerStatus]:
        """What is known of each server."""
        return [
            ServerStatus(name, each.is_connected, each.failure, len(each.tools), each.stderr.text)
            for name, each in self._connections.items()
        ]

    def tool(self, name: str) -> McpTool | None:
        """The tool of this name as it was listed last; None if there is none that can be used."""
        found = self._tools.get(name)
        return found if found is not None and found.refused is None else None

    async def _listed(self) -> list[McpTool]:
        await asyncio.gather(*(each.refresh() for each in self._connections.values()))
        found = with_unique_names([tool for each in self._connections.values() for tool in each.tools])
        found = found[:MOST_TOOLS]
        self._tools = {tool.name: tool for tool in found}
        return found

    # --- calls --------------------------------------------------------------------------------------

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The result of a call. What goes wrong is a result, too, so that the model can be told of it.

        Parameters
        ----------
        name : as in `tools`.
        """
        try:
            return self._wait(self._called(name, arguments))
        except (ToolServerError, ConfigError) as error:
            return ToolResult(error=str(error))

    async def acall(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """`call`, in asyncio. Cancelling it tells the server."""
        try:
            return await self._away(self._called(name, arguments))
        except (ToolServerError, ConfigError) as error:
            return ToolResult(error=str(error))

    def dispatch(self, call: ToolCall) -> ToolResult:
        """The result of a call of a model."""
        return self.call(call.name, call.args)

    async def adispatch(self, call: ToolCall) -> ToolResult:
        """The same, in asyncio."""
        return await self.acall(call.name, call.args)

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if not self._tools:
            await self._listed()
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
        """What a coroutine returns that runs in the client's loop; interrupting the wait cancels it."""
        future = self._started(work)
        try:
            return future.result()
        except CancelledError:
            raise ToolServerError("mcp: the client is closed") from None
        except BaseException:
            future.cancel()
            raise

    async def _away(self, work: Coroutine[Any, Any, T]) -> T:
        """The same, for another event loop."""
        return await asyncio.wrap_future(self._started(work))

    def _started(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._is_closed:
            work.close()
            raise ToolServerError("mcp: the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)
