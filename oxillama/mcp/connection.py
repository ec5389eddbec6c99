"""The session with one tool server: made when it is first needed, and made again when it has broken.

All methods are for the event loop of a client. One task enters and leaves the session, as anyio demands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from oxillama._version import __version__
from oxillama.mcp.configuration import McpLimits, ToolServer
from oxillama.mcp.errors import ToolServerError, reason_of
from oxillama.mcp.tools import McpTool, tools_of
from oxillama.mcp.transports import Tail, http, stdio

log: logging.Logger = logging.getLogger(__name__)

MOST_PAGES = 100
MOST_TOOLS = 512
"""Tools of one server."""
LATE_SECONDS = 5.0
"""After the end of a call's time, until the session itself is given up."""
RETRY_SECONDS = 60.0
"""Before a server that could not be reached is tried again for its list of tools."""


class Connection:
    """A server, connected or not.

    Attributes
    ----------
    tools : as the server listed them last.
    is_stale : whether the server said that it has other tools now, or was connected anew.
    failure : why the server is not connected, or has no tools; None while nothing is wrong.
    stderr : the end of what the program wrote there.
    """

    def __init__(self, server: ToolServer, limits: McpLimits) -> None:
        self.server: ToolServer = server
        self.limits: McpLimits = limits
        self.tools: list[McpTool] = []
        self.is_stale: bool = True
        self.failure: str | None = None
        self.stderr: Tail = Tail()
        self._tried_at = 0.0
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def is_connected(self) -> bool:
        return self._client is not None and not self._stop.is_set()

    # --- the session --------------------------------------------------------------------------------

    async def ready(self) -> Any:
        """The session, which is made if there is none. Raises ToolServerError."""
        async with self._turn:
            if not self.is_connected:
                await self._end()
                await self._begin()
            return self._client

    async def _begin(self) -> None:
        self._stop, self.is_stale, self._tried_at = asyncio.Event(), True, time.monotonic()
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.failure = None
        self._task = asyncio.ensure_future(self._run(ready))
        try:
            self._client = await asyncio.wait_for(asyncio.shield(ready), self.limits.connect_seconds)
        except TimeoutError:
            await self._give_up(f"expected an answer within {self.limits.connect_seconds:g} s, got none")
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        except Exception as error:
            await self._give_up(reason_of(error))

    async def _give_up(self, reason: str) -> None:
        """Ends an attempt to connect. Raises ToolServerError."""
        self.failure = (
            self.failure or reason
        )  # a program that has ended says more than the session without it
        await self._end()
        raise ToolServerError(f"{self.server.name}: {self.failure}")

    async def _run(self, ready: asyncio.Future[Any]) -> None:
        """Enters the session, and leaves it when it is over."""
        import mcp

        transport = (
            http(self.server, self.limits)
            if self.server.url is not None
            else stdio(self.server, self.limits, self.stderr, self._lost)
        )
        try:
            async with mcp.Client(
                transport,
                cache=None,
                message_handler=self._hear,
                read_timeout_seconds=self.limits.connect_seconds,
                client_info=mcp.Implementation(name="oxillama", version=__version__),
            ) as client:
                listening = asyncio.ensure_future(self._listen(client))
                if not ready.done():
                    ready.set_result(client)
                try:
                    await self._stop.wait()
                finally:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
        except Exception as error:
            if ready.done():
                log.debug("%s: the session ended with %r", self.server.name, error)
            else:
                ready.set_exception(error)
        finally:
            self._stop.set()
            if not ready.done():
                ready.cancel()
            elif not ready.cancelled():
                ready.exception()  # is then not reported as unread

    async def _listen(self, client: Any) -> None:
        """Hears of other tools where a server tells only those who ask (protocol 2026-07-28)."""
        with suppress(Exception):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.is_stale = True

    async def _hear(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self.is_stale = True

    def _lost(self, reason: str) -> None:
        """Notes that the server has gone."""
        if not self._stop.is_set():
            self.failure = reason
            self._stop.set()

    async def _end(self) -> None:
        """Leaves the session, and ends the program."""
        task, self._task, self._client = self._task, None, None
        self._stop.set()
        if task is not None and not task.done():
            _, late = await asyncio.wait({task}, timeout=LATE_SECONDS)
            if late:
                task.cancel()
                await asyncio.wait({task}, timeout=3 * LATE_SECONDS)

    async def close(self) -> None:
        """Ends the session for good."""
        async with self._turn:
            await self._end()

    # --- tools --------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Lists the tools again, if they may have changed. What goes wrong is in ``failure``."""
        is_late = self.failure is not None and time.monotonic() - self._tried_at < RETRY_SECONDS
        if is_late or not self.is_stale:
            return
        try:
            client = await self.ready()
            async with self._turn:
                if self.is_stale:
                    self.is_stale = False
                    self.tools = await self._listed(client)
                    self.failure = None
        except ToolServerError as error:
            self.tools = []
            log.warning("%s", error)

    async def _listed(self, client: Any) -> list[McpTool]:
        """All pages of the server's tools. Raises ToolServerError."""
        try:
            return await asyncio.wait_for(self._pages(client), self.limits.connect_seconds)
        except TimeoutError:
            reason = f"expected a list of tools within {self.limits.connect_seconds:g} s, got none"
        except Exception as error:
            reason = reason_of(error)
        self.is_stale = True
        self.failure = self.failure or reason
        raise ToolServerError(f"{self.server.name}: {self.failure}")

    async def _pages(self, client: Any) -> list[McpTool]:
        if client.server_capabilities.tools is None:
            return []
        listed: list[Any] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            listed += page.tools
            if len(listed) > MOST_TOOLS:
                raise ValueError(f"expected at most {MOST_TOOLS} tools, got more")
            cursor = page.next_cursor
            if cursor is None:
                return await asyncio.to_thread(tools_of, self.server.name, listed)
        raise ValueError(f"expected at most {MOST_PAGES} pages of tools, got more")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What a call of a tool came to, by the server's own name. Raises ToolServerError."""
        import mcp
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolRequestParams

        client, seconds = await self.ready(), self.limits.call_seconds
        request = mcp.CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(arguments)))
        late = ToolServerError(f"{self.server.name}: expected a result within {seconds:g} s, got none")
        # not Client.call_tool, which checks results against the server's own schema: a regular expression in
        # that schema may take forever
        sending = client.session.send_request(
            request, mcp.types.CallToolResult, request_read_timeout_seconds=seconds
        )
        try:
            return await asyncio.wait_for(sending, seconds + LATE_SECONDS)
        except TimeoutError as error:
            self._stop.set()
            raise late from error
        except mcp.MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise late from error
            is_lost = error.code == CONNECTION_CLOSED or "session" in str(error).lower()
            if is_lost:
                self._lost(reason_of(error))
            why = self.failure if is_lost else reason_of(error)
            raise ToolServerError(f"{self.server.name}: {why}") from error
        except Exception as error:
            self._lost(reason_of(error))
            raise ToolServerError(f"{self.server.name}: {reason_of(error)}") from error
