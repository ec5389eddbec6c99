"""The session with one tool server: opened when first needed, and reopened after a failure.

All methods run in the client's event loop. One task enters and leaves the session, as anyio requires.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from oxillama.apps.mcp.configuration import McpLimits, ToolServer
from oxillama.apps.mcp.errors import ToolServerError, reason_of
from oxillama.apps.mcp.tools import Compile, McpTool, tools_of
from oxillama.apps.mcp.transports import Tail, http, stdio
from oxillama.base.version import __version__

log: logging.Logger = logging.getLogger(__name__)

MOST_PAGES = 100
MOST_TOOLS = 512
"""The maximum number of tools of one server."""
LATE_SECONDS = 5.0
"""Seconds after a call's time limit until the session itself is closed."""
CANCELLED_SECONDS = 15.0
"""Seconds for a session that is cancelled, during which its program ends."""
RETRY_SECONDS = 60.0
"""Seconds before an unreachable server is tried again for its list of tools."""


class Shared:
    """A job for all who want its result: while it runs, others wait for the same one.

    It goes on when those who wait are cancelled, so it must have a deadline of its own.
    """

    def __init__(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._job = job
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The job that runs, or else a new one."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._job())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def run(self) -> None:
        """Waits for the job that runs, or else for a new one. Raises its error."""
        await asyncio.shield(self.start())

    async def cancel(self) -> None:
        """Cancels the job and waits for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Connection:
    """A server, connected or not.

    Args:
        compile: returns why a tool cannot be compiled; runs in a thread.
        changed: called when `tools` has changed.

    Attributes:
        tools: the server's last list.
        is_stale: whether the list may have changed: after a notification, or a new connection.
        failure: why the server is not connected, or has no tools; None without a failure.
        stderr: the end of the program's stderr.
    """

    def __init__(
        self, server: ToolServer, limits: McpLimits, compile: Compile, changed: Callable[[], object]
    ) -> None:
        self.server: ToolServer = server
        self.limits: McpLimits = limits
        self.tools: list[McpTool] = []
        self.is_stale: bool = True
        self.failure: str | None = None
        self.stderr: Tail = Tail()
        self._compile, self._changed = compile, changed
        self._tried_at = 0.0
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._has_to_list, self._has_failed = True, False
        self._opening, self._listing = Shared(self._open), Shared(self._list)

    @property
    def is_connected(self) -> bool:
        return self._client is not None and not self._stop.is_set()

    @property
    def state(self) -> str | None:
        """`failure`, or a word for a server that has not listed its tools yet; None for one that has."""
        return self.failure or ("it has not listed its tools yet" if self._has_to_list else None)

    @property
    def is_listing(self) -> bool:
        """Whether a list of tools has been asked for, and has not come."""
        return self._listing.is_running

    # --- the session --------------------------------------------------------------------------------

    async def ready(self) -> Any:
        """The session; opens it if necessary. Raises ToolServerError."""
        if not self.is_connected:
            await self._opening.run()
        if self._client is None:  # the session has ended already
            raise ToolServerError(f"{self.server.name}: {self.failure or 'it has ended'}")
        return self._client

    async def _open(self) -> None:
        await self._end()
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
        """Give up connecting. Raises ToolServerError."""
        self.failure = self.failure or reason  # an ended program's reason says more than the session's
        await self._end()
        raise ToolServerError(f"{self.server.name}: {self.failure}")

    async def _run(self, ready: asyncio.Future[Any]) -> None:
        """Enter the session, and leave it when it is over."""
        import mcp

        transport = (
            http(self.server, self.limits, self._lost)
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
                ready.exception()  # marks the exception as retrieved

    async def _listen(self, client: Any) -> None:
        """Receive changes of tools from servers that notify only subscribers (protocol 2026-07-28)."""
        with suppress(Exception):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.is_stale = True

    async def _hear(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self.is_stale = True

    def _lost(self, reason: str) -> None:
        """Record that the server has gone."""
        if not self._stop.is_set():
            self.failure = reason
            self._stop.set()

    async def _end(self) -> None:
        """Leave the session, and stop the program."""
        task, self._task, self._client = self._task, None, None
        self._stop.set()
        if task is not None and not task.done():
            _, late = await asyncio.wait({task}, timeout=LATE_SECONDS)
            if late:
                task.cancel()
                await asyncio.wait({task}, timeout=CANCELLED_SECONDS)

    async def close(self) -> None:
        """End the session for good."""
        await self._listing.cancel()
        await self._opening.cancel()
        await self._end()

    # --- tools --------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """List the tools again if they may have changed. Failures are stored in ``failure``.

        A server that has failed is tried again without waiting for it.
        """
        if not self.is_stale:
            return
        if not self._has_failed:
            await self._listing.run()
        elif time.monotonic() - self._tried_at > RETRY_SECONDS:
            self._listing.start()

    async def _list(self) -> None:
        try:
            client = await self.ready()
            self.is_stale = False
            self.tools = await self._listed(client)
            self.failure, self._has_to_list, self._has_failed = None, False, False
        except ToolServerError as error:
            self.tools, self._tried_at, self._has_failed = [], time.monotonic(), True
            log.warning("%s", error)
        self._changed()

    async def _listed(self, client: Any) -> list[McpTool]:
        """Fetch all pages of the server's tools. Raises ToolServerError."""
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
                seconds = self.limits.connect_seconds * 2 / 3  # the list has its own limit
                return await asyncio.to_thread(
                    tools_of, self.server.name, listed, self.tools, self._compile, seconds
                )
        raise ValueError(f"expected at most {MOST_PAGES} pages of tools, got more")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool by the server's own name for it; returns the result. Raises ToolServerError."""
        import mcp
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolRequestParams

        client, seconds = await self.ready(), self.limits.call_seconds
        request = mcp.CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(arguments)))
        late = ToolServerError(f"{self.server.name}: expected a result within {seconds:g} s, got none")
        # Client.call_tool would check results against the server's own schema, whose regular expressions may
        # take forever
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
