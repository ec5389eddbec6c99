"""Tools of the operator's MCP servers: the page's list of them, and calls that the page's user allowed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import Body, read_body
from oxillama.apps.server.errors import ApiError, fault
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.processes import JobTooLate, NoProcess, Processes
from oxillama.apps.server.running import AT_ONCE, connected, enter
from oxillama.apps.server.urgency import be_patient, be_urgent
from oxillama.base.config.server import ServerConfig

if TYPE_CHECKING:
    from oxillama.apps.mcp import McpClient, McpTool, ToolServer

SAME_SITE = ("same-origin", "none")
"""Values of the header ``Sec-Fetch-Site`` of the server's own page and of a typed address."""

LIST_SECONDS = 5.0
"""Seconds for which the page's list waits for servers that have not answered.

Their tools are left out, and ``is_listing`` tells the page to ask again.
"""


class ToolServers:
    """The tool servers of an application.

    Args:
        processes: that compile schemas which a thread does not compile at once.

    Raises ConfigError if their file cannot be read, or the package ``mcp`` is not installed.
    """

    def __init__(self, config: ServerConfig, processes: Processes) -> None:
        self._config, self._processes = config, processes
        self._servers: list[ToolServer] | None = None
        self._client: McpClient | None = None
        if config.mcp is not None:
            from oxillama.apps.mcp.client import check_installed
            from oxillama.apps.mcp.configuration import read_servers

            check_installed()
            self._servers = read_servers(config.mcp)

    def begin(self) -> None:
        """Starts the servers, without waiting for them."""
        if self._servers is not None:
            from oxillama.apps.mcp import McpClient, McpLimits

            limits = McpLimits(self._config.mcp_connect_seconds, self._config.mcp_call_seconds)
            be_patient()  # so will be the client's thread, which inherits that
            self._client = McpClient(self._servers, limits, self._why_not_compiled)
            be_urgent()
            self._starting = asyncio.ensure_future(self._client.atools())

    async def end(self) -> None:
        """Ends the servers."""
        client, self._client = self._client, None
        if client is not None:
            self._starting.cancel()
            await asyncio.to_thread(client.close)

    def _why_not_compiled(self, definition: Any) -> str | None:
        """Why the schema of a tool cannot be compiled; None if it can."""
        from oxillama.apps.mcp.tools import COMPILE_SECONDS, too_late, why_not_compiled

        found = why_not_compiled(definition, AT_ONCE)
        if found != too_late(AT_ONCE):
            return found
        try:
            return self._processes.run(why_not_compiled, definition, seconds=2 * COMPILE_SECONDS)
        except NoProcess:
            return why_not_compiled(definition)
        except JobTooLate:
            return too_late()
        except ApiError as error:
            return error.message

    @property
    def client(self) -> McpClient:
        """The client. Raises ApiError where the operator has configured no servers."""
        if self._client is None:
            raise ApiError(404, "mcp: expected tool servers (--mcp), got none", code="no_tool_servers")
        return self._client

    def __bool__(self) -> bool:
        return self._client is not None


def tool_servers(request: Request) -> ToolServers:
    """The tool servers of a request's application."""
    found: ToolServers = request.app.state.tool_servers
    return found


def check_origin(request: Request) -> None:
    """Raises ApiError for pages of other origins, also where they may use the server's models."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    is_own = site in SAME_SITE if site is not None else origin in (None, own)
    if not is_own:
        raise ApiError(
            403, "origin: expected the server's own page, got another origin", code="foreign_origin"
        )


class CallBody(Body):
    name: str
    arguments: dict[str, Any]
    digest: str | None = None


async def list_tools(request: Request) -> Response:
    """The tools, and the reasons why others cannot be used; both lists are empty without servers."""
    check_origin(request)
    servers = tool_servers(request)
    if not servers:
        return JsonAnswer({"tools": [], "servers": []})
    tools = await connected(request, servers.client.atools(seconds=LIST_SECONDS))
    states = [
        {"name": each.name, "failure": each.failure, "is_listing": each.is_listing}
        for each in servers.client.servers()
    ]
    return JsonAnswer({"tools": [as_json(tool) for tool in tools], "servers": states})


def as_json(tool: McpTool) -> dict[str, Any]:
    """A tool in the form of the page."""
    return {
        "name": tool.name,
        "server": tool.server,
        "own_name": tool.own_name,
        "description": tool.description,
        "parameters": tool.definition["function"]["parameters"],
        "hints": dict(tool.hints),
        "refused": tool.refused,
        "digest": tool.digest,
    }


async def call_tool(request: Request) -> Response:
    """Runs a call. ``digest`` is the hash of the tool that the user allowed: a changed tool is refused."""
    check_origin(request)
    body = await read_body(request, CallBody)
    client = tool_servers(request).client
    tool = client.tool(body.name)
    if tool is None:  # its server may be starting yet
        await connected(request, client.atools(client.owners(body.name)))
        tool = client.tool(body.name)
    if tool is None:
        raise fault("name", f"expected a tool that can be used, got {body.name[:200]}", "tool_not_found", 404)
    if body.digest is not None and body.digest != tool.digest:
        raise fault("digest", f"{body.name[:200]} has changed since it was listed", "tool_changed", 409)
    await enter(request)
    result = await connected(request, client.acall(body.name, body.arguments))
    content = f"Error: {result.error}" if result.error is not None else str(result.value)
    return JsonAnswer({"name": body.name, "content": content, "is_error": result.failed})
